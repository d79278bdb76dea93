"""Implementations of the tool contract: on disk, in a box, in memory, with layers."""
