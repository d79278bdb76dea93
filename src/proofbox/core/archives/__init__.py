"""Unpacking archives from untrusted sources."""
