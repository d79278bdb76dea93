"""Probes: single operations that a sandbox allows or denies. Conformance checks and plans take them from one corpus."""
