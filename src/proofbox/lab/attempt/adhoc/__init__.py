"""Attempts made by hand: one prompt to one agent on the user's own workspace, and forks of earlier attempts."""
