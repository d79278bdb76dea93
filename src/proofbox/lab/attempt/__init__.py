"""One attempt at a mission, from a claimed row of the ledger to a committed bundle."""
