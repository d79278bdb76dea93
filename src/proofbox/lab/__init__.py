"""The laboratory: missions run as attempts, many at once, each leaving evidence that scores itself.

`spec.py` says what a suite is, `attempt.py` runs one try at one mission, `verifier.py` finds out what came of it,
`ledger.py` is the truth about which tries there are, `worker.py` and `limiter.py` decide when, `run.py` is a whole run.
"""
