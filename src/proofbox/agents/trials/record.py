"""The record of a trial: a directory that documents what happened. A trial can be forked from its record.

    trial.json     the complete result, written last; without it, the trial did not finish
    steps.jsonl    every step and every end of a turn, as a hash chain
    events.jsonl   every event of the runtime, as a hash chain
    home/          the agent's own files, such as its threads

Everything except the home is redacted and limited in size. The agent's box sees only the home, not the record.
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
    """The number of lines of the chain."""
    head: str
    """The value of `prev` for the next line; it commits to every byte before it."""


class TrialRecord:
    """The record of a running trial. Its chains are created before the agent starts."""

    def __init__(self, directory: Path, trial: str, workspace: Path, redactor: Redactor) -> None:
        self.directory = _new_directory(directory, workspace)
        self.home = self.directory / "home"
        self.home.mkdir(mode=0o700)
        self._redactor = redactor
        self._chains = {name: ChainWriter(self.directory / f"{name}.jsonl", f"{trial}/{name}") for name in CHAINS}

    def append(self, chain: str, entry: Mapping[str, Any]) -> None:
        """Append an entry to a chain. Raises `IoFailed` when the chain has reached its maximum size."""
        writer = self._chains[chain]
        if writer.count % LOOK_EVERY == LOOK_EVERY - 1 and os.path.getsize(writer.path) > LARGEST_CHAIN:
            raise IoFailed(f"{chain}.jsonl exceeds {LARGEST_CHAIN} bytes", op="record")
        writer.append(self._clean(dict(entry)))

    def ends(self) -> dict[str, ChainEnd]:
        """Close the chains and return the length and head of each."""
        for chain in self._chains.values():
            chain.close()
        return {name: ChainEnd(chain.count, chain.head) for name, chain in self._chains.items()}

    def finish(self, document: msgspec.Struct) -> None:
        data = self._clean(msgspec.to_builtins(document, enc_hook=str))
        write_document(self.directory / "trial.json", msgspec.json.format(msgspec.json.encode(data), indent=1))

    def close(self) -> None:
        self.ends()

    def _clean(self, value: Any) -> Any:
        # Redact texts before truncating them. Members with secret names are redacted in the document as a whole.
        return self._redactor.redact_json(bounded(value, self._redactor))

    def discard(self) -> None:
        """Delete the record: no agent was started, so there is nothing to record."""
        self.close()
        remove_tree(self.directory)


CHAINS = ("events", "steps")


def load_document(directory: Path, kind: type[T], schema: str) -> T:
    """Load the trial.json of a record. Raises `NotFoundError` if it is missing, `CorruptError` if it can't be read."""
    path = directory / "trial.json"
    try:
        data = msgspec.json.decode(read_plain(path, LARGEST_DOCUMENT))
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{directory} is not the record of a finished trial",
            op="record",
            fix_hints=["pass the --out directory of a trial"],
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError(f"can't read {path}: {error}", op="record") from None
    if not isinstance(data, dict) or data.get("schema_version") != schema:
        raise CorruptError(f"{path} has an unknown schema", op="record")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise CorruptError(f"{path}: {error}", op="record") from None


def check_chains(directory: Path, trial: str, ends: Mapping[str, ChainEnd]) -> None:
    """Check that neither chain was changed since the trial ended. Raises `CorruptError` otherwise."""
    for name in CHAINS:
        end = ends[name]
        report = verify_chain(
            directory / f"{name}.jsonl", f"{trial}/{name}", expected_head=end.head, expected_count=end.count
        )
        if not report.ok:
            finding = report.findings[0]
            raise CorruptError(
                f"{name}.jsonl of {directory} was changed after the trial: {finding.message}",
                op="record",
                details={"findings": [found.code for found in report.findings]},
            )


def copy_home(source: Path, dest: Path) -> None:
    """Copy an agent's home for another session; only regular files and directories are copied.

    The agent could write to its home. Reading a pipe would block, and a symbolic link could redirect later writes on
    the host to a path that the agent chose.
    """

    def odd(directory: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
        return [name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]

    for folder, _, _ in os.walk(source):  # find a path that is too deep before the recursive copy does
        if too_far := beyond(os.path.relpath(folder, source)):
            raise UsageError(
                f"can't copy a directory of the agent's home: {too_far}",
                op="fork",
                fix_hints=["fork an earlier trial, or start a new one: proofbox runtime try"],
            )
    shutil.copytree(source, dest, symlinks=True, ignore=odd, dirs_exist_ok=True)


def bounded(value: Any, redactor: Redactor, depth: int = _MAX_DEPTH) -> Any:
    """Return a JSON value that a chain can store: texts redacted, truncated and valid, numbers exact as doubles."""
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
    """Truncate a member name. Names that fit are left to `redact_json`, which keeps redacted names distinct."""
    short, cut = preview(name, TEXT_LIMIT)
    return redactor.preview(name, TEXT_LIMIT)[0] if cut else short


def _new_directory(directory: Path, workspace: Path) -> Path:
    real = directory.resolve()
    if real.is_relative_to(workspace) or workspace.is_relative_to(real):
        raise UsageError(
            f"the record {directory} and the workspace {workspace} overlap",
            op="record",
            fix_hints=["choose an --out directory that the agent can't write to"],
        )
    try:
        real.mkdir(mode=0o755, parents=True, exist_ok=True)
        if any(real.iterdir()):
            raise UsageError(f"{directory} is not empty", op="record", fix_hints=["choose a new directory with --out"])
    except FileExistsError:
        raise UsageError(
            f"{directory} is not a directory", op="record", fix_hints=["choose a new directory with --out"]
        ) from None
    return real
