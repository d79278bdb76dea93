"""Settings files of the user and of a project, and what the user has agreed to."""
