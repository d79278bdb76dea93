"""Files that people write, such as suites and plans: read them, and report every problem with its position."""
