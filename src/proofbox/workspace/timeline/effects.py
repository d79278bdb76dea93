"""The effect log: what was done to a workspace and what was denied, as a hash chain outside the agent's reach.

A tool call is logged as an intent before it starts, and as an outcome after it ends; denied calls are logged as well.
An intent without an outcome is a call that was interrupted. The log is `effects.jsonl` in the workspace's home below
the state directory, a chain (`core/chain.py`) named `effects:<workspace id>`. Every snapshot records the head of the
chain, so `workspace verify` detects edits, and truncation before the latest snapshot; it does not detect entries that
were removed after it. Several processes may write: each entry is appended under a lock and synced before the release.

Each entry is an `Effect`. Known secret values are redacted, and bytes that are not text are escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from proofbox.core.chain import ChainWriter, origin, verify_chain
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import stored
from proofbox.core.files.locks import locked
from proofbox.core.ids import IdSource
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.text import printable
from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.model import EffectsHead, Snapshot

if TYPE_CHECKING:
    from proofbox.core.redaction.redactor import Redactor

SCHEMA = "proofbox.effect/1"
FILE = "effects.jsonl"
TARGET_LIMIT = 4096
_TAIL = 1 << 16

Phase = Literal["intent", "outcome", "denied", "note"]


@stored(SCHEMA, at="STATE/workspaces/WORKSPACE/effects.jsonl, one per line")
class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action in a workspace, or its denial. The intent and the outcome of a call have the same `id`."""

    id: str
    """The call's id, shared by its intent and its outcome."""
    time: str
    phase: Phase
    """`intent`: about to start. `outcome`: ended. `denied`: not executed. `note`: about the log itself."""
    kind: str
    """The tool's name, or `network`, `rollback`, `repair`."""
    target: str = ""
    """The path, or the command in shell syntax."""
    cwd: str = ""
    arguments_sha256: str = ""
    """SHA-256 of the call's arguments as canonical JSON."""
    decision: Literal["allow", "deny", ""] = ""
    """Empty if no decision was needed, or if the intent contains it."""
    rule: str = ""
    exit_code: int | None = None
    duration_ms: float | None = None
    stdout_sha256: str = ""
    stderr_sha256: str = ""
    reach: tuple[str, ...] = ()
    """What a command could affect outside the workspace: `host`, `network`, `mounts`."""
    snapshot_before: str = ""
    snapshot_after: str = ""
    error: str = ""
    """The error code if the call failed."""
    note: str = ""
    """Further details for people: what a rollback restored, what a repair removed."""
    schema: str = SCHEMA
    seq: int = -1
    """Sequence number in the log, assigned by the chain."""


