"""Images: the catalogue, downloads, and pulled images locked to a project."""
