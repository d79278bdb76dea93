"""Verification of bundles and packets, with the standard library alone."""
