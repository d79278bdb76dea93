"""Fork an attempt at one of its steps: the files as they were after the step and, if possible, the agent's thread.

The files come from the workspace store on the machine that ran the attempt, which the evidence names. A fork is exact
if the turn ended at that step and the agent's thread was continued. A thread can't be forked within a turn; the fork
then gets the thread as it was before the turn. The agents of suites keep no threads; their forks start a new one.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Unpack, cast

import anyio
from anyio.to_thread import run_sync
from msgspec import UNSET

from proofbox.agents.registry import Registry, installed
from proofbox.agents.strategies import parse_chain
from proofbox.core.clock import Clock
from proofbox.errors import SnapshotUnknown, StepFilesGone
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.adhoc.fork_consent import require_fork_consent
from proofbox.lab.attempt.adhoc.home import home_of
from proofbox.lab.attempt.adhoc.request import AttemptFork, AttemptOptions
from proofbox.lab.attempt.adhoc.run import carry_out, without_thread
from proofbox.lab.attempt.documents import AttemptRecord, FinalSnapshot, ForkedFrom, RunnerRef
from proofbox.lab.attempt.final_tree import final_of
from proofbox.lab.reports.steps import load_attempt, step_of
from proofbox.sandbox.client.signals import interrupting_waits
from proofbox.sandbox.options import PolicyOptions
from proofbox.workspace.workspace import Workspace


def fork_attempt(
    attempt: str | os.PathLike[str],
    step: int,
    workspace: str | os.PathLike[str],
    *,
    prompt: str | None = None,
    trust: bool = False,
    **options: Unpack[AttemptOptions],
) -> AttemptFork:
    """Create a workspace with the files after a step of an attempt, and with a prompt let the agent continue there.

    For example:

        fork = proofbox.fork_attempt("t1", 3, "retry", prompt="now try it without the cache")
        print(fork.fork.exact, fork.attempt.final_message)

    `attempt` is the directory of an attempt's bundle, of a suite or made by hand. Step 0 is its beginning. Strategy,
    settings, provider and policy default to those of the attempt. Raises `StepFilesGone` if this machine does not have
    the files, and `ConsentRequired` if an attempt that was made elsewhere requests more than your own settings give;
    `trust` is that consent.
    """
    run = partial(fork_attempt_async, attempt, step, workspace, prompt=prompt, trust=trust, **options)
    with interrupting_waits():
        return anyio.run(run)


async def fork_attempt_async(
    attempt: str | os.PathLike[str],
    step: int,
    workspace: str | os.PathLike[str],
    *,
    prompt: str | None = None,
    trust: bool = False,
    **options: Unpack[AttemptOptions],
) -> AttemptFork:
    """Like `fork_attempt`, for async programs.

    For example:

        fork = await proofbox.fork_attempt_async("t1", 3, "retry")

    If cancelled while the agent works, it ends the agent and commits the bundle as interrupted.
    """
    source = await run_sync(_Source, Path(attempt))
    if prompt is not None:
        await run_sync(partial(require_fork_consent, source.bundle, options, trust=trust))
    fork = await run_sync(source.fork_at, step, options, options.get("registry") or installed())
    place = Path(workspace)
    made_at = await run_sync(source.write_files, fork.snapshot, place, options.get("clock"))
    if prompt is None:
        return AttemptFork(fork=fork, workspace=made_at, attempt=None)
    made = await carry_out(prompt, place, source.completed(options), fork)
    return AttemptFork(ok=made.ok, fork=made.fork or fork, workspace=made.workspace, attempt=made)


class _Source:
    """The attempt to fork, from its verified bundle."""

    def __init__(self, path: Path) -> None:
        self.bundle = load_attempt(path.resolve())
        self.record = artifacts.read_document(self.bundle, artifacts.ATTEMPT, AttemptRecord)
        self.runner = artifacts.read_document(self.bundle, artifacts.RUNNER, RunnerRef)
        self.strategy = "" if self.runner.runtime is UNSET else self.runner.runtime

    def fork_at(self, number: int, options: AttemptOptions, registry: Registry) -> ForkedFrom:
        """Return where a fork at this step begins: the snapshot, and the last turn of the thread."""
        thread = turn = ""
        if self.record.fork is not None:
            thread, turn = self.record.fork.base_thread, self.record.fork.base_turn
        if number == 0:
            why, snapshot, exact = "the beginning of the attempt", self.files.given, True
        else:
            step = step_of(self.bundle, number)
            snapshot, exact = step.snapshot_after, step.ends_turn
            why = "the turn ended at this step"
            if exact:
                thread, turn = step.thread, step.turn
            else:
                why = "the step is within a turn: files as after the step, thread as before the turn"
        lost = self._no_thread(options, registry) if thread else ""
        fork = ForkedFrom(
            attempt_id=self.record.attempt_id,
            bundle=self.bundle.path,
            step=number,
            snapshot=snapshot,
            exact=exact,
            why=why,
            base_thread=thread,
            base_turn=turn,
        )
        return without_thread(fork, lost) if lost else fork

    def _no_thread(self, options: AttemptOptions, registry: Registry) -> str:
        """Return why the agent's thread cannot be continued; empty if it can."""
        if not self._same_strategy(options):
            return f"the thread belongs to {self.strategy}"
        if not registry.runtime(self.strategy).capabilities.supports_thread_fork:
            return f"{self.strategy} cannot fork a thread"
        return "" if home_of(self.record.attempt_id).is_dir() else "the agent's thread was not kept"

    def _same_strategy(self, options: AttemptOptions) -> bool:
        chosen = options.get("strategies")
        return chosen is None or [each.strategy for each in parse_chain(chosen, "flag").candidates] == [self.strategy]

    @property
    def files(self) -> FinalSnapshot:
        return final_of(self.record)

    def write_files(self, snapshot: str, dest: Path, clock: Clock | None) -> str:
        """Create a workspace with the files of a step; return its path."""
        try:
            with Workspace.from_store(self.files.store, snapshot, dest, track=False, clock=clock) as made:
                return str(made.path)
        except SnapshotUnknown as error:
            raise StepFilesGone(
                f"the files of {self.record.attempt_id} cannot be restored: {error.message}",
                op="attempt fork",
                fix_hints=["fork it on the machine where it ran", f"read what it changed: {self._diff_command}"],
            ) from None

    @property
    def _diff_command(self) -> str:
        return f"proofbox attempt diff {quote(self.bundle.path)}"

    def completed(self, options: AttemptOptions) -> AttemptOptions:
        """Return the options, completed by those of the attempt."""
        used = {} if self.runner.settings is UNSET else self.runner.settings
        settings = used if self._same_strategy(options) else {}
        policy = {**self.record.policy, **{name: value for name, value in options.get("policy", {}).items() if value}}
        chosen: AttemptOptions = {
            **options,
            "strategies": options.get("strategies") or f"{self.strategy}!",
            "settings": {**settings, **options.get("settings", {})},
            "provider": options.get("provider") or self.record.requested.provider,
            "policy": cast(PolicyOptions, policy),
        }
        return chosen
