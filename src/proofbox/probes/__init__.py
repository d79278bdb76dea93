"""Probe plans: measure what a sandbox really enforces, and keep the measurement as evidence."""
