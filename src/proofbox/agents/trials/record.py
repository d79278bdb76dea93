"""The record of a trial: a directory that says what happened, and from which it can be taken up again.

    trial.json     the whole outcome, written last: a directory without it is of a trial that never ended
    steps.jsonl    every step and every end of a turn, a hash chain
    events.jsonl   every event that the runtime told, a hash chain
    home/          what the agent keeps for itself: its threads

Everything but the home is redacted and bounded. The agent's box can't see the directory, but for its own home.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from proofbox.core.chain import ChainWriter, verify_chain
from proofbox.core.files.atomic import write_document
from proofbox.core.files.plain import read_plain
from proofbox.core.files.removal import remove_tree
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview
from proofbox.errors import CorruptError, IoFailed, NotFoundError, UsageError
from proofbox.workspace.scanning.scanner import beyond

TEXT_LIMIT = 64 << 10
LARGEST_CHAIN = 1 << 30
LARGEST_DOCUMENT = 1 << 26
LOOK_EVERY = 256
_MAX_INTEGER = 2**53 - 1
_MAX_DEPTH = 64
T = TypeVar("T", bound=msgspec.Struct)


class ChainEnd(msgspec.Struct, frozen=True):
    count: int
    """How many lines the chain has."""
    head: str
    """What a further line would state as `prev`: it commits to every byte before."""


class TrialRecord:
    """The directory while the trial runs. The chains are there before the agent is."""

    def __init__(self, directory: Path, trial: str, workspace: Path, redactor: Redactor) -> None:
        self.directory = _new_directory(directory, workspace)
        self.home = self.directory / "home"
        self.home.mkdir(mode=0o700)
        self._redactor = redactor
        self._chains = {name: ChainWriter(self.directory / f"{name}.jsonl", f"{trial}/{name}") for name in CHAINS}

    def append(self, chain: str, entry: Mapping[str, Any]) -> None:
        """Raises `IoFailed` when the record is as large as one may be: who floods it is stopped."""
        writer = self._chains[chain]
        if writer.count % LOOK_EVERY == LOOK_EVERY - 1 and os.path.getsize(writer.path) > LARGEST_CHAIN:
            raise IoFailed(f"{chain}.jsonl is over {LARGEST_CHAIN} bytes", op="record")
        writer.append(self._clean(dict(entry)))

    def ends(self) -> dict[str, ChainEnd]:
        """Close the chains; how long each one is, and its head."""
        for chain in self._chains.values():
            chain.close()
        return {name: ChainEnd(chain.count, chain.head) for name, chain in self._chains.items()}

    def finish(self, document: msgspec.Struct) -> None:
        data = self._clean(msgspec.to_builtins(document, enc_hook=str))
        write_document(self.directory / "trial.json", msgspec.json.format(msgspec.json.encode(data), indent=1))

    def close(self) -> None:
        self.ends()

    def _clean(self, value: Any) -> Any:
        # Texts are redacted before they are cut; members whose names say that they are secrets go with the whole.
        return self._redactor.redact_json(bounded(value, self._redactor))

    def discard(self) -> None:
        """No agent was ever started: there is nothing to record."""
        self.close()
        remove_tree(self.directory)


CHAINS = ("events", "steps")


def load_document(directory: Path, kind: type[T], schema: str) -> T:
    """The trial.json of a record. Raises `NotFoundError`, or `CorruptError` for one that can't be read."""
    path = directory / "trial.json"
    try:
        data = msgspec.json.decode(read_plain(path, LARGEST_DOCUMENT))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{directory} is no record of a trial that has ended", op="record", fix_hints=["name the --out of a trial"]
        ) from None
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise CorruptError(f"{path} can't be read: {error}", op="record") from None
    if not isinstance(data, dict) or data.get("schema_version") != schema:
        raise CorruptError(f"{path} has a schema that is not known here", op="record")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{path}: {error}", op="record") from None


def check_chains(directory: Path, trial: str, ends: Mapping[str, ChainEnd]) -> None:
    """That both logs are what they were when the trial ended."""
    for name in CHAINS:
        end = ends[name]
        report = verify_chain(
            directory / f"{name}.jsonl", f"{trial}/{name}", expected_head=end.head, expected_count=end.count
        )
        if not report.ok:
            finding = report.findings[0]
            raise CorruptError(
                f"{name}.jsonl of {directory} is not what it was: {finding.message}",
                op="record",
                details={"findings": [found.code for found in report.findings]},
            )


def copy_home(source: Path, dest: Path) -> None:
    """An agent's home for another session, of files and directories alone.

    The agent could write there. Reading a pipe would hang us, and a link would lead whoever writes here next, on the
    host, wherever the agent wanted.
    """

    def odd(directory: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
        return [name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]

    for folder, _, _ in os.walk(source):  # which recurses, as the copy does: not deeper than this lets it
        if too_far := beyond(os.path.relpath(folder, source)):
            raise UsageError(
                f"a directory in the home that the agent left can't be copied: {too_far}",
                op="fork",
                fix_hints=["fork an earlier trial, or begin a new one: proofbox runtime try"],
            )
    shutil.copytree(source, dest, symlinks=True, ignore=odd, dirs_exist_ok=True)


def bounded(value: Any, redactor: Redactor, depth: int = _MAX_DEPTH) -> Any:
    """A JSON value that any chain can hold: texts redacted, cut and made valid, numbers no double would change."""
    if isinstance(value, str):
        return redactor.preview(value, TEXT_LIMIT)[0]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INTEGER else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {_name(str(name), redactor): bounded(member, redactor, depth - 1) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [bounded(member, redactor, depth - 1) for member in value]
    return redactor.preview(str(value), TEXT_LIMIT)[0]


def _name(name: str, redactor: Redactor) -> str:
    """One that is not cut is left to `redact_json`, which keeps two names apart that become one."""
    short, cut = preview(name, TEXT_LIMIT)
    return redactor.preview(name, TEXT_LIMIT)[0] if cut else short


def _new_directory(directory: Path, workspace: Path) -> Path:
    real = directory.resolve()
    if real.is_relative_to(workspace) or workspace.is_relative_to(real):
        raise UsageError(
            f"{directory} and the workspace {workspace} lie within each other",
            op="record",
            fix_hints=["keep the record where the agent can't write: --out elsewhere"],
        )
    try:
        real.mkdir(mode=0o755, parents=True, exist_ok=True)
        if any(real.iterdir()):
            raise UsageError(f"{directory} is not empty", op="record", fix_hints=["name a new directory: --out"])
    except FileExistsError:
        raise UsageError(
            f"{directory} is no directory", op="record", fix_hints=["name a new directory: --out"]
        ) from None
    return real
