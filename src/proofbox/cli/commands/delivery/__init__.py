"""Commands that deliver code, and the reference backend."""
