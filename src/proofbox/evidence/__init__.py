"""Evidence: bundles that commit, verify offline, and can be promoted.

    writer, content, log, lock   how a run's directory is made and committed
    index, status, paths     the documents of a bundle, and where they are
    check, reader, verify    reading: what is there, what holds, what an auditor runs
    repair, witnesses        reindexing with an audit trail; what a path was really called
    policy, packet, promotion, dsse, keys   the decision to rely on a bundle, pinned and signed
    outcome, tree, schedule  what attempts and runs put into their bundles
    store/                   bundles elsewhere, behind the same commit barrier

Everything that `verify` needs uses the standard library and `cryptography` alone: a third party audits a bundle with
`python3 -I src/proofbox/evidence/verify PATH`. A test imports it so.
"""
