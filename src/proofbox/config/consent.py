"""Consent to what received material asks for beyond the user's own settings.

A suite or a task may come from a stranger. Requests that widen a box (no sandbox, the network, variables, an image,
files outside its own directory) take effect only after the user has consented to them, as with a project's own
configuration. Consent covers one path and one list of requests: a new request needs consent again, any other change
does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proofbox.config.settings import Settings, load_users, toml_value
from proofbox.core.dirs import state_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.files.locks import locked
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.text import printable
from proofbox.errors import ConsentRequired, CorruptError, RequestInvalid

CONSENTS = "proofbox.consents/1"
SHOWN = 20
_COMPARED = ("network", "access", "cpus", "memory", "pids", "disk", "image", "runtime")
"""Options of a box that can be compared with the user's settings. All others count as requests."""


class Widening(msgspec.Struct, frozen=True, order=True):
    """One request for more than the user's own settings give a box."""

    asks_for: str
    """The request as it is written: `network = "full"`."""
    mission: str
    """The mission that asks for it."""


@stored(CONSENTS, at="STATE/consents.json")
class _Consents(msgspec.Struct, frozen=True):
    """The requests that the user has consented to, and the runs that were planned with them."""

    paths: dict[str, tuple[Widening, ...]] = {}
    """By the path of a suite or a directory of tasks: the requests it may make."""
    plans: dict[str, str] = {}
    """By the id of a run that is not committed yet: the digest of its plan."""
    runs: dict[str, str] = {}
    """By the id of a run that was committed here: the digest of its index."""
    schema_version: str = CONSENTS


def recorded_requests(
    provider: str | None, policy: Mapping[str, Any], runtime: str, settings: Mapping[str, Any]
) -> tuple[Widening, ...]:
    """Return what a recorded attempt requests beyond the user's own settings, for an attempt that continues it.

    `policy` are the options of its box, and `settings` those of its agent's runtime, which name programs and endpoints.
    """
    given = {name: value for name, value in policy.items() if value is not None and value not in ((), [], {})}
    compared = {name: given.pop(name) for name in _COMPARED if name in given}
    try:
        asked = msgspec.convert({**compared, "provider": provider}, Settings).widening(load_users())
    except (msgspec.ValidationError, RequestInvalid) as error:
        raise CorruptError(f"the recorded options of the box are malformed: {error}", op="consent") from None
    asked += [f"{name} = {toml_value(value)}" for name, value in given.items()]
    asked += [f"{name} = {toml_value(value)} of {runtime}" for name, value in settings.items()]
    return tuple(sorted({Widening(each, runtime) for each in asked}))


def require(path: Path, asked: Iterable[Widening], *, command: str) -> None:
    """Raise `ConsentRequired` unless the user has consented to all of this for `path`.

    `command` is the command line that records the consent.
    """
    wanted = tuple(sorted(set(asked)))
    agreed = frozenset(_read().paths.get(str(path), ()))
    if agreed.issuperset(wanted):
        return
    lines = describe(wanted)
    more = f", and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    raise ConsentRequired(
        f"{path} asks for {'; '.join(lines[:SHOWN])}{more}, and you have not consented to it",
        op="consent",
        fix_hints=[f"read it, and if you agree: {command}"],
        details={"path": str(path), "widenings": msgspec.to_builtins(wanted)},
    )


def agree(path: Path, asked: Iterable[Widening]) -> None:
    """Record the user's consent to exactly these requests of `path`, in place of any earlier consent."""
    wanted = tuple(sorted(set(asked)))
    with _changing() as consents:
        if consents.paths.get(str(path)) != wanted:
            consents.paths[str(path)] = wanted


def remember_plan(run_id: str, digest: str) -> None:
    """Record a plan that was made here, with the user's consent if needed."""
    with _changing() as consents:
        consents.plans[run_id] = digest


def knows_plan(run_id: str, digest: str) -> bool:
    """Return whether this plan of the run, and no other, was recorded."""
    return _read().plans.get(run_id) == digest


def remember_run(run_id: str, index_sha256: str) -> None:
    """Record a run that was committed here, in place of its plan."""
    with _changing() as consents:
        consents.plans.pop(run_id, None)
        consents.runs[run_id] = index_sha256


def knows_run(run_id: str, index_sha256: str | None = None) -> bool:
    """Return whether a run of this id was committed here, and with `index_sha256`, whether it is unchanged."""
    known = _read().runs.get(run_id)
    return known is not None and index_sha256 in (None, known)


def forget_run(run_id: str) -> None:
    """Drop the record of a run that was removed."""
    found = _read()
    if run_id in found.plans or run_id in found.runs:
        with _changing() as consents:
            consents.plans.pop(run_id, None)
            consents.runs.pop(run_id, None)


def describe(asked: Sequence[Widening]) -> list[str]:
    """Describe requests for a person, one line each, with the missions that make them."""
    by_request: dict[str, list[str]] = {}
    for each in asked:
        by_request.setdefault(each.asks_for, []).append(each.mission)
    return [printable(f"{request} ({_missions(missions)})") for request, missions in sorted(by_request.items())]


def _missions(ids: Sequence[str]) -> str:
    if len(ids) > 3:
        return f"missions {', '.join(ids[:3])} and {len(ids) - 3} more"
    return f"mission{'s' if len(ids) > 1 else ''} {', '.join(ids)}"


def _file() -> Path:
    return state_dir() / "consents.json"


def _read() -> _Consents:
    """Read the record. A malformed file means no consent. Raises VersionUnknown."""
    try:
        data = _file().read_bytes()
        require_version(data, CONSENTS, _file())
        return parse_json(data, _Consents)
    except (OSError, msgspec.DecodeError):
        return _Consents(paths={}, plans={}, runs={})


@contextlib.contextmanager
def _changing() -> Iterator[_Consents]:
    """Lock the record for a change, and write it at the end of the block."""
    with locked(state_dir() / ".consents.lock"):
        consents = _read()
        yield consents
        write_document(_file(), msgspec.json.encode(consents))
