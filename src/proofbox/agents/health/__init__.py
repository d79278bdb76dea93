"""The health of each strategy on this machine, across runs, and which strategy is recommended."""
