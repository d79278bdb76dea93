"""`BoxHandle`: what a client needs to run commands in a box, including one that another process started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proofbox.core.files.programs import locate_program
from proofbox.errors import CommandNotFound, PathRefused, ProofboxError
from proofbox.sandbox.contract import Box, Diagnostic, ExecResult, Isolation, Policy
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.paths import resolve_cwd

if TYPE_CHECKING:
    from proofbox.sandbox.client.calls import ActiveCall


class BoxHandle(msgspec.Struct, frozen=True):
    provider: str
    isolation: Isolation
    policy: Policy
    project: Path
    guest_project: str
    """The project's path in the box, and the default working directory of commands."""
    environment: Mapping[str, str]
    """The base environment of every command."""
    places: tuple[tuple[Path, str], ...]
    """Host paths that are visible in the box, with their paths in the box. The first match counts."""
    memory_group: Path | None = None
    """The control group that counts kills at the memory limit; null if there is no such group."""
    diagnostics: Mapping[str, Diagnostic] = {}
    forwards: tuple[str, ...] = ()
    """Names of the client's variables that every command gets, with their values at that time."""

    @classmethod
    def of(
        cls,
        box: Box,
        project: Path,
        *,
        provider: str,
        diagnostics: Mapping[str, Diagnostic],
        forwards: tuple[str, ...],
        more: Mapping[str, str],
    ) -> BoxHandle:
        # A mount of the project itself sets the project's path in the box.
        mounted_at = [mount.guest for mount in box.policy.mounts if mount.host == project]
        return cls(
            provider=provider,
            isolation=box.isolation,
            policy=box.policy,
            project=project,
            guest_project=mounted_at[0] if mounted_at else box.project,
            environment={**box.environment, **more},
            places=(*((project, guest) for guest in mounted_at[:1]), *box.places),
            memory_group=box.memory_group,
            diagnostics=diagnostics,
            forwards=forwards,
        )

    def oom_kills(self) -> int:
        return cgroups.oom_kills(self.memory_group)

    def result(self, call: ActiveCall, oom_kills_before: int) -> ExecResult:
        try:
            return call.result(
                provider=self.provider,
                isolation=self.isolation,
                policy=self.policy,
                diagnostics=self.diagnostics,
                oom_killed=self.memory_group is not None and self.oom_kills() > oom_kills_before,
            )
        except CommandNotFound as error:
            raise self._with_host_hint(error) from None

    def add_diagnostics(self, error: ProofboxError) -> ProofboxError:
        """Add the provider and its diagnostics to an error from the box."""
        error.details.setdefault("provider", self.provider)
        error.details.setdefault("diagnostics", msgspec.to_builtins(dict(self.diagnostics)))
        return error

    def guest_path(self, host: Path) -> str | None:
        for place, guest in self.places:
            if host.is_relative_to(place):
                return str(Path(guest) / host.relative_to(place))
        return None

    def guest_cwd(self, cwd: str | os.PathLike[str] | None) -> str:
        """Return the path in the box of a working directory on the host; None is the project."""
        if cwd is None:
            return self.guest_project
        host = resolve_cwd(self.project, cwd)
        guest = self.guest_path(host)
        if guest is None:
            raise PathRefused(f"cwd {host} is not visible in the box", op="exec", details={"cwd": str(host)})
        return guest

    def _with_host_hint(self, error: CommandNotFound) -> CommandNotFound:
        """Add a hint if the command exists on the host: a missing mount is the most common problem of a first run."""
        found = locate_program(str(error.details.get("command", "")))
        if found is None or self.guest_path(Path(found)) is not None:
            return error
        folder = Path(found).parent.parent
        return CommandNotFound(
            error.message,
            op=error.op,
            fix_hints=[
                f"on the host it is {found}, outside the box: add --mount {folder}:{folder}:ro",
                *error.fix_hints,
            ],
            details=error.details,
        )
