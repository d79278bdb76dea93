"""Checks an attempt's logs against each other and against its report, reading each log line by line.

An attempt may have a hundred thousand calls, and a forged one as many as fit into a log. The checks therefore keep
counts and digests, and of events that must match each other at most `MAX_TRACKED`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from proofbox.agents.event_log import completed
from proofbox.agents.events import Usage
from proofbox.agents.usage import MAX_THREADS, TokenCount
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.verify.check import MAX_FINDINGS
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.documents import ToolCallEntry
from proofbox.lab.attempt.trace import BODIES, CALLS, DIFFS, EVENTS, EXCHANGES, OUTPUTS, PREVIEW, STEPS, call_figures

Found = tuple[str, str, str]
MAX_TRACKED = 250_000
"""Maximum number of turns and of commands in one log that are matched with their ends."""
_SHOWN = 100
_TURNS = frozenset({"turn_started", "turn_ended"})
_COMMANDS = frozenset({"tool_call", "file_change", "item_started"})


def same(path: str, what: str, one: Any, other: Any) -> tuple[Found, ...]:
    """Return a finding if two documents state different values."""
    if one == other:
        return ()
    return (("contradiction", path, f"{what}: {str(one)[:_SHOWN]} here, {str(other)[:_SHOWN]} elsewhere"),)


def check_trace(bundle: Bundle, report: dict[str, Any], id: str, *, whole: bool, shared: bool) -> Iterator[Found]:
    """Check calls, events, steps and the report's figures against each other.

    With `whole`, every command needs a recorded end. `shared`: the attempt's process also ran other attempts.
    """
    calls = _Calls(bundle, id)
    figures = msgspec.to_builtins(call_figures(calls))
    yield from calls.findings
    yield from (each for name in figures for each in same(CALLS, name, figures[name], report[name]))
    tokens = _Tokens(shared=shared)
    events = map(tokens.add, completed(bundle.read_log(EVENTS)))
    yield from _events(events, calls, report, whole=whole)
    yield from tokens.findings(report)
    yield from _steps(bundle, calls.recorded.count)
    yield from _exchanges(bundle, id)


class _Calls:
    """The entries of the log of calls, checked as they are read."""

    def __init__(self, bundle: Bundle, attempt: str) -> None:
        self._bundle = bundle
        self._attempt = attempt
        self.recorded = _Sequence()
        self.turns = _Sequence()
        self.findings: list[Found] = []

    def __iter__(self) -> Iterator[ToolCallEntry]:
        for call in artifacts.read_log(self._bundle, CALLS):
            self.recorded.add(call["call"])
            self.turns.add(call.get("turn", ""), of=_key_of_thread(call))
            if len(self.findings) < MAX_FINDINGS:
                self.findings += self._check(call)
            yield msgspec.convert(call, ToolCallEntry)

    def _check(self, call: dict[str, Any]) -> Iterator[Found]:
        if call["attempt"] != self._attempt:
            yield "trace_foreign", CALLS, "a call names another attempt"
        digest = call.get("output_sha256")
        if digest is None and call.get("output_bytes", 0) > PREVIEW:
            yield "output_missing", CALLS, f"the whole output of {str(call['call'])[:_SHOWN]} is not named"
        if digest is not None and OUTPUTS.format(digest) not in self._bundle.artifacts:
            yield "output_missing", CALLS, f"the whole output of {str(call['call'])[:_SHOWN]} is missing"


class _Tokens:
    """Counts the tokens that events state."""

    def __init__(self, *, shared: bool) -> None:
        self._count = TokenCount(shared=shared)
        self._threads: set[bytes] = set()

    @property
    def too_many(self) -> bool:
        return len(self._threads) > 2 * MAX_THREADS + 2  # of each source, and requests without a thread

    def add(self, event: dict[str, Any]) -> dict[str, Any]:
        """Count an event, and return it."""
        if event["event"] == "usage" and not self.too_many:
            usage = msgspec.convert(event, Usage)
            self._threads.add(_key(usage.source, of=_key_of_many(usage.thread)))
            self._count.add(usage)
        return event

    def findings(self, report: dict[str, Any]) -> Iterator[Found]:
        """Check the report's token counts."""
        if self.too_many:
            yield "trace_too_long", EVENTS, f"usage of more than {MAX_THREADS} threads; the rest is not checked"
            return
        yield from same(artifacts.REPORT, "tokens", report["tokens"], msgspec.to_builtins(self._count.by_source()))
        unstated = (self._count.without_usage, self._count.broken_off)
        reported = (report.get("responses_without_usage", 0), report.get("responses_broken_off", 0))
        yield from same(artifacts.REPORT, "responses of unknown usage", reported, unstated)


