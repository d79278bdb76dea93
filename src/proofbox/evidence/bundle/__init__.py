"""Bundles: how they are written, committed, read, listed and repaired."""
