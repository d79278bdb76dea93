"""The host side of a box: control groups, mounts, processes, launching."""
