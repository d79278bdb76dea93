"""The client of a platform backend: requests, retries, and what goes over the wire."""
