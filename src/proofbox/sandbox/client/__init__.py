"""Talking to the box agent: wire format, connections, requests, calls."""
