"""Attempts on the nodes of a Ray cluster.

driver      a worker process next to the conductor: claims attempts, hands them to nodes, checks and stores results
connection  a private cluster on this machine, or an existing one, always with authentication
node        the actor on a node that runs attempts in the node's own sandbox
preflight   what a node must have before it gets attempts
transfer    templates to the nodes, bundles back
"""
