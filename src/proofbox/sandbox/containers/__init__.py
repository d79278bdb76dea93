"""Containers through the API of a Docker or Podman engine."""
