"""The files an agent works on: a directory with history.

`workspace` is the face: init, open, snapshot, rollback, fork, diff, verify, gc. Below it `store` keeps content by its
digest, `tree` says what a directory is made of, `looking` finds what changed by `scan` and `tracking`, `restore` puts a
tree back, `forking` makes a workspace of one. `tools/` is what an agent has of it, `capabilities/` what it may do.
"""
