"""`run_command`. Environments differ in where commands run: in a session, in a box made for them, or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from proofbox.core.digest import sha256_hex
from proofbox.sandbox.contract import ExecResult, Isolation
from proofbox.sandbox.options import ExecOptions
from proofbox.workspace.tools.contract import OUTPUT_LIMIT, RunCommand
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.results import CommandResult


class CommandTools(FileTools, ABC):
    """The file tools, and the tool that runs a command."""

    def _run_command(self, request: RunCommand) -> CommandResult:
        argv = command_argv(request.command)
        options: ExecOptions = {
            "cwd": request.cwd,
            "timeout": request.timeout,
            "env": request.env,
            "stdin": request.stdin,
            "max_output": OUTPUT_LIMIT,
        }
        return _result(argv, request.cwd, self._exec(argv, options), self._tree.host or "")

    @abstractmethod
    def _exec(self, argv: Sequence[str], options: ExecOptions) -> ExecResult:
        """Run a command where this environment runs commands."""


def command_argv(command: str | Sequence[str]) -> list[str]:
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


def _result(argv: Sequence[str], cwd: str, done: ExecResult, project: str) -> CommandResult:
    return CommandResult(
        command=tuple(argv),
        cwd=cwd,
        exit_code=done.exit_code,
        stdout=done.stdout,
        stderr=done.stderr,
        timed_out=done.timed_out,
        truncated=done.truncated.stdout or done.truncated.stderr,
        duration_ms=done.duration_ms,
        provider=done.provider,
        isolation=done.isolation.value,
        stdout_sha256=sha256_hex(done.stdout_bytes),
        stderr_sha256=sha256_hex(done.stderr_bytes),
        background=done.background,
        reach=_reach(done, project),
    )


def _reach(done: ExecResult, project: str) -> tuple[str, ...]:
    """Return what the command could affect that a rollback does not undo."""
    if done.isolation is Isolation.NONE:
        return ("host", "network")
    found = ["network"] if done.policy.network != "none" else []
    if any(mount.writable and not mount.host.is_relative_to(project) for mount in done.policy.mounts):
        found.append("mounts")
    return tuple(found)
