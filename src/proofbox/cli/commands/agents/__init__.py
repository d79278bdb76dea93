"""Commands that run agents, suites and attempts."""
