"""Bundle stores: a small contract and its implementations.

contract     the six operations of every store
local, s3    a directory; a bucket (needs the extra `s3`)
write_check  tests that a store honours the contract before it is used
transfer     push and pull, with the index last in both directions
"""
