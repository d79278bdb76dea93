"""The verifier: runs a mission's commands in a fresh box after the agent's process tree is dead.

The commands run on a copy of the agent's final files, made from the sealed snapshot, with three changes:

- Paths that `protect` matches are restored to their original content. These are hooks that interpreters and test
  runners load automatically, and anything that Python would load instead of one of `files`.
- With `take`, only the agent's changes to matching paths are kept.
- `files` are copied over everything. The agent never saw them and cannot have changed them.

The agent's code still runs inside the commands that test it. That code can end the process early or print what a
command is expected to print. A command can require a line of output to detect the first; running the code cannot
detect the second (docs/lab.md describes what to do about it).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from proofbox.core.clock import Clock, SystemClock
from proofbox.core.digest import sha256_hex
from proofbox.core.files.nofollow import opened
from proofbox.core.files.overlaying import OverlayWriter
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import gap, preview, preview_end
from proofbox.errors import SuiteInvalid
from proofbox.evidence.bundle.paths import shown
from proofbox.lab.attempt.reward import Reward, combine_rewards, read_reward
from proofbox.lab.suite.spec import Verify, VerifyCommand
from proofbox.sandbox.contract import ExecResult, Mount
from proofbox.sandbox.options import PolicyOptions
from proofbox.workspace.search.globs import Glob

if TYPE_CHECKING:
    from proofbox.sandbox.service import Sandboxes, Session
    from proofbox.workspace.scanning.stack import Stack
    from proofbox.workspace.store.objects import ObjectStore

KEPT = 16 << 10
LINES, LINE = 10_000, 4096
"""The last lines of the output, and the beginning of each, that are searched for what a command must print."""


class CommandRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One command of the verifier and its result."""

    command: tuple[str, ...]
    passed: bool
    exit_code: int
    timed_out: bool = False
    duration_ms: float
    why: str = ""
    """Why it did not pass."""
    stdout: str = ""
    """Redacted. Only the first and last 16 KiB of a long output are kept, with the number of omitted bytes between."""
    stderr: str = ""
    """Like `stdout`."""
    stdout_sha256: str | UnsetType = UNSET
    """The SHA-256 of its complete stdout; absent if it printed nothing."""
    stderr_sha256: str | UnsetType = UNSET
    """The SHA-256 of its complete stderr; absent if it printed nothing."""


class VerifierResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier's result. `passed` is None if the mission has no commands: then nothing is known."""

    passed: bool | None
    commands: tuple[CommandRun, ...] = ()
    """In order, up to the first that did not pass."""
    put_back: tuple[str, ...] = ()
    """Protected paths that the agent had created or changed, and that were restored."""
    left_out: tuple[str, ...] = ()
    """Paths outside `take` that the agent changed."""
    reward: Reward | None = None
    """The reward that the commands wrote, if the mission uses one."""
    provider: str = ""
    isolation: str = ""
    duration_ms: float = 0.0


class Trees(Protocol):
    """Snapshots that can be written to a directory and compared: a workspace, or a store without one."""

    def export(self, name: str, dest: str | os.PathLike[str]) -> None: ...

    def compare(self, a: str, b: str, how: Callable[[ObjectStore, bytes, bytes], None]) -> None: ...


