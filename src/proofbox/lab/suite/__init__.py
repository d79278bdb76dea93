"""Suites: the specification, reading and linting it, and what it may refer to."""
