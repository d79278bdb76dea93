"""Statistics for comparing agents: small pure functions that need only the standard library.

    >>> from proofbox.lab.statistics import wilson
    >>> low, high = wilson(5, 5)
    >>> round(low, 3), high
    (0.566, 1.0)

Each function names its reference. The tests compare them with SciPy where it implements the same, and otherwise with
the definition (Holm's correction, Tango's interval, the power of a design). They check by simulation that the intervals
cover and that verdicts are wrong no more often than stated.
"""

from proofbox.lab.statistics.comparison import (
    Comparison,
    ComparisonVerdict,
    MissionScores,
    compare,
    compare_all,
    compare_pairs,
    missions_for_verdict,
)
from proofbox.lab.statistics.distributions import Distribution, describe
from proofbox.lab.statistics.hypotheses import SignFlip, holm, mcnemar, sign_flip
from proofbox.lab.statistics.intervals import t_interval, tango, wilson
from proofbox.lab.statistics.means import MeanComparison, MissionMeans, compare_means
from proofbox.lab.statistics.planning import detectable_difference, missions_needed, replicates_needed
from proofbox.lab.statistics.rates import (
    LossBounds,
    PassRate,
    flaky,
    highest_lower_end,
    loss_bounds,
    missions_for_lower_end,
    pass_at_k,
    pass_hat_k,
    pass_rate,
)

__all__ = [
    "Comparison",
    "ComparisonVerdict",
    "Distribution",
    "LossBounds",
    "MeanComparison",
    "MissionMeans",
    "MissionScores",
    "PassRate",
    "SignFlip",
    "compare",
    "compare_all",
    "compare_means",
    "compare_pairs",
    "describe",
    "detectable_difference",
    "flaky",
    "highest_lower_end",
    "holm",
    "loss_bounds",
    "mcnemar",
    "missions_for_lower_end",
    "missions_for_verdict",
    "missions_needed",
    "pass_at_k",
    "pass_hat_k",
    "pass_rate",
    "replicates_needed",
    "sign_flip",
    "t_interval",
    "tango",
    "wilson",
]