class EffectLog:
    """The log of one workspace. Cheap to create; keeps no file open."""

    def __init__(
        self,
        home: Path,
        workspace_id: str,
        *,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self.path = home / FILE
        self._name = chain_name(workspace_id)
        self._lock = home / "effects.lock"
        self._clock: Clock = clock or SystemClock()
        self._ids = ids or IdSource(self._clock)
        self._redactor = redactor
        self._environment = dict(os.environ) if redactor is None else {}

    def new_id(self) -> str:
        return self._ids.new_id("eff")

    def append(self, *, id: str, phase: Phase, kind: str, **facts: Any) -> EffectsHead:
        """Append one entry. Raises CorruptError if the end of the log is damaged."""
        made = Effect(id=id, time=isoformat(self._clock.now()), phase=phase, kind=kind, **facts)
        with locked(self._lock), ChainWriter(self.path, self._name) as writer:
            if writer.repaired is not None:
                writer.append(self._plain(self._repair(writer.repaired.size, writer.repaired.sha256)))
            writer.append(self._plain(made))
            return EffectsHead(writer.count, writer.head)

    def entries(self, since: int = 0) -> Iterator[Effect]:
        return read_effects(self.path, since)

    def _repair(self, size: int, digest: str) -> Effect:
        note = f"removed {size} bytes of an incomplete entry, sha256 {digest}"
        return Effect(id=self.new_id(), time=isoformat(self._clock.now()), phase="note", kind="repair", note=note)

    def _plain(self, effect: Effect) -> dict[str, Any]:
        if self._redactor is None:
            from proofbox.core.redaction.redactor import Redactor  # most commands only read the log

            self._redactor = Redactor.from_environment(self._environment)
        plain: dict[str, Any] = msgspec.to_builtins(effect)
        plain.pop("seq", None)
        plain["schema"] = SCHEMA
        for name in ("target", "cwd", "rule", "note"):
            if name in plain:
                plain[name] = printable(self._redactor.redact(plain[name]))[:TARGET_LIMIT]
        return plain


def chain_name(workspace_id: str) -> str:
    return f"effects:{workspace_id}"


def read_effects(path: Path, since: int = 0) -> Iterator[Effect]:
    """Yield the complete entries, oldest first. Does not check the chain: see `problems`."""
    decode = msgspec.json.Decoder(Effect).decode
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                if number < since or not line.endswith(b"\n"):
                    continue
                try:
                    yield decode(line)
                except msgspec.DecodeError as error:
                    raise WorkspaceCorrupt(
                        f"entry {number} of the effect log is damaged: {error}", op="effects"
                    ) from None
    except FileNotFoundError:
        return


def current_head(home: Path, workspace_id: str) -> EffectsHead | None:
    """Return the head that a snapshot records, read from the log's last line, or None if there is no log."""
    try:
        fd = os.open(home / FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(fd).st_size
        want = _TAIL
        while True:
            tail = os.pread(fd, min(want, size), max(0, size - want))
            whole = tail[: tail.rfind(b"\n") + 1].removesuffix(b"\n")
            if b"\n" in whole or want >= size:
                break
            want *= 4
    finally:
        os.close(fd)
    last = whole.rpartition(b"\n")[2]
    if not last:
        return EffectsHead(0, origin(chain_name(workspace_id)))
    try:
        return EffectsHead(parse_json(last, _Seq).seq + 1, sha256_hex(last))
    except msgspec.MsgspecError as error:
        raise WorkspaceCorrupt(f"the effect log's last entry is damaged: {error}", op="effects") from None


class _Seq(msgspec.Struct, frozen=True):
    seq: int


def problems(home: Path, workspace_id: str, snapshots: Iterable[Snapshot]) -> list[str]:
    """Return the problems of the log: a broken chain, or heads that differ from those recorded in snapshots."""
    anchors = {(each.effects_head.count, each.effects_head.digest) for each in snapshots if each.effects_head}
    path = home / FILE
    if not path.exists():
        return [f"the effect log is missing: a snapshot records {count} entries" for count, _ in sorted(anchors)[-1:]]
    report = verify_chain(path, chain_name(workspace_id))
    found = [
        f"the effect log, line {each.line}: {each.message}" for each in report.findings if each.code != "torn_tail"
    ]
    counts = {count for count, _ in anchors}
    heads = _heads(path, counts)
    heads[0] = origin(chain_name(workspace_id))
    for count, digest in sorted(anchors):
        if count not in heads:
            found.append(f"the effect log was truncated: it has {report.count} entries, but a snapshot records {count}")
        elif heads[count] != digest:
            found.append(f"the first {count} entries of the effect log are not those that a snapshot records")
    return found


def irreversible(home: Path, target: Snapshot) -> tuple[str, ...]:
    """Return effects since a snapshot that a rollback does not undo: commands that could reach beyond the files."""
    begin = target.effects_head.count if target.effects_head else 0
    under_way: dict[str, Effect] = {}
    listed: dict[str, str] = {}
    for each in read_effects(home / FILE, begin):
        if each.kind != "run_command":
            continue
        if each.phase == "intent":
            under_way[each.id] = each
        elif each.phase == "outcome":
            intent = under_way.pop(each.id, None)
            done_by_then = intent is None and each.snapshot_after == target.id
            if each.reach and not done_by_then:
                listed[each.id] = f"{each.target} (could reach: {', '.join(each.reach)})"
    for id, each in under_way.items():
        listed[id] = f"{each.target} (outcome unknown)"
    return tuple(words for _, words in sorted(listed.items()))


def _heads(path: Path, counts: set[int]) -> dict[int, str]:
    """Return the head after each of these entry counts, for counts that the log reaches."""
    found = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number in counts and line.endswith(b"\n"):
                found[number] = sha256_hex(line.removesuffix(b"\n"))
    return found
