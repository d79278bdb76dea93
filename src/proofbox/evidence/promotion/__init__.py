"""Promotion: policies, and packets that state whether a bundle may be relied on."""
