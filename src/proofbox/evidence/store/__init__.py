"""Where bundles are kept besides the machine they were made on: a small contract, and what fulfils it.

contract   five operations that every store has
local, s3  a directory; a bucket (needs the extra `s3`)
trial      proves that a store keeps the contract, before it is trusted
transfer   push and pull, with the index last on both ways
"""
