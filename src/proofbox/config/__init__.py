"""Settings files of the user and of a project, and the user's consent to them."""
