"""Any command line as an agent: each turn is one run of it."""
