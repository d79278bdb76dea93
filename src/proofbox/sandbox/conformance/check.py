"""Checks, the claims that they require, and their outcomes.

A check is a plain function that takes a `CheckContext`. It returns if the provider behaves as claimed and raises
otherwise: `Failed` (through `expect`) if it does not, `NotApplicable` if the provider makes no such claim, `NotChecked`
if this machine or this box lacks what the check needs. Any other exception also counts as a failure.
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
SLOW = 5
"""How much longer checks may take with a virtual machine, which may be emulated and has to boot."""
SCHEMA = "proofbox.conformance/1"


class Failed(Exception):
    """The provider does not behave as claimed; the message says what was observed."""


class NotApplicable(Exception):
    """The provider does not claim to do this; the message gives its reason."""


class NotChecked(Exception):
    """The check could not be run here; the message says what was missing."""


class Need(msgspec.Struct, frozen=True):
    """A claim that a provider must make for a check to apply.

    `gap` is the key of the claim in `Enforcement.gaps`.
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
# Hiding the host's processes is not a separate claim: a visible process would expose the host's files through
# /proc/PID/root, so a provider that claims to hide the files must hide the processes as well.
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
    """One check, which every provider runs."""

    name: str
    subject: str
    needs: Need
    run: Callable[[CheckContext], None]
    seconds: float = LIMIT
    """Time limit; a check that exceeds it has failed, so that it never hangs its caller."""


class CheckResult(msgspec.Struct, frozen=True):
    check: str
    """SUBJECT.NAME, such as `network.tcp`."""
    subject: str
    """The kind of claim that the check tests, such as `network`."""
    outcome: Outcome
    """`not_applicable`: the provider does not claim it. `not_checked`: the check could not be run here."""
    detail: str = ""
    """What was observed on failure; otherwise why the check does not apply or could not be run."""
    duration_ms: float = 0.0


class Measured:
    """The results of a set of checks; base class of reports."""

    __slots__ = ()
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return not self.of("failed")

    def of(self, outcome: Outcome) -> list[CheckResult]:
        return [result for result in self.results if result.outcome == outcome]


@stored(SCHEMA, at="STATE/doctor.json, of each provider")
class Report(Measured, msgspec.Struct, frozen=True):
    """Measured behaviour of one provider, on this machine, as this user. `msgspec.to_builtins` makes it JSON-ready."""

    provider: str
    isolation: Isolation
    uid: int
    enforcement: Enforcement
    results: tuple[CheckResult, ...]
    schema_version: str = SCHEMA


class ProviderChecks:
    """The checks of one module, collected as they are defined."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[ProviderCheck] = []

    def check(
        self, needs: Need = NOTHING, *, seconds: float = LIMIT
    ) -> Callable[[Callable[[CheckContext], None]], Callable[[CheckContext], None]]:
        """Return a decorator that adds a function as a check, named after the function."""

        def add(run: Callable[[CheckContext], None]) -> Callable[[CheckContext], None]:
            self.add(run.__name__.replace("_", "-"), needs, run, seconds=seconds)
            return run

        return add

    def add(self, name: str, needs: Need, run: Callable[[CheckContext], None], *, seconds: float = LIMIT) -> None:
        self.checks.append(ProviderCheck(f"{self.name}.{name}", self.name, needs, run, seconds))


def expect(condition: object, detail: str) -> None:
    if not condition:
        raise Failed(detail)