@contextlib.contextmanager
def lay_out(
    workspace: Trees, given: str, final: str, verify: Verify, files: Path | None, dest: Path
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Create the directory to verify. Yield the paths that were restored, and those that were left out.

    `given` is the snapshot that the agent started from, `final` the one it left.
    """
    # Readers of results need neither a workspace nor the files of test runners.
    from proofbox.lab.attempt.runner_files import COMPILED, OverlaidFiles, Protection
    from proofbox.workspace.timeline.diff import differences
    from proofbox.workspace.timeline.restore import write_file
    from proofbox.workspace.workspace import Workspace

    protection = Protection(verify)
    laid_files = OverlaidFiles(files)
    taken = [Glob(pattern) for pattern in verify.take]
    put_back: list[str] = []
    left_out: list[str] = []

    def undo(store: ObjectStore, old: bytes, new: bytes) -> None:
        undone = []
        for each in differences(store, old, new):
            is_link = each.new is not None and each.new.kind == "symlink"
            if protection.covers(each.path, is_link=is_link) or laid_files.shadowed_by(each.path, is_link=is_link):
                put_back.append(each.path)
            elif protection.by_default and any(glob.matches(each.path) for glob in COMPILED):
                pass  # restored without being reported; Python recompiles it when needed
            elif taken and not any(glob.matches(each.path) for glob in taken):
                left_out.append(each.path)
            else:
                continue
            undone.append(each)
        for each in undone:
            if each.new is not None and each.new.kind != "directory":
                overlaid.remove(each.path)
        for each in undone:
            if each.old is not None and each.old.kind == "directory":
                with overlaid.folder(each.path):
                    pass
            elif each.old is not None:
                with overlaid.place(each.path) as (folder, name):
                    write_file(store, folder, name, each.old)

    overlaid = OverlayWriter(dest)
    with contextlib.ExitStack() as mounted:
        stack: Stack | None = None
        if not isinstance(workspace, Workspace) or workspace.lower is None:
            workspace.export(final, dest)
        else:
            stack = mounted.enter_context(workspace.export_over(final, dest, dest.with_name(f"{dest.name}.layers")))
        workspace.compare(given, final, undo)
        if files is not None:
            overlaid.copy_tree(files)
        if stack is not None:
            stack.give()
        yield tuple(dict.fromkeys(map(shown, put_back))), tuple(dict.fromkeys(map(shown, left_out)))


def lay_beside(verify: Verify, at: Callable[[str], Path], dest: Path) -> dict[str, Path]:
    """Copy the verifier's mounts to `dest`, and create the reward directory. Return box path → directory or file."""
    from proofbox.lab.suite.harbor.task_tree import tree_sha256

    beside = {place: dest / str(number) for number, place in enumerate(verify.mounts)}
    if verify.mounts or verify.reward is not None:
        dest.mkdir()
    for place, path in verify.mounts.items():
        with opened(at(path)) as copy:
            OverlayWriter(dest).put(beside[place].name, copy)
        if place in verify.sha256 and tree_sha256(beside[place]) != verify.sha256[place]:
            raise SuiteInvalid(
                f"{path} has changed since the run was planned",
                op="verify",
                fix_hints=["restore it and resume the run, or start a new run"],
            )
    if verify.reward is not None:
        beside[verify.reward] = dest / "reward"
        beside[verify.reward].mkdir()
    return beside


def check(
    boxes: Sandboxes,
    verify: Verify,
    redactor: Redactor,
    *,
    provider: str | None,
    policy: PolicyOptions,
    beside: Mapping[str, Path] = {},
    clock: Clock | None = None,
) -> VerifierResult:
    """Run the commands on the project of `boxes`, in one fresh box, up to the first that does not pass.

    `beside` are the copies that `lay_beside` made. The recorded output is redacted.

    Raises `SandboxError` if the box fails: then the result is unknown, which is not the same as failed.
    """
    clock = clock or SystemClock()
    if not verify.commands:
        return VerifierResult(passed=None)
    began = clock.monotonic()
    runs: list[CommandRun] = []
    options = policy.copy()
    options["network"] = verify.network
    options["mounts"] = [
        *(options.get("mounts") or ()),
        *(Mount(path, place, writable=True) for place, path in beside.items()),
    ]
    with boxes.start_session(provider=provider, **options) as session:
        for each in verify.commands:
            command = each if isinstance(each, VerifyCommand) else VerifyCommand(run=each)
            left = verify.timeout - (clock.monotonic() - began)
            runs.append(_run(session, command, verify, redactor, max(left, 0.001)))
            if not runs[-1].passed:
                break
        info = session.info
    reward = None if verify.reward is None else read_reward(beside[verify.reward])
    return VerifierResult(
        passed=decided_by(runs, reward),
        reward=reward,
        commands=tuple(runs),
        provider=info.provider,
        isolation=info.isolation.value,
        duration_ms=round((clock.monotonic() - began) * 1000, 3),
    )


def combine_turns(
    results: Sequence[VerifierResult], verifiers: Sequence[Verify], how: Literal["mean", "final"]
) -> VerifierResult:
    """Combine the results of the turns of a mission."""
    if len(results) == 1:
        return results[0]
    runs = tuple(run for each in results for run in each.commands)
    turns = [(each.reward, verify.min_reward) for each, verify in zip(results, verifiers, strict=True)]
    reward = combine_rewards(turns, how) if verifiers[0].reward is not None else None
    return VerifierResult(
        passed=decided_by(runs, reward),
        commands=runs,
        put_back=tuple(dict.fromkeys(path for each in results for path in each.put_back)),
        left_out=tuple(dict.fromkeys(path for each in results for path in each.left_out)),
        reward=reward,
        provider=results[0].provider,
        isolation=results[0].isolation,
        duration_ms=round(sum(each.duration_ms for each in results), 3),
    )


def not_run(verify: Verify) -> VerifierResult:
    """Return the result of a turn that did not begin, because the one before it did not complete."""
    argv = [argv_of(each.run if isinstance(each, VerifyCommand) else each) for each in verify.commands[:1]]
    why = "the turn that it verifies did not begin"
    runs = [CommandRun(command=each, passed=False, exit_code=-1, duration_ms=0.0, why=why) for each in argv]
    return VerifierResult(passed=False, commands=tuple(runs))


def decided_by(runs: Sequence[CommandRun], reward: Reward | None) -> bool | None:
    """Return the result that follows from the commands and the reward; None if there is neither."""
    if not runs:
        return None
    late = any(run.timed_out for run in runs)
    return all(run.passed for run in runs) if reward is None or late else reward.passed


def _run(session: Session, command: VerifyCommand, verify: Verify, redactor: Redactor, timeout: float) -> CommandRun:
    argv = argv_of(command.run)
    result = session.exec(argv, timeout=timeout, env=verify.env)
    why = _why_not(command, result, by_reward=verify.reward is not None)
    return CommandRun(
        command=argv,
        passed=not why,
        exit_code=result.exit_code,
        timed_out=result.timed_out,
        duration_ms=result.duration_ms,
        why=why,
        stdout=_kept(result.stdout_bytes, redactor),
        stderr=_kept(result.stderr_bytes, redactor),
        stdout_sha256=sha256_hex(result.stdout_bytes) if result.stdout_bytes else UNSET,
        stderr_sha256=sha256_hex(result.stderr_bytes) if result.stderr_bytes else UNSET,
    )


def _kept(output: bytes, redactor: Redactor) -> str:
    """Keep both ends of the output: a test runner prints first what it runs and last the results."""
    clean = redactor.redact(output, cut=True).decode("utf-8", "replace").encode()
    if len(clean) <= 2 * KEPT:
        return clean.decode()
    left_out = gap(len(clean) - 2 * KEPT)
    return preview(clean, KEPT)[0] + left_out + preview_end(clean, KEPT)[0]


def _why_not(command: VerifyCommand, result: ExecResult, *, by_reward: bool) -> str:
    if result.timed_out:
        return "it timed out"
    if by_reward:
        return ""
    if result.exit_code != command.exit_code:
        return f"it exited {result.exit_code}, expected {command.exit_code}"
    if command.stdout is not None:
        pattern = re.compile(command.stdout)
        lines = result.stdout.splitlines()[-LINES:]
        if not any(pattern.search(line[:LINE]) for line in lines):
            return f"no line of its output matches {command.stdout}"
    return ""


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the argv of a command in a suite: a line for the shell, or a list of words."""
    return ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
