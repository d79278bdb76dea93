"""What decides whether a mission was done: its commands, in a fresh box, after the agent is gone.

They run over a copy of the agent's final files that is made from the sealed snapshot, in which three things differ:

- What `protect` names is as it was given: hooks that interpreters and test runners load by themselves are put back,
  and whatever Python would load in place of one of `files`.
- With `take`, of what the agent changed only that is there.
- `files` lie over everything. The agent never saw them, and can't have changed them.

The agent's code still runs inside the commands that test it. Such code can end the process early, or print what a
command is expected to print; the first is why a command may have to say something at its end, and the second can't be
caught by running it (docs/lab.md says what to do about it).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from proofbox.core.clock import Clock, SystemClock
from proofbox.core.digest import sha256_hex
from proofbox.core.files.nofollow import opened
from proofbox.core.files.overlaying import OverlayWriter
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import gap, preview, preview_end
from proofbox.errors import SuiteInvalid
from proofbox.evidence.bundle.paths import shown
from proofbox.lab.attempt.reward import Reward, read_reward
from proofbox.lab.attempt.runner_files import COMPILED, Protection, imported_as
from proofbox.lab.suite.harbor.task_tree import tree_sha256
from proofbox.lab.suite.spec import Verify, VerifyCommand
from proofbox.sandbox.box_handle import PolicyOptions
from proofbox.sandbox.contract import ExecResult, Mount
from proofbox.sandbox.service import Sandboxes, Session
from proofbox.workspace.search.globs import Glob
from proofbox.workspace.store.objects import ObjectStore
from proofbox.workspace.timeline.diff import differences
from proofbox.workspace.timeline.restore import write_file
from proofbox.workspace.workspace import Workspace

KEPT = 16 << 10
LINES, LINE = 10_000, 4096
"""How much of its output is looked at for what a command must print: the last lines, and each one's beginning."""


class CommandRun(msgspec.Struct, frozen=True, kw_only=True):
    """One command of the verifier and what came of it."""

    command: tuple[str, ...]
    passed: bool
    exit_code: int
    timed_out: bool
    duration_ms: float
    why: str = ""
    """Why it did not pass."""
    stdout: str
    """Redacted. Of a long one the first and the last 16 KiB; between them stands how many bytes were left out."""
    stderr: str
    """The same of its stderr."""
    stdout_sha256: str
    stderr_sha256: str


class VerifierResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the verifier found. `passed` is None where the mission has no commands: then nothing is known."""

    passed: bool | None
    commands: tuple[CommandRun, ...] = ()
    """In their order, up to the first that did not pass."""
    put_back: tuple[str, ...] = ()
    """Protected paths that the agent had planted or changed."""
    left_out: tuple[str, ...] = ()
    """What it changed outside `take`."""
    reward: Reward | None = None
    """What the commands left as a number, where the mission says that this decides."""
    provider: str = ""
    isolation: str = ""
    duration_ms: float = 0.0


def lay_out(
    workspace: Workspace, given: str, final: str, verify: Verify, files: Path | None, dest: Path
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Make the directory that is verified; what was put back in it, and what was left out.

    `given` is the snapshot that the agent began with, `final` the one it left.
    """
    protection = Protection(verify)
    laid = _Laid(files)
    taken = [Glob(pattern) for pattern in verify.take]
    put_back: list[str] = []
    left_out: list[str] = []

    def undo(store: ObjectStore, old: bytes, new: bytes) -> None:
        undone = []
        for each in differences(store, old, new):
            is_link = each.new is not None and each.new.kind == "symlink"
            if protection.covers(each.path, is_link=is_link) or laid.shadowed_by(each.path, is_link=is_link):
                put_back.append(each.path)
            elif protection.by_default and any(glob.matches(each.path) for glob in COMPILED):
                pass  # undone as well, and made anew when it is needed
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

    workspace.export(final, dest)
    overlaid = OverlayWriter(dest)
    workspace.compare(given, final, undo)
    if files is not None:
        overlaid.lay(files)
    return tuple(dict.fromkeys(map(shown, put_back))), tuple(dict.fromkeys(map(shown, left_out)))


class _Laid:
    """What lies over the agent's files: Python must load nothing in its place."""

    def __init__(self, files: Path | None) -> None:
        self._paths = frozenset() if files is None else frozenset(str(p.relative_to(files)) for p in files.rglob("*"))
        self._modules = {imported_as(path, is_link=False) for path in self._paths} - {None}

    def shadowed_by(self, path: str, *, is_link: bool) -> bool:
        return path not in self._paths and imported_as(path, is_link=is_link) in self._modules


def lay_beside(verify: Verify, at: Callable[[str], Path], dest: Path) -> dict[str, Path]:
    """Copies of what the verifier's box has besides the workspace, made below `dest`: place → directory or file."""
    beside = {place: dest / str(number) for number, place in enumerate(verify.mounts)}
    if verify.mounts or verify.reward is not None:
        dest.mkdir()
    for place, path in verify.mounts.items():
        with opened(at(path)) as copy:
            OverlayWriter(dest).put(beside[place].name, copy)
        if place in verify.sha256 and tree_sha256(beside[place]) != verify.sha256[place]:
            raise SuiteInvalid(
                f"{path} is not what it was when the run was planned",
                op="verify",
                fix_hints=["put it back and resume the run, or begin another"],
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
    """Run the commands over the project of `boxes`, in one fresh box, up to the first that does not pass.

    `beside` are the copies that `lay_beside` made. What is kept of the commands' output is redacted.

    Raises `SandboxError` where the box fails: then nothing is known, which is not the same as failed.
    """
    clock = clock or SystemClock()
    if not verify.commands:
        return VerifierResult(passed=None)
    began = clock.monotonic()
    runs: list[CommandRun] = []
    asked = policy.copy()
    asked["network"] = verify.network
    asked["mounts"] = [
        *(asked.get("mounts") or ()),
        *(Mount(path, place, writable=True) for place, path in beside.items()),
    ]
    with boxes.start_session(provider=provider, **asked) as session:
        for each in verify.commands:
            command = each if isinstance(each, VerifyCommand) else VerifyCommand(run=each)
            left = verify.timeout - (clock.monotonic() - began)
            runs.append(_run(session, command, verify, redactor, max(left, 0.001)))
            if not runs[-1].passed:
                break
        info = session.info
    reward = None if verify.reward is None else read_reward(beside[verify.reward])
    late = any(run.timed_out for run in runs)
    return VerifierResult(
        passed=all(run.passed for run in runs) if reward is None or late else reward.passed,
        reward=reward,
        commands=tuple(runs),
        provider=info.provider,
        isolation=info.isolation.value,
        duration_ms=round((clock.monotonic() - began) * 1000, 3),
    )


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
        stdout_sha256=sha256_hex(result.stdout_bytes),
        stderr_sha256=sha256_hex(result.stderr_bytes),
    )


def _kept(output: bytes, redactor: Redactor) -> str:
    """A test runner says first what it runs, and last what came of it: both ends are kept."""
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
        return f"it exited {result.exit_code}, and {command.exit_code} is expected"
    if command.stdout is not None:
        pattern = re.compile(command.stdout)
        lines = result.stdout.splitlines()[-LINES:]
        if not any(pattern.search(line[:LINE]) for line in lines):
            return f"no line of its output matches {command.stdout}"
    return ""


def argv_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """A command as a suite writes it: a line for the shell, or the words themselves."""
    return ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)
