"""What is delivered: a directory, an archive, or a snapshot of a workspace."""
