"""One module per command group.

A command does not parse or print: it calls the package that does the work and passes on a document.
"""
