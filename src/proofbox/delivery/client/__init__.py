"""The client of a platform backend: requests, retries, and wire formats."""
