"""Attempts on the nodes of a Ray cluster.

`driver` is the worker process next to the conductor: it claims attempts, hands them to nodes, checks and stores their
results. `connection` starts a private cluster or joins one, always with authentication. `node` is the actor on a node
that runs attempts in the node's own sandbox, after `preflight` has checked the node. `transfer` moves templates and
`images` to the nodes, and bundles back. `returned` checks these bundles, and `sweeping` removes what killed workers
left there.
"""
