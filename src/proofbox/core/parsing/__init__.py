"""Parsers for untrusted text that fail with one kind of error."""
