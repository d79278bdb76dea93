"""Helpers for the checks: an environment with an empty root, and assertions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from proofbox.errors import CapabilityDenied, ProofboxError
from proofbox.sandbox.conformance.check import Failed, NotApplicable, expect
from proofbox.workspace.tools.contract import ToolEnvironment
from proofbox.workspace.tools.results import Listing, SearchResult
from proofbox.workspace.tools.tree import Access

E = TypeVar("E", bound=ProofboxError)


class ToolFixture(NamedTuple):
    """An environment with an empty root, and the root's path on the host, if any."""

    env: ToolEnvironment
    host: str | None = None


Check = Callable[[ToolFixture], None]
CHECKS: dict[str, Check] = {}
GUARDED: dict[str, Check] = {}


class SecretGuard:
    """The guard for guarded checks: denies reading any `secret`, and changing anything in `fixed`."""

    def check(self, access: Access, path: str) -> None:
        names = path.split("/")
        if "secret" in names or (access in ("write", "delete") and names[0] == "fixed"):
            raise CapabilityDenied(f"{access} {path}", op="fence", details={"rule": "fence", "kind": f"fs.{access}"})

    def visible(self, path: str) -> bool:
        return "secret" not in path.split("/")


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def guarded(function: Check) -> Check:
    """Register a check that runs under `SecretGuard`."""
    GUARDED[function.__name__.replace("_", "-")] = function
    return function


def refused(kind: type[E], attempt: Callable[..., object], *args: Any, **options: Any) -> E:
    try:
        given = attempt(*args, **options)
    except kind as error:
        expect(error.message and "\x1b" not in error.message, f"{error.code} says {error.message!r}")
        return error
    except ProofboxError as error:
        raise Failed(f"{args!r:.200}: expected {kind.code}, got {error.code} ({error.message})") from None
    raise Failed(f"{args!r:.200}: expected {kind.code}, got {given!r:.200}")


def same(given: object, due: object) -> None:
    expect(given == due, f"expected {due!r:.500}, got {given!r:.500}")


def paths_of(listing: Listing) -> list[str]:
    return [entry.path for entry in listing.entries]


def found_in(result: SearchResult) -> list[tuple[str, int]]:
    return [(match.path, match.line) for match in result.matches]


def host_of(fixture: ToolFixture) -> str:
    if fixture.host is None:
        raise NotApplicable("it has no directory on the host")
    return fixture.host
