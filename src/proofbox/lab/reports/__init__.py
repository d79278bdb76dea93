"""Reading evidence: validation, explanations, totals, parity."""
