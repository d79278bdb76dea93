"""What every room may use: canonical JSON, digests, the hash chain, atomic writes, locks, time, ids, text, redaction.

Nothing here knows of sandboxes, agents or evidence, and nothing here imports from another room but the error tree.
`canonical`, `digest`, `atomic` and `chain` use the standard library alone: an auditor runs them without the rest.
"""
