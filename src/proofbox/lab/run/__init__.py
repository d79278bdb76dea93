"""A run: plan, ledger, workers, scheduling, limits, retention."""
