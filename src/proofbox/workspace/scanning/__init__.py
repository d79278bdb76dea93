"""Finding out what is in a directory, and what changed since the last scan."""
