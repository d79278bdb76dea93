"""The laboratory: missions run as attempts, many in parallel, each leaving evidence that can be scored.

`suite/` specifies and reads suites, `run/` plans a run and schedules its attempts, `attempt/` runs and verifies one
attempt, and `reports/` reads the evidence.
"""
