"""A directory with history: the files an agent works on.

`workspace` is the entry point: init, open, snapshot, rollback, fork, diff, verify, gc. `store/` keeps content by
digest, `tree` defines the format of a directory tree, `scanning/` finds changed files, and `timeline/` holds diffs,
rollback, forks and the effect log. `tools/` contains the tools that agents call; `capabilities/` what they may do.
"""
