"""The `process` runtime: any command line as an agent, run once per turn."""
