"""Bundles: writing, committing, reading, listing and repairing."""
