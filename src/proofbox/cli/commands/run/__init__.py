"""Commands that run programs in boxes."""
