"""Compute the changes to a repository: baseline, three-way comparison, and readable diffs."""
