"""Progress events of a run, for the callback of `run_suite` and for `suite run --jsonl`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from proofbox.core.results import Streamed

EventKind = Literal[
    "preparing",
    "running",
    "stopping",
    "verifying",
    "committing",
    "ended",
    "activity",
    "tokens",
    "lost",
    "waiting",
    "placed",
    "node",
]


class RunStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a run and of every resume. From then on the run can be resumed."""

    run_id: str
    bundle: str
    """The run's directory."""
    attempts: int
    """Planned attempts; a retry adds one."""
    ended: int
    """Attempts that an earlier process ended."""


class SuiteEvent(Streamed, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A change in one attempt of a run."""

    schema: str = "proofbox.suite_event/1"
    run_id: str
    at: str
    """When the event was received from the attempt's worker, in UTC."""
    event: EventKind
    """A state of an attempt (preparing, running, stopping, verifying, committing, ended), activity, tokens, lost, or
    waiting: a rate limit, the delay before a retry, or a full disk prevents it from starting. On a cluster also placed:
    a node got it; and node: a node was admitted, refused or lost."""
    attempt_id: str
    """Empty for `node`, like `mission_id`."""
    mission_id: str
    node: str | UnsetType = UNSET
    """For `placed` and `node`: the name of the node."""
    activity: str | UnsetType = UNSET
    """For `activity`: the agent's current action."""
    tokens: int | UnsetType = UNSET
    """For `tokens`: tokens used so far."""
    claimed: str | UnsetType = UNSET
    """For `ended`, like the members below up to `strategy`: the agent's claim."""
    verified: str | UnsetType = UNSET
    infra: str | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET
    strategy: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    """For `lost`: why the worker could not end the attempt. For `waiting`: for what, and until when. For `node`:
    whether it was admitted, refused or lost, and why."""
    until: str | UnsetType = UNSET
    """For `waiting`: until when, if known."""


OnSuiteEvent = Callable[[RunStarted | SuiteEvent], None]
