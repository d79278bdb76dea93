"""Evidence: bundles that commit, verify offline, and can be promoted.

    bundle/      writing, committing, locking, reading, listing and repairing a run's bundle
    documents/   the documents that attempts and runs write: outcome, schedule, tree manifest, path witnesses
    verify/      checks of a bundle, and the program that an auditor runs
    promotion/   policies and promotion packets: the decision whether a bundle may be relied on
    attest/      keys and signed statements
    store/       bundles in other directories or S3, behind the same commit barrier

`verify` and everything it imports use only the standard library and `cryptography`, so a third party can audit a bundle
with `python3 -I src/proofbox/evidence/verify PATH`. A test imports it this way.
"""
