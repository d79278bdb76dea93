"""What a check is, what it needs, and what may come of it.

A check is a plain function over a `CheckContext`. It returns when the provider kept its word, and raises otherwise:
`Failed` by way of `expect`, `NotApplicable` when the provider never gave that word, `NotChecked` when this machine or
this box lacks what is needed to find out. Any other exception is a failure too: an error that was not expected is a
finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from proofbox.core.documents import stored
from proofbox.sandbox.contract import Enforcement, Isolation

if TYPE_CHECKING:
    from proofbox.sandbox.conformance.context import CheckContext

Outcome = Literal["passed", "failed", "not_applicable", "not_checked"]
LIMIT = 60.0
SCHEMA = "proofbox.conformance/1"


class Failed(Exception):
    """The provider did not keep its word; the message says what was seen."""


class NotApplicable(Exception):
    """The provider does not say that it does this; the message is its own reason."""


class NotChecked(Exception):
    """It could not be found out here; the message says what was missing."""


class Need(msgspec.Struct, frozen=True):
    """What a provider must say it enforces for a check to mean anything.

    `gap` is the name it has in `Enforcement.gaps`.
    """

    gap: str
    met: Callable[[Enforcement], bool]

    def unmet(self, provider: str, enforcement: Enforcement) -> str | None:
        if self.met(enforcement):
            return None
        reason = enforcement.gaps.get(self.gap)
        return f"{provider} does not enforce {self.gap}" + (f": {reason}" if reason else "")


NOTHING = Need("anything", lambda _: True)
NETWORK = Need("network none", lambda e: e.network_none)
FILESYSTEM = Need("filesystem", lambda e: e.filesystem)
# There is no claim of its own for processes: whatever hides the host's files hides its processes too, or it would not
# hide the files (/proc/PID/root), so that the same word is held against it.
PROCESSES = FILESYSTEM
READ_ONLY = Need("access ro", lambda e: e.access_ro)
OVERLAY = Need("access overlay", lambda e: e.access_overlay)
DISK = Need("disk", lambda e: e.disk)
MOUNTS = Need("mounts", lambda e: e.mounts)
HIDDEN = Need("hidden", lambda e: e.hidden)
MEMORY = Need("memory", lambda e: e.memory)
CPUS = Need("cpu", lambda e: e.cpus)
PIDS = Need("pids", lambda e: e.pids)
DETACHED = Need("detached", lambda e: e.detached)
OWN_STREAMS = Need("own streams", lambda e: e.own_streams)
AGENT_HIDDEN = Need("agent hidden", lambda e: e.agent_hidden)


class ProviderCheck(msgspec.Struct, frozen=True):
    """One thing that is checked of every provider."""

    name: str
    subject: str
    needs: Need
    run: Callable[[CheckContext], None]
    seconds: float = LIMIT
    """The check is given up after this long, as failed: it never hangs its caller."""


class CheckResult(msgspec.Struct, frozen=True):
    check: str
    """SUBJECT.NAME, such as `network.tcp`."""
    subject: str
    """What kind of promise it is about."""
    outcome: Outcome
    """`not_applicable`: nobody promised it. `not_checked`: it could not be found out here."""
    detail: str = ""
    """What was seen when it failed; else why it does not apply or could not be checked."""
    duration_ms: float = 0.0


class Measured:
    """A report of results, whatever was checked."""

    __slots__ = ()
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return not self.of("failed")

    def of(self, outcome: Outcome) -> list[CheckResult]:
        return [result for result in self.results if result.outcome == outcome]


@stored(SCHEMA, at="STATE/doctor.json, of each provider")
class Report(Measured, msgspec.Struct, frozen=True):
    """What was measured of one provider, on this machine, as this user. JSON-ready by `msgspec.to_builtins`."""

    provider: str
    isolation: Isolation
    uid: int
    enforcement: Enforcement
    results: tuple[CheckResult, ...]
    schema_version: str = SCHEMA


class ProviderChecks:
    """The checks of one module, gathered as they are defined."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[ProviderCheck] = []

    def check(
        self, needs: Need = NOTHING, *, seconds: float = LIMIT
    ) -> Callable[[Callable[[CheckContext], None]], Callable[[CheckContext], None]]:
        """The function's name is the check's name, its docstring is for the reader."""

        def add(run: Callable[[CheckContext], None]) -> Callable[[CheckContext], None]:
            self.add(run.__name__.replace("_", "-"), needs, run, seconds=seconds)
            return run

        return add

    def add(self, name: str, needs: Need, run: Callable[[CheckContext], None], *, seconds: float = LIMIT) -> None:
        self.checks.append(ProviderCheck(f"{self.name}.{name}", self.name, needs, run, seconds))


def expect(condition: object, detail: str) -> None:
    if not condition:
        raise Failed(detail)
