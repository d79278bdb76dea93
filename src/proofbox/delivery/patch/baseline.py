"""What we know to be ours in a repository: the third side of a three-way comparison.

Of every path we ever sent, `settled` is the state in which the repository was last seen to have it from us, and `sent`
are states in pull requests that it has not been seen to have yet. A file that the repository has in one of these states
nobody else has changed. Whatever else it has is not ours to change, or has been changed by someone.

The record is kept in the user's state directory, one for each backend and app, with the text of small files so that a
plan can show what would change. It is a convenience: without it nothing is deleted and nothing overwritten, because
then nothing is known to be ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from proofbox.core.digest import digest_of, sha256_hex
from proofbox.core.dirs import state_dir
from proofbox.core.documents import stored
from proofbox.core.files.atomic import write_document
from proofbox.delivery.client.wire import RepoManifest
from proofbox.errors import CorruptError

SCHEMA = "proofbox.delivery_baseline/1"
MOST_SENT = 16


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file's content and mode. Without a mode, as from an older backend, content alone is compared."""

    sha256: str
    mode: str | None = None

    def same(self, other: FileState | None) -> bool:
        return (
            other is not None
            and self.sha256 == other.sha256
            and (self.mode is None or other.mode is None or self.mode == other.mode)
        )


def same(one: FileState | None, other: FileState | None) -> bool:
    """None is the state of not being there."""
    return other is None if one is None else one.same(other)


class Owned(msgspec.Struct, frozen=True):
    settled: FileState | None = None
    sent: tuple[FileState | None, ...] = ()

    @property
    def latest(self) -> FileState | None:
        return self.sent[-1] if self.sent else self.settled

    def knows(self, state: FileState | None) -> bool:
        return any(same(each, state) for each in (self.settled, *self.sent))

    def seen(self, state: FileState | None) -> Owned:
        """After the repository was seen with `state`."""
        for number, each in enumerate(self.sent):
            if same(each, state) and not same(self.settled, state):
                return Owned(state, self.sent[number + 1 :])
        return self

    def sending(self, state: FileState | None) -> Owned:
        rest = tuple(each for each in self.sent if not same(each, state))
        return Owned(self.settled, (*rest, state)[-MOST_SENT:])


class Baseline(msgspec.Struct, frozen=True):
    """Everything that is ours in one repository, by path."""

    files: dict[str, Owned] = {}

    def observed(self, manifest: RepoManifest) -> Baseline:
        """What is known once this manifest has been seen. A path that we deleted, and that is gone, is ours no more."""
        repo = states(manifest)
        found = {path: owned.seen(repo.get(path)) for path, owned in self.files.items()}
        return Baseline({path: owned for path, owned in found.items() if owned.settled or owned.sent})

    def exported(self, files: Mapping[str, FileState]) -> Baseline:
        return Baseline({path: Owned(state) for path, state in files.items()})

    def proposed(self, changes: Iterable[tuple[str, FileState | None]]) -> Baseline:
        files = dict(self.files)
        for path, state in changes:
            files[path] = files.get(path, Owned()).sending(state)
        return Baseline(files)


def states(manifest: RepoManifest) -> dict[str, FileState]:
    return {file.path: FileState(file.sha256, file.mode) for file in manifest.files}


@stored(SCHEMA, at="STATE/deliveries/REPOSITORY/baseline.json, and BUNDLE/baseline.json of a delivery")
class _Stored(msgspec.Struct, kw_only=True):
    """What of a repository's files came from us, as it is written.

    What is hashed is bytes, so that no two readers can differ on it.
    """

    schema_version: str
    sha256: str
    """Of the bytes of `files`."""
    files: msgspec.Raw
    """By path: `settled`, what the repository was last seen to have of ours; `sent`, what was proposed since."""


class BaselineStore:
    """Where the record of one backend's app is kept."""

    def __init__(self, backend_url: str, app_id: str) -> None:
        whose = digest_of({"backend": backend_url, "app_id": app_id})[:32]
        self.directory = state_dir() / "deliveries" / whose

    @property
    def path(self) -> Path:
        return self.directory / "baseline.json"

    def load(self) -> Baseline:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return Baseline()
        return parse_baseline(data, str(self.path))

    def save(self, baseline: Baseline) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_document(self.path, encode_baseline(baseline), mode=0o600)


def encode_baseline(baseline: Baseline) -> bytes:
    """As it is stored, and as a delivery's bundle has it."""
    files = msgspec.json.encode(baseline.files, order="deterministic")
    return msgspec.json.encode(_Stored(schema_version=SCHEMA, sha256=sha256_hex(files), files=msgspec.Raw(files)))


def parse_baseline(data: bytes, where: str) -> Baseline:
    try:
        found = msgspec.json.decode(data, type=_Stored)
        if found.schema_version == SCHEMA and sha256_hex(bytes(found.files)) == found.sha256:
            return Baseline(msgspec.json.decode(found.files, type=dict[str, Owned]))
    except msgspec.MsgspecError:
        pass
    raise CorruptError(
        f"{where} is damaged, or of a version that is not known here",
        op="deliver baseline",
        fix_hints=["remove it: without it everything in the repository counts as someone else's"],
        details={"document": where},
    )
