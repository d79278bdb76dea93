"""Keys and signed statements."""
