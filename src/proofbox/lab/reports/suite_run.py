"""The results of a run and its attempts, as the SDK returns and commands print them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from proofbox.core.results import Document, ErrorBody
from proofbox.lab.attempt.result import RESULT_MEMBERS
from proofbox.lab.attempt_metrics import node_of
from proofbox.lab.reports.finding import EvidenceFinding
from proofbox.lab.reports.results import RunResults
from proofbox.lab.reports.totals import Totals
from proofbox.lab.run.ledger import Attempt


class AttemptFacts(msgspec.Struct, frozen=True):
    """An attempt of a run: the agent's claim, the verifier's result, and an infrastructure failure, if any."""

    attempt_id: str
    mission_id: str
    replicate: int
    parent: str | None
    state: str
    """planned, claimed, preparing, running, stopping, verifying, committing or ended."""
    strategy: str | None
    claimed: str | None
    verified: str | None
    infra: str | None
    reason: str | None
    bundle: str
    node: str | None = None
    """The node of a cluster that ran it; null if it ran on this machine, or is not committed."""

    @classmethod
    def of(cls, attempt: Attempt, bundle: Path) -> AttemptFacts:
        return cls.known(attempt, str(bundle), None if attempt.result is None else node_of(bundle))

    @classmethod
    def known(cls, attempt: Attempt, bundle: str, node: str | None) -> AttemptFacts:
        result = attempt.result
        return cls(
            attempt.id,
            attempt.mission,
            attempt.replicate,
            attempt.parent,
            attempt.phase if attempt.state == "claimed" else attempt.state,
            **(dict.fromkeys(RESULT_MEMBERS) if result is None else result.members),
            bundle=bundle,
            node=node,
        )


def facts_of(found: RunResults, run_dir: Path) -> tuple[AttemptFacts, ...]:
    """Return the facts of all attempts of a run."""
    if not found.committed:
        return tuple(AttemptFacts.of(each, run_dir / each.path) for each in found.attempts)
    paths = ((each, each.path) for each in found.attempts)
    return tuple(AttemptFacts.known(each, os.path.join(run_dir, path), found.nodes.get(path)) for each, path in paths)


class SuiteRun(Document, frozen=True, kw_only=True):
    """The results of a run, or its progress. `ok`: every mission was verified as done, and the evidence is valid."""

    schema: str = "proofbox.suite_run/1"
    run_id: str
    suite: str
    committed: bool
    bundle: str
    attempts: tuple[AttemptFacts, ...]
    """From the bundles of a committed run, where an attempt with invalid evidence has no result; before that, from the
    ledger."""
    totals: Totals
    findings: tuple[EvidenceFinding, ...] = ()
    """For a committed run, the problems in its evidence, and where the ledger contradicts it."""
    not_comparable: Mapping[str, tuple[str, ...]] = {}
    """Missions whose results are not comparable with those of the system they were written for, and why."""
    skipped: Mapping[str, str] = {}
    """Strategies that came before the one that ran, and why they could not be used."""
    isolation: str = "process"
    """`process`: one agent process per attempt. `shared`: one for all, so that attempts could reach each other."""
    verifiable: bool = True
    """Whether any mission defines when it is done, by commands or by what is expected of the agent."""
    refused: int = 0
    """How many bundles of nodes were refused, because their attempts had been taken over. They do not count."""
    refused_bundles: str | None = None
    """The directory with these bundles; null if nothing was refused."""
    conducted: bool = False
    """Whether a process is conducting the run."""
    error: ErrorBody | None = None

    @property
    def final(self) -> tuple[AttemptFacts, ...]:
        """The last attempt at each replicate of each mission, which determines its result."""
        parents = {each.parent for each in self.attempts}
        return tuple(each for each in self.attempts if each.attempt_id not in parents)


class Explanation(Document, frozen=True, kw_only=True):
    """What happened in an attempt, in plain words."""

    schema: str = "proofbox.attempt_explain/1"
    attempt: AttemptFacts
    evidence_problem: str | None
    """Why its evidence is invalid, so that nothing here can be relied on; null: it is valid, or still being written."""
    lines: tuple[str, ...]
    """The explanation: failures first, then the events in order. Lines written by the agent are marked."""
