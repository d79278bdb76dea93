"""The client of the box agent: wire format, connections, requests, calls."""
