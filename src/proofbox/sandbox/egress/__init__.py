"""The way out of a box with a network allowlist: a proxy outside."""
