"""Tasks in Harbor's format, read as missions."""
