"""Plans a campaign before it is run: attempts, time and tokens, and the difference that the design can detect."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from proofbox.core.results import Document
from proofbox.errors import UsageError
from proofbox.lab.campaign.history import past_flows
from proofbox.lab.campaign.reading import read_campaign
from proofbox.lab.statistics import detectable_difference, missions_needed, replicates_needed

_Path = str | os.PathLike[str]
_DIFFERENCE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(pt|%)?")
POWER: Final = 0.8


class CampaignPlan(Document, frozen=True, kw_only=True):
    """What a campaign costs, and what it can detect."""

    schema: str = "proofbox.campaign_plan/1"
    campaign: str
    """The campaign's id."""
    flows: int
    """The number of flows."""
    missions: int
    """The number of missions."""
    replicates: int
    """Attempts of each flow at each mission."""
    attempts: int
    """Planned attempts, without retries."""
    comparisons: int
    """The number of comparisons, over which p-values are corrected."""
    alpha: float
    """The chance of a wrong verdict over all comparisons."""
    power: float
    """The chance of a verdict if the difference is as large as stated."""
    rate: float
    """The assumed pass rate: that of the earlier campaign, or 0.5, the worst case."""
    detectable_difference: float | None
    """The smallest difference of pass rates that this design detects; null: there are too few missions for any."""
    mde: float | None = None
    """The difference that should be detected."""
    missions_needed: int | None = None
    """Missions that detect it with these replicates."""
    replicates_needed: int | None = None
    """Replicates that detect it with these missions; null: only more missions can."""
    seconds: float | None = None
    """Estimated duration, from the earlier results; null: unknown."""
    tokens: float | None = None
    """Estimated tokens, from the earlier results; null: unknown."""
    cost: float | None = None
    """Estimated cost in the campaign's currency, from the earlier costs; null: unknown."""
    currency: str | None = None
    """The currency of the cost; null: the campaign states no prices."""


def plan_campaign(spec: _Path, *, mde: str | None = None, past: _Path | None = None) -> CampaignPlan:
    """Return the number of attempts of a campaign, what they are likely to cost, and what they can show.

    For example:

        plan = proofbox.plan_campaign("campaign.toml", mde="5pt", past="earlier")
        print(plan.attempts, plan.detectable_difference, plan.replicates_needed)

    `mde` is a difference of pass rates to detect, in points: `5pt`. `past` is the directory of an earlier campaign,
    which gives medians for the estimates and the pass rate. Without it, the last campaign or canary of the same file
    that was committed here is used. The difference is for a paired comparison between two flows, with 80 % power, at
    alpha divided by the number of comparisons. It assumes that flows differ equally on all missions; otherwise more
    missions are needed.
    """
    campaign = read_campaign(Path(spec))
    fields, flows, missions = campaign.document.campaign, len(campaign.suites), len(campaign.missions)
    pairs = max(1, campaign.document.comparisons)
    alpha = fields.alpha / pairs
    attempts = flows * missions * fields.replicates
    rate, seconds, tokens, cost = 0.5, None, None, None
    earlier = past_flows(campaign.path, None if past is None else Path(past))
    if earlier:
        scored = sum(flow.rate.scored for flow in earlier)
        rate = sum(flow.rate.passed for flow in earlier) / scored if scored else rate
        rate = min(max(rate, 1 / (scored + 2)), 1 - 1 / (scored + 2))  # a rate of 0 or 1 would have no variance
        medians = [flow.seconds.median for flow in earlier if flow.seconds is not None]
        used = [flow.tokens.median for flow in earlier if flow.tokens is not None]
        seconds = sum(medians) / len(medians) * attempts / fields.concurrency if medians else None
        tokens = sum(used) / len(used) * attempts if used else None
        costs = [flow.cost.median for flow in earlier if flow.cost is not None]
        cost = sum(costs) / len(costs) * attempts if len(costs) == len(earlier) else None
    wanted = None if mde is None else difference(mde)
    deviation = (2 * rate * (1 - rate) / fields.replicates) ** 0.5
    reachable = 2.0 ** (1 - missions) < alpha
    return CampaignPlan(
        campaign=campaign.id,
        flows=flows,
        missions=missions,
        replicates=fields.replicates,
        attempts=attempts,
        comparisons=pairs,
        alpha=fields.alpha,
        power=POWER,
        rate=rate,
        detectable_difference=(
            detectable_difference(missions, fields.replicates, rate=rate, alpha=alpha, power=POWER)
            if reachable
            else None
        ),
        mde=wanted,
        missions_needed=None if wanted is None else missions_needed(wanted, deviation, alpha=alpha, power=POWER),
        replicates_needed=(
            replicates_needed(wanted, missions, rate=rate, alpha=alpha, power=POWER)
            if wanted is not None and reachable
            else None
        ),
        seconds=seconds,
        tokens=tokens,
        cost=cost,
        currency=fields.currency if campaign.document.price else None,
    )


def difference(text: str) -> float:
    """Parse a difference of pass rates: `5pt`, `5%` or `0.05`."""
    found = _DIFFERENCE.fullmatch(text.strip())
    value = float(found[1]) / (100 if found[2] else 1) if found else 0.0
    if not 0 < value < 1:
        raise UsageError(f"{text[:40]!r} is not a difference of pass rates", op="campaign", fix_hints=["write 5pt"])
    return value
