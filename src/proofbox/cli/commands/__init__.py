"""One module a command group.

A command parses nothing and prints nothing itself: it calls a room and hands on a document.
"""
