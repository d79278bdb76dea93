"""The files in a repository that we delivered: the base of a three-way comparison.

For every path that was ever sent, `settled` is our last state that was observed in the repository, and `sent`
lists the states in pull requests that have not been observed there yet. If the repository has a file in one of these
states, no one else has changed it. Any other file is not ours, or someone else has changed it.

There is one record per backend and app, in the user's state directory, with the text of small files for readable plans.
It may be lost: without it nothing is deleted or overwritten, because no file is known to be ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from proofbox.core.digest import digest_of, sha256_hex
from proofbox.core.dirs import state_dir
from proofbox.core.documents import require_version, stored
from proofbox.core.files.atomic import write_document
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.delivery.client.wire import RepoManifest
from proofbox.errors import CorruptError

SCHEMA = "proofbox.delivery_baseline/1"
MAX_SENT = 16


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """A file's content and mode. Without a mode (from an older backend), only the content is compared."""

    sha256: str
    mode: str | None = None

    def same(self, other: FileState | None) -> bool:
        return (
            other is not None
            and self.sha256 == other.sha256
            and (self.mode is None or other.mode is None or self.mode == other.mode)
        )


def same(one: FileState | None, other: FileState | None) -> bool:
    """Compare two states; None means that the file does not exist."""
    return other is None if one is None else one.same(other)


class DeliveredFiles(msgspec.Struct, frozen=True):
    settled: FileState | None = None
    sent: tuple[FileState | None, ...] = ()

    @property
    def latest(self) -> FileState | None:
        return self.sent[-1] if self.sent else self.settled

    def includes(self, state: FileState | None) -> bool:
        return any(same(each, state) for each in (self.settled, *self.sent))

    def after_observing(self, state: FileState | None) -> DeliveredFiles:
        """Return the record after `state` was observed in the repository."""
        for number, each in enumerate(self.sent):
            if same(each, state) and not same(self.settled, state):
                return DeliveredFiles(state, self.sent[number + 1 :])
        return self

    def sending(self, state: FileState | None) -> DeliveredFiles:
        rest = tuple(each for each in self.sent if not same(each, state))
        return DeliveredFiles(self.settled, (*rest, state)[-MAX_SENT:])


class Baseline(msgspec.Struct, frozen=True):
    """All files that we delivered to one repository, by path."""

    files: dict[str, DeliveredFiles] = {}

    def observed(self, manifest: RepoManifest) -> Baseline:
        """Return the baseline after observing this manifest. A path that we deleted and that is gone is dropped."""
        repo = states(manifest)
        found = {path: owned.after_observing(repo.get(path)) for path, owned in self.files.items()}
        return Baseline({path: owned for path, owned in found.items() if owned.settled or owned.sent})

    def exported(self, files: Mapping[str, FileState]) -> Baseline:
        return Baseline({path: DeliveredFiles(state) for path, state in files.items()})

    def proposed(self, changes: Iterable[tuple[str, FileState | None]]) -> Baseline:
        files = dict(self.files)
        for path, state in changes:
            files[path] = files.get(path, DeliveredFiles()).sending(state)
        return Baseline(files)


def states(manifest: RepoManifest) -> dict[str, FileState]:
    return {file.path: FileState(file.sha256, file.mode) for file in manifest.files}


@stored(SCHEMA, at="STATE/deliveries/REPOSITORY/baseline.json, and BUNDLE/baseline.json of a delivery")
class _Stored(msgspec.Struct, kw_only=True):
    """The stored baseline: the files in a repository that came from us.

    The digest covers the exact bytes of `files`, so that all readers compute the same one.
    """

    schema_version: str
    sha256: str
    """The SHA-256 of the bytes of `files`."""
    files: msgspec.Raw
    """By path: `settled`, our last state that was observed in the repository; `sent`, the states proposed since."""


class BaselineStore:
    """The stored baseline of one app at one backend."""

    def __init__(self, backend_url: str, app_id: str) -> None:
        name = digest_of({"backend": backend_url, "app_id": app_id})[:32]
        self.directory = state_dir() / "deliveries" / name

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
    """Encode a baseline, for the state directory and for a delivery's bundle."""
    files = msgspec.json.encode(baseline.files, order="deterministic")
    return msgspec.json.encode(_Stored(schema_version=SCHEMA, sha256=sha256_hex(files), files=msgspec.Raw(files)))


def parse_baseline(data: bytes, where: str) -> Baseline:
    try:
        require_version(data, SCHEMA, where)
        found = parse_json(data, _Stored)
        if sha256_hex(bytes(found.files)) == found.sha256:
            return Baseline(parse_json(bytes(found.files), dict[str, DeliveredFiles]))
    except msgspec.DecodeError:
        pass
    raise CorruptError(
        f"{where} is damaged",
        op="deliver baseline",
        fix_hints=["remove it; then every file in the repository counts as not ours"],
        details={"document": where},
    )
