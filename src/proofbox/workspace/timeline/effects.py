"""What was done to a workspace, and what was not allowed: a hash-chained log beside its history, out of reach.

Before a tool acts, its intent is in the log; after it, its outcome; a denial is there too. An intent without an outcome
is a call that was under way when everything ended. The log is `effects.jsonl` in the workspace's own directory of the
state directory, a chain (`core/chain.py`) called `effects:<workspace id>`. Every snapshot holds the chain's head of its
moment, so that an edit, and a cut before the latest snapshot, are found by `workspace verify`; what was cut off after
it is not. Several processes may write: each entry is appended under a lock, and on the disk when that is released.

Each entry is an `Effect`. Values that are known secrets are not written down; what is not text is escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from proofbox.core.chain import ChainWriter, origin, verify_chain
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import stored
from proofbox.core.files.locks import locked
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import printable
from proofbox.errors import WorkspaceCorrupt
from proofbox.workspace.model import EffectsHead, Snapshot

SCHEMA = "proofbox.effect/1"
FILE = "effects.jsonl"
TARGET_LIMIT = 4096
_TAIL = 1 << 16

Phase = Literal["intent", "outcome", "denied", "note"]


@stored(SCHEMA, at="STATE/workspaces/WORKSPACE/effects.jsonl, one a line")
class Effect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done in a workspace, or denied. `id` is the call's: its intent and its outcome share it."""

    id: str
    """The call's: its intent and its outcome share it."""
    time: str
    phase: Phase
    """`intent`: about to be done. `outcome`: it has ended. `denied`: it was not done. `note`: of the log itself."""
    kind: str
    """The tool's name; or `network`, `rollback`, `repair`."""
    target: str = ""
    """The path, or the command as a shell would read it."""
    cwd: str = ""
    arguments_sha256: str = ""
    """Of the call's arguments as canonical JSON."""
    decision: Literal["allow", "deny", ""] = ""
    """Empty: nothing had to be decided, or it stands in the intent."""
    rule: str = ""
    exit_code: int | None = None
    duration_ms: float | None = None
    stdout_sha256: str = ""
    stderr_sha256: str = ""
    reach: tuple[str, ...] = ()
    """What a command could touch besides the workspace: `host`, `network`, `mounts`."""
    snapshot_before: str = ""
    snapshot_after: str = ""
    error: str = ""
    """The code of what it ended in."""
    note: str = ""
    """More, for people: what a rollback put back, what a repair cut off."""
    schema: str = SCHEMA
    seq: int = -1
    """Its place in the log; the chain's."""


class EffectLog:
    """One workspace's log. Cheap to make; holds nothing open."""

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
        self._redactor = redactor or Redactor.from_environment(os.environ)

    def new_id(self) -> str:
        return self._ids.new_id("eff")

    def append(self, *, id: str, phase: Phase, kind: str, **facts: Any) -> EffectsHead:
        """Add one entry. Raises CorruptError when the log is not what a log ends in."""
        made = Effect(id=id, time=isoformat(self._clock.now()), phase=phase, kind=kind, **facts)
        with locked(self._lock), ChainWriter(self.path, self._name) as writer:
            if writer.repaired is not None:
                writer.append(self._plain(self._repair(writer.repaired.size, writer.repaired.sha256)))
            writer.append(self._plain(made))
            return EffectsHead(writer.count, writer.head)

    def entries(self, since: int = 0) -> Iterator[Effect]:
        return read_effects(self.path, since)

    def _repair(self, size: int, digest: str) -> Effect:
        note = f"{size} bytes of an entry that never finished were removed, sha256 {digest}"
        return Effect(id=self.new_id(), time=isoformat(self._clock.now()), phase="note", kind="repair", note=note)

    def _plain(self, effect: Effect) -> dict[str, Any]:
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
    """The entries, oldest first, as far as they are whole. Whether the chain holds is for `problems` to say."""
    decode = msgspec.json.Decoder(Effect).decode
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                if number < since or not line.endswith(b"\n"):
                    continue
                try:
                    yield decode(line)
                except msgspec.MsgspecError as error:
                    raise WorkspaceCorrupt(
                        f"entry {number} of the effect log is damaged: {error}", op="effects"
                    ) from None
    except FileNotFoundError:
        return


def current_head(home: Path, workspace_id: str) -> EffectsHead | None:
    """The head that a snapshot anchors, from the log's last line alone; None while there is no log."""
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
        return EffectsHead(msgspec.json.decode(last, type=_Seq).seq + 1, sha256_hex(last))
    except msgspec.MsgspecError as error:
        raise WorkspaceCorrupt(f"the effect log's last entry is damaged: {error}", op="effects") from None


class _Seq(msgspec.Struct, frozen=True):
    seq: int


def problems(home: Path, workspace_id: str, snapshots: Iterable[Snapshot]) -> list[str]:
    """What is wrong with the log: its chain, and its heads against those that snapshots anchor."""
    anchors = {(each.effects_head.count, each.effects_head.digest) for each in snapshots if each.effects_head}
    path = home / FILE
    if not path.exists():
        return [f"the effect log is gone: a snapshot anchors {count} entries" for count, _ in sorted(anchors)[-1:]]
    report = verify_chain(path, chain_name(workspace_id))
    found = [
        f"the effect log, line {each.line}: {each.message}" for each in report.findings if each.code != "torn_tail"
    ]
    due = dict(sorted(anchors))
    heads = _heads(path, set(due))
    heads[0] = origin(chain_name(workspace_id))
    for count, digest in sorted(anchors):
        if count not in heads:
            found.append(f"the effect log was cut off: it has {report.count} entries, and a snapshot anchors {count}")
        elif heads[count] != digest:
            found.append(f"the effect log is not the one whose first {count} entries a snapshot anchors")
    return found


def irreversible(home: Path, target: Snapshot) -> tuple[str, ...]:
    """What was done since a snapshot that putting its files back does not undo: commands that could reach further."""
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
        listed[id] = f"{each.target} (how it ended is not known)"
    return tuple(words for _, words in sorted(listed.items()))


def _heads(path: Path, counts: set[int]) -> dict[int, str]:
    """The head after each of these many entries, as far as there are that many."""
    found = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if number in counts and line.endswith(b"\n"):
                found[number] = sha256_hex(line.removesuffix(b"\n"))
    return found
