"""Where commands run: the provider contract, the providers, the box agent, sessions, and the service on top.

Start with `contract.py` for the terms, `service.py` for the API, and `agent/boxagent/boxagent.h` for what runs inside a
box.
"""

DEFAULT_OUTPUT_CAP = 10 * 1024 * 1024
"""Bytes kept of each output stream of a command."""
DEFAULT_TTL = 3600.0
"""Seconds after which an idle session ends."""
