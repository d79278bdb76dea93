"""Verification of bundles and packets, using only the standard library."""
