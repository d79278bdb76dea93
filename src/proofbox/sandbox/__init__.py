"""Where commands run: the provider contract, the providers, the box agent, sessions, and the service on top.

Start with `contract.py` for the terms, `service.py` for the API, and `agent/boxagent/boxagent.h` for what runs inside a
box.
"""
