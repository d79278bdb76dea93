"""The tools of an agent in a workspace: one contract of nine tools, and its implementations.

`contract` defines the tools and their results; the other modules implement them.
"""
