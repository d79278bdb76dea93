"""Agent runtimes: programs that take a prompt and work on a workspace, driven and recorded the same way.

`contract.py` has the nouns, `events.py` what a runtime may say, one package or module is one runtime, `strategies.py`
chooses among them, `trial.py` runs one prompt and keeps the record of its steps.
"""
