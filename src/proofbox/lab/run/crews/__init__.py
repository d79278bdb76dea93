"""Crews: the workers of a run, on this machine or on the nodes of a cluster."""
