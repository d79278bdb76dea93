"""Utilities for every package: canonical JSON, digests, the hash chain, atomic writes, locks, time, ids, redaction.

Nothing here depends on sandboxes, agents or evidence; the only other package imported is `errors`. `canonical`,
`digest`, `atomic` and `chain` use only the standard library, so an auditor can run them without the rest.
"""
