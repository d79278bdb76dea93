"""Commands for workspaces and their tools."""
