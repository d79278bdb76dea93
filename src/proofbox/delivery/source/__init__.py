"""Sources of a delivery: a directory, an archive, or a snapshot of a workspace."""
