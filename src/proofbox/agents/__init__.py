"""Agent runtimes: programs that take a prompt and work on a workspace, all driven and recorded in the same way.

`contract.py` defines the runtime contract, `events.py` the events, and `runtimes/` contains the runtimes.
`strategies.py` selects one of them, and `steps.py` records what it does.
"""
