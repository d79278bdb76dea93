"""Fork a recorded trial at one of its steps: the files as they were after the step, and the agent's thread.

A fork is exact if the turn ended at that step. A thread can't be forked within a turn; in that case the fork gets the
thread as it was before the turn, and the new record says so (`fork.exact` is false).
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import AgentSession
from proofbox.agents.events import Listener
from proofbox.agents.registry import Registry
from proofbox.agents.trials.record import check_chains, load_document
from proofbox.agents.trials.result import SCHEMA, ForkedFrom, Trial, TrialRequest
from proofbox.agents.trials.trial import RunningTrial
from proofbox.config import consent
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import NotFoundError
from proofbox.workspace.workspace import Workspace


async def fork_trial(
    source: Path,
    step: int,
    request: TrialRequest,
    *,
    trust: bool = False,
    registry: Registry | None = None,
    on_event: Listener | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> Trial:
    """Continue from a step of a recorded trial in a new workspace at `request.workspace`.

    Strategy, settings, provider and policy default to those of the trial. Step 0 is the beginning of the trial. Raises
    `ConsentRequired` if a record that was made elsewhere, or changed since, requests more than the user's own settings
    give; `trust` is that consent.
    """
    before, fork = await run_sync(_load, source, step)
    await run_sync(_require_consent, source, before, request, trust)
    request = msgspec.structs.replace(
        request,
        strategies=request.strategies or f"{before.strategy}!",
        flags=before.settings | request.flags,
        provider=request.provider or before.provider,
        policy=before.policy | {name: value for name, value in request.policy.items() if value},
        required=(*request.required, *(["thread_fork"] if fork.base_thread else [])),
    )
    await run_sync(_fork_workspace, Path(before.workspace), fork.snapshot, request.workspace)

    async def open_thread(session: AgentSession) -> str:
        if not fork.base_thread:
            return await session.start_thread()
        return await session.fork_thread(fork.base_thread, fork.base_turn)

    return await RunningTrial(request, registry, on_event, clock, ids, fork).run(open_thread)


def _require_consent(source: Path, before: Trial, request: TrialRequest, trust: bool) -> None:
    record = source.resolve()
    asked = consent.recorded_requests(
        None if request.provider else before.provider,
        {name: value for name, value in before.policy.items() if not request.policy.get(name)},
        before.strategy,
        {name: value for name, value in before.settings.items() if name not in request.flags},
    )
    if trust:
        consent.agree(record, asked)
    consent.require(record, asked, command=f"proofbox runtime fork {quote(str(source))} --trust …")


def _load(directory: Path, step: int) -> tuple[Trial, ForkedFrom]:
    record = directory.resolve()
    trial = load_document(record, Trial, SCHEMA)
    check_chains(record, trial.trial, trial.anchors)
    return trial, _fork_point(trial, record, step)


def _fork_point(trial: Trial, record: Path, number: int) -> ForkedFrom:
    """Return where a fork at this step begins: the snapshot, and the last turn of the thread."""
    base_thread = trial.fork.base_thread if trial.fork is not None else ""
    base_turn = trial.fork.base_turn if trial.fork is not None else ""
    if number == 0:
        why, snapshot, exact = "the beginning of the trial", trial.snapshot_before, True
    else:
        step = next((each for each in trial.steps if each.n == number), None)
        if step is None:
            raise NotFoundError(
                f"the trial has no step {number}", op="fork", fix_hints=[f"choose a step from 0 to {len(trial.steps)}"]
            )
        snapshot, exact = step.snapshot_after, step.ends_turn
        why = "the turn ended at this step"
        if exact:
            base_thread, base_turn = step.thread, step.turn
        else:
            why = "the step is within a turn: files as after the step, thread as before the turn"
    return ForkedFrom(
        trial=trial.trial,
        record=str(record),
        step=number,
        snapshot=snapshot,
        exact=exact,
        why=why,
        base_thread=base_thread,
        base_turn=base_turn,
    )


def _fork_workspace(source: Path, snapshot: str, dest: Path) -> None:
    with Workspace.open(source, track=False) as workspace:
        workspace.fork(snapshot, dest).close()
