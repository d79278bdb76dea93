"""Trials: one prompt to one agent on a workspace, with a record of every step."""