class _Sequence:
    """A sequence of ids as its length, its digest and a preview, to compare two of them without keeping them."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.sha256()
        self._preview = ""

    def add(self, id: str, of: bytes = b"") -> None:
        self.count += 1
        self._digest.update(_key(id, of))
        if len(self._preview) < _SHOWN:
            self._preview += f"{', ' if self._preview else ''}{id[:_SHOWN]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sequence) and self._digest.digest() == other._digest.digest()

    def __hash__(self) -> int:
        return hash(self._digest.digest())

    def __str__(self) -> str:
        return f"{self.count}: {self._preview}"


def _events(events: Iterator[dict[str, Any]], calls: _Calls, report: dict[str, Any], *, whole: bool) -> Iterator[Found]:
    recorded, turns_of_calls = _Sequence(), _Sequence()
    turns, commands = _Turns(), _Commands()
    started = messages = tracked = 0
    last: int | None = None
    ordered = True
    for event in events:
        kind, number = event["event"], event["number"]
        # Gaps are allowed, because deltas are numbered but not recorded.
        ordered = ordered and (last is None or number > last)
        last = number
        if kind in _COMMANDS:
            if kind == "tool_call":
                recorded.add(event["item"])
                turns_of_calls.add(event["turn"], of=_key_of_thread(event))
            commands.add(event)
        elif kind in _TURNS:
            started += kind == "turn_started"
            turns.add(event)
        else:
            messages += kind == "message"
            continue
        tracked += 1
        if tracked > MAX_TRACKED and (turns.tracked > MAX_TRACKED or commands.tracked > MAX_TRACKED):
            yield "trace_too_long", EVENTS, f"more than {MAX_TRACKED} turns or commands; the rest is not checked"
            deque(events, maxlen=0)  # its tokens are counted
            return
    yield from same(EVENTS, "tool calls", recorded, calls.recorded)
    yield from same(EVENTS, "sessions, threads and turns of tool calls", turns_of_calls, calls.turns)
    yield from same(EVENTS, "turns", started, report["turns"])
    yield from same(EVENTS, "messages", messages, report["messages"])
    if not ordered:
        yield "events_out_of_order", EVENTS, "an event's number is not greater than the one before"
    yield from turns.findings()
    if whole:
        yield from commands.findings()


class _Turns:
    """Checks that every turn that started ended once."""

    def __init__(self) -> None:
        self._started: dict[bytes, str] = {}
        self._ended: dict[bytes, str | None] = {}
        """Ended turns; with a name if it ended twice."""

    @property
    def tracked(self) -> int:
        return len(self._started) + len(self._ended)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of `_TURNS`."""
        key = _key_of_many(event["turn"])
        if event["event"] == "turn_started":
            self._started.setdefault(key, event["turn"][:_SHOWN])
        else:
            self._ended[key] = event["turn"][:_SHOWN] if key in self._ended else None

    def findings(self) -> Iterator[Found]:
        for name in self._ended.values():
            if name is not None:
                yield "turn_ended_twice", EVENTS, name
        for key, name in self._started.items():
            if key not in self._ended:
                yield "turn_without_end", EVENTS, name


class _Commands:
    """Checks that every command that started has a recorded end, `abandoned` if nothing else is known."""

    def __init__(self) -> None:
        self._open: dict[bytes, str] = {}
        self._ended: set[bytes] = set()

    @property
    def tracked(self) -> int:
        return len(self._open) + len(self._ended)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event of `_COMMANDS`."""
        if event["event"] != "item_started":
            key = _key(event["item"], of=_key_of_many(event["thread"]))
            self._ended.add(key)
            self._open.pop(key, None)
        elif event.get("command"):
            key = _key(event["item"], of=_key_of_many(event["thread"]))
            if key not in self._ended:
                self._open[key] = event["item"][:_SHOWN]

    def findings(self) -> Iterator[Found]:
        return (("call_without_end", EVENTS, item) for item in self._open.values())


def _steps(bundle: Bundle, calls: int) -> Iterator[Found]:
    earlier: dict[str, Any] | None = None
    of_calls = 0
    for entry in artifacts.read_log(bundle, STEPS):
        if "diff_sha256" in entry and DIFFS.format(entry["diff_sha256"]) not in bundle.artifacts:
            yield "diff_missing", STEPS, f"the diff of step {entry['step']['n']} is missing"
        if "step" not in entry:
            continue
        step = entry["step"]
        of_calls += step["kind"] == "tool_call"
        if earlier is not None and step["snapshot_before"] != earlier["snapshot_after"]:
            yield "steps_disconnected", STEPS, f"step {step['n']} does not start where step {earlier['n']} ended"
        earlier = step
    yield from same(STEPS, "steps of tool calls", of_calls, calls)


def _exchanges(bundle: Bundle, attempt: str) -> Iterator[Found]:
    for entry in artifacts.read_log(bundle, EXCHANGES) if EXCHANGES in bundle.artifacts else ():
        if entry["attempt"] != attempt:
            yield "trace_foreign", EXCHANGES, "a model request names another attempt"
        for name in ("request", "response"):
            digest = entry[name]["sha256"]
            if digest is not None and BODIES.format(digest) not in bundle.artifacts:
                yield "body_missing", EXCHANGES, f"the {name} of exchange {entry['number']} is missing"


def _key(text: str, of: bytes = b"") -> bytes:
    """Return a short key for a text of any length, in the thread with the key `of`."""
    return hashlib.blake2b(of + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _key_of_thread(entry: dict[str, Any]) -> bytes:
    """Return a short key for the session and the thread of a call or an event."""
    return _key_of_many(entry.get("session", "")) + _key_of_many(entry.get("thread", ""))


@lru_cache(maxsize=4)
def _key_of_many(text: str) -> bytes:
    """Return a short key for the id of a thread or turn, which many events may inherit from one line of the log.

    A forged id may have megabytes, so it is not hashed again for each of them.
    """
    return _key(text)
