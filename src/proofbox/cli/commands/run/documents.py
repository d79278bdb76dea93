"""The documents that `exec`, `up`, `probe` and `session` print with `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from proofbox.cli.output import Document
from proofbox.sandbox.contract import Diagnostic, ExecResult, Isolation, Policy, ResourceUsage, Truncated
from proofbox.sandbox.sessions import SessionInfo

if TYPE_CHECKING:
    from proofbox.cli.commands.run.exec import DeniedHosts


class DeniedHost(msgspec.Struct, frozen=True):
    host: str
    port: int
    """The port."""
    count: int
    """Number of requests."""
    reason: str


class ExecDocument(Document, frozen=True, kw_only=True, omit_defaults=False):
    schema: str = "proofbox.exec/1"
    provider: str
    isolation: Isolation
    exit_code: int
    stdout: str
    stderr: str
    stdout_b64: str | None
    """The exact bytes of stdout, if they are not UTF-8; null otherwise."""
    stderr_b64: str | None
    timed_out: bool
    signal: int | None
    truncated: Truncated
    duration_ms: float
    usage: ResourceUsage
    policy: Policy
    background: bool
    survivors: bool
    denied_hosts: tuple[DeniedHost, ...] | None
    """The hosts that the allowlist denied, at most 20. Null in a session: see its `network.jsonl`."""
    diagnostics: dict[str, Diagnostic]

    @classmethod
    def of(cls, result: ExecResult, denied: DeniedHosts | None) -> ExecDocument:
        stdout, stdout_b64 = _text(result.stdout_bytes)
        stderr, stderr_b64 = _text(result.stderr_bytes)
        return cls(
            provider=result.provider,
            isolation=result.isolation,
            exit_code=result.exit_code,
            stdout=stdout,
            stderr=stderr,
            stdout_b64=stdout_b64,
            stderr_b64=stderr_b64,
            timed_out=result.timed_out,
            signal=result.signal,
            truncated=result.truncated,
            duration_ms=result.duration_ms,
            usage=result.usage,
            policy=result.policy,
            background=result.background,
            survivors=result.survivors,
            denied_hosts=None if denied is None else denied.facts(),
            diagnostics=dict(result.diagnostics),
        )


class ProbeDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.probe/1"
    provider: str
    isolation: Isolation
    was_fallback: bool
    fallback_from: str | None
    diagnostics: dict[str, Diagnostic]


class SessionDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.session/1"
    session: SessionInfo


class SessionsDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.sessions/1"
    sessions: tuple[SessionInfo, ...]
    """All detached sessions of this user, including ended ones until they are pruned."""


class PrunedDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.pruned/1"
    stopped: tuple[str, ...]
    """Running sessions that `--all` stopped."""
    removed: tuple[str, ...]
    """Sessions that were removed."""


def _text(data: bytes) -> tuple[str, str | None]:
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        from base64 import b64encode

        return data.decode("utf-8", "replace"), b64encode(data).decode("ascii")
