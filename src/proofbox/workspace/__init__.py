"""The files an agent works on: a directory with history.

`workspace` is the face: init, open, snapshot, rollback, fork, diff, verify, gc. Below it `store` keeps content by its
digest, `tree` says what a directory is made of, `scan` and `tracking` find what changed, `restore` puts a tree back.
"""
