"""Read the contents of a directory, and find what changed since the last scan."""
