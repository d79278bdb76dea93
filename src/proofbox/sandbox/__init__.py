"""Where commands run: the provider contract, one module a provider, the box agent, sessions, and the service on top.

Read `contract.py` for the nouns, `service.py` for what a caller does with them, `agent/boxagent.c` for what happens
inside.
"""
