"""The results of a campaign, as its bundle stores them and as reports show them."""

from __future__ import annotations

from typing import Final

import msgspec

from proofbox.agents.health.counters import StrategyHealth
from proofbox.core.documents import stored
from proofbox.core.results import Document, ErrorBody
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.statistics import Comparison, Distribution, LossBounds, PassRate

SCHEMA: Final = "proofbox.campaign_results/1"


class Friction(msgspec.Struct, frozen=True, kw_only=True):
    """Signs of trouble in the attempts of a flow."""

    repeated_calls: int
    """Attempts that made the same call three times in succession or more."""
    dead_ends: int
    """Attempts that failed and whose last tool call had failed."""
    tool_failures: int
    """Tool calls that failed."""
    declined: int
    """Tool calls that were declined."""
    model_retries: int
    """Model requests that were retried."""
    attempt_retries: int
    """Attempts that replaced one lost to infrastructure."""
    contradictions: int
    """Contradictions within the agents' events, or between them and what was observed."""


class FlowReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one flow."""

    flow: str
    """The flow's id."""
    strategy: str
    model: str | None
    """The model that the flow names; null: the strategy's own."""
    run: str
    """The flow's run, relative to the campaign's directory."""
    committed: bool
    """Whether its run is committed. Until then, results come from its ledger."""
    planned: int
    """Planned results: one for each replicate of each mission."""
    ended: int
    """Results that are known, including those without a score."""
    rate: PassRate
    """The pass rate. Attempts without a score are excluded."""
    bounds: LossBounds
    """The pass rate with all attempts without a score counted as failed, and as passed."""
    infra: dict[str, int]
    """Attempts lost to infrastructure, by code."""
    unverified: int
    """Attempts that the verifier could not decide on."""
    pass_at_k: dict[str, float]
    """By k: the chance that at least one of k attempts passes, as the mean over missions."""
    pass_hat_k: dict[str, float]
    """By k: the chance that all of k attempts pass (pass^k), as the mean over missions."""
    flaky: tuple[str, ...]
    """Missions that some attempts passed and others failed."""
    seconds: Distribution | None
    """Durations of the agents' turns; null: not measured."""
    tokens: Distribution | None
    """Tokens per attempt, input and output together; null: not measured."""
    cost: Distribution | None
    """Cost per attempt, in the campaign's currency; null: the campaign states no price of the model, or no attempt has
    known tokens."""
    tool_calls: Distribution | None
    """Tool calls per attempt; null: not measured."""
    idle: Distribution | None
    """The share of the turn in which no tool call was running: the agent waited for its model, or did nothing; null:
    not measured."""
    tokens_spent: int
    """Tokens of all attempts, including those that were lost or retried."""
    tokens_unknown: int
    """Attempts whose tokens are unknown, including those that were lost or retried. Their tokens are not part of
    `tokens_spent` and `cost_spent`."""
    cost_spent: float | None
    """Cost of all attempts with known tokens, including those that were lost or retried; null: unknown."""
    friction: Friction
    """Signs of trouble in its attempts."""
    reasons: dict[str, int]
    """Why the attempts ended, by reason."""
    contradicted_claims: int
    """Attempts with a claim that the verifier contradicts."""
    cleanup_failures: dict[str, int]
    """Attempts whose cleanup failed, by code."""


class MissionCell(msgspec.Struct, frozen=True):
    """The scores of one flow at one mission."""

    passed: int
    """The number of attempts that passed."""
    scored: int
    """The number of attempts that passed or failed."""


class MissionRow(msgspec.Struct, frozen=True):
    """The scores of all flows at one mission."""

    mission_id: str
    flows: dict[str, MissionCell]
    """By flow."""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a gate was passed."""

    type: str
    """The kind of gate."""
    flow: str
    """The flow that had to meet it."""
    passed: bool
    detail: str


@stored(SCHEMA, at="BUNDLE/report.json of a campaign")
class CampaignResults(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a campaign: rates with intervals, paired comparisons, gates."""

    schema_version: str = SCHEMA
    campaign: str
    """The campaign's id."""
    sha256: str
    """The registered digest."""
    canary: int | None
    """The number of missions of a canary, which is never publishable; null: the whole campaign."""
    complete: bool
    """Whether every planned result has a score."""
    gates_passed: bool
    """Whether all results are known and all gates were passed."""
    replicates: int
    """Attempts of each flow at each mission."""
    currency: str | None
    """The currency of costs; null: the campaign states no prices."""
    flows: tuple[FlowReport, ...]
    """The results of each flow."""
    comparisons: tuple[Comparison, ...]
    """Paired comparisons of flows, with Holm's correction over all of them."""
    missions: tuple[MissionRow, ...]
    """The scores of each mission."""
    gates: tuple[GateResult, ...]
    """Each gate, for each flow that it applies to."""


class CampaignReport(Document, frozen=True, kw_only=True):
    """The results of a campaign, or its progress. `ok`: all results are known, the gates passed, the evidence holds."""

    schema: str = "proofbox.campaign_report/1"
    out: str
    """The campaign's directory."""
    committed: bool
    """Whether the campaign's bundle is committed."""
    running: bool
    """Whether a process is running the campaign."""
    bundle: str
    """The campaign's bundle."""
    results: CampaignResults
    """The results, or those known so far."""
    findings: tuple[EvidenceFinding, ...] = ()
    health: tuple[StrategyHealth, ...] = ()
    """Of `campaign status`: the health of the flows' strategies on this machine, across runs."""
    error: ErrorBody | None = None

    @property
    def flows(self) -> tuple[FlowReport, ...]:
        return self.results.flows

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return self.results.comparisons

    @property
    def gates(self) -> tuple[GateResult, ...]:
        return self.results.gates
