"""Commands that set up and inspect an installation."""
