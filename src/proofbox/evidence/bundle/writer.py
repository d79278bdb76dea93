"""Write a bundle: a directory that is in progress until one atomic step commits it.

    with BundleWriter.create("out", expected=["results.json"]) as bundle:
        bundle.write_json("results.json", {"schema_version": "example/1", "passed": True})

Leaving the block commits. If an exception leaves the block, the bundle is committed as failed with everything written
so far, and the exception propagates. If the process is killed, the directory stays in progress, and readers report it.

The index is the commit barrier: artifacts are written under their final names and synced with their directories at the
commit, together with the new `run_status.json` and `artifact_index.json` under temporary names. Then the status and the
index are replaced, each followed by a sync of the directory, and LATEST last. Digests in the index are of the bytes
passed to the writer, not of the file at the commit, so a file changed in between is detected.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TypedDict, Unpack

from proofbox.core.canonical import CanonicalError, canonical_bytes
from proofbox.core.chain import ChainWriter
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import replacing, write_document
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview
from proofbox.errors import BundleExists, BundlePathRefused, BundleSecretFound, UsageError
from proofbox.evidence.bundle.content import pieces_of, sync_all, write_new
from proofbox.evidence.bundle.covering import cover, measured
from proofbox.evidence.bundle.creation import checked_run_id, create_nested, create_run
from proofbox.evidence.bundle.identity import is_alive, process_identity, world, world_id
from proofbox.evidence.bundle.index import Anchor, Artifact, bounded_bytes, index_of, stated_schema
from proofbox.evidence.bundle.lock import Mode, RunLock, holding
from proofbox.evidence.bundle.log import SYNC_EVERY, BundleLog
from proofbox.evidence.bundle.paths import INDEX, LATEST, NESTED_LEVELS, STATUS, check_artifact_path, shown
from proofbox.evidence.bundle.status import SCHEMA as STATUS_SCHEMA
from proofbox.evidence.bundle.status import RunStatus
from proofbox.evidence.bundle.takeover import continued, last_status, left_behind, require_left, require_ours, set_aside

_Path = str | os.PathLike[str]
_IDS = IdSource()


class WriterOptions(TypedDict, total=False):
    """Options that every way to open a bundle for writing has in common."""

    expected: Iterable[str]
    redactor: Redactor | None
    clock: Clock | None
    ids: IdSource | None


class _Place(NamedTuple):
    """Where a bundle is written: in an output directory `out`, or (if that is None) inside another bundle."""

    path: Path
    out: str | None
    lock: Callable[[str], contextlib.AbstractContextManager[object]]


class BundleWriter:
    """Writes one run's bundle into `out/<run_id>/`. Thread-safe; one process opens and commits it.

    `create` opens a new bundle and `take_over` one whose writer died. `nested` opens a bundle inside this one;
    `create_nested` and `take_over_nested` open one inside a bundle whose writer may be another process.

    `commit` ends the bundle, `fail` commits it as failed, and `abort` leaves it in progress. As a context manager, a
    writer commits at the end of the block, or fails with the exception that leaves the block.

    For example:

        with proofbox.BundleWriter.create("evidence", expected=["results.json"]) as bundle:
            bundle.write_json("results.json", {"schema_version": "example/1", "passed": True})

    `expected` are the artifacts of a complete run: those absent at the commit are listed as missing, and the bundle is
    then `partial`. A `dry` run commits but does not update LATEST. With a `redactor`, logs are redacted, and the commit
    is refused if any artifact contains one of its exact secrets (`withhold_secrets` removes such artifacts).

    `stage` describes the run's current activity and is recorded if the run fails.
    """

    def __init__(self, place: _Place, run_id: str, *, dry: bool = False, **options: Unpack[WriterOptions]) -> None:
        expected = options.get("expected", ())
        if isinstance(expected, str):
            raise UsageError("expected must be a list of paths, not one path", op="bundle open")
        self.path = place.path
        self.run_id = run_id
        self.stage = "run"
        self.index_sha256 = ""
        """The digest of the index file; empty until the bundle is committed."""
        self._out = place.out
        self._locked = place.lock
        self._expected = tuple(dict.fromkeys(check_artifact_path(path, "bundle open") for path in expected))
        self._dry = dry
        self._redactor = options.get("redactor")
        self._clock: Clock = options.get("clock") or SystemClock()
        self._ids = options.get("ids")
        self._mutex = threading.Lock()
        self._artifacts: dict[str, Artifact | None] = {}
        self._anchors: dict[str, Anchor] = {}
        self._secrets: set[str] = set()
        self._open_logs: list[BundleLog] = []
        self._open_nested: list[BundleWriter] = []
        self._partial: list[str] = []
        self._withholding = False
        self._open = True
        self._status = RunStatus(
            run_id=run_id,
            state="in_progress",
            started_at=isoformat(self._clock.now()),
            writer=process_identity(),
            world=world(),
            dry=dry,
            expected=self._expected,
        )

    # The life of a bundle

    @classmethod
    def create(
        cls,
        out: _Path,
        *,
        run_id: str | None = None,
        dry: bool = False,
        lock: Mode = "wait",
        lock_timeout: float = 30.0,
        **options: Unpack[WriterOptions],
    ) -> Self:
        """Create the bundle of a new run in the output directory `out`."""
        name = _run_id(run_id, "run", options)
        bundle = cls(_in_output(out, name, lock, lock_timeout, options), name, dry=dry, **options)
        with bundle._locked("create"):
            bundle._create()
        return bundle

    @classmethod
    def create_nested(
        cls, directory: _Path, path: str, *, run_id: str | None = None, **options: Unpack[WriterOptions]
    ) -> Self:
        """Create a bundle at `path` inside the bundle `directory`, whose writer may be another process.

        It commits independently. The outer bundle, committed later, covers its index by digest.
        """
        return cls.create_at(_inside(directory, path), run_id=run_id, **options)

    @classmethod
    def create_at(cls, path: _Path, *, run_id: str | None = None, **options: Unpack[WriterOptions]) -> Self:
        """Create a bundle at exactly this path, which may be inside another bundle, as with `create_nested`."""
        bundle = cls(_at(Path(path)), _run_id(run_id, "bundle", options), **options)
        with bundle._locked("create"):
            bundle._create()
        return bundle

    @classmethod
    def take_over(
        cls,
        out: _Path,
        run_id: str,
        *,
        dry: bool = False,
        released: bool = False,
        lock: Mode = "wait",
        lock_timeout: float = 30.0,
        **options: Unpack[WriterOptions],
    ) -> Self:
        """Take over the bundle of a run whose writer died; create it if the writer died before it wrote anything.

        Existing files are kept and indexed as they are. This includes logs, which get no anchor and no more entries. A
        bundle whose writer is not known to be dead is refused, unless the caller knows that the writer `released` it. A
        committed bundle is always refused.
        """
        name = checked_run_id(run_id)
        bundle = cls(_in_output(out, name, lock, lock_timeout, options), name, dry=dry, **options)
        with bundle._locked("create"):
            bundle._inherit((), released)
        return bundle

    @classmethod
    def take_over_nested(
        cls,
        directory: _Path,
        path: str,
        *,
        run_id: str | None = None,
        aside: Iterable[str] = (),
        released: bool = False,
        **options: Unpack[WriterOptions],
    ) -> Self:
        """Take over a bundle inside another one, as `take_over` does.

        Paths in `aside` are moved below `unfinished/`, because their writer never finished them.
        """
        bundle = cls(_at(_inside(directory, path)), _run_id(run_id, "bundle", options), **options)
        with bundle._locked("create"):
            bundle._inherit(aside, released)
        return bundle

    def nested(self, path: str, *, expected: Iterable[str] = (), run_id: str | None = None) -> BundleWriter:
        """Create a bundle inside this one, such as an attempt's inside a run's. It must end before this one commits."""
        self._require_open("bundle nested")
        inner = BundleWriter.create_nested(
            self.path,
            path,
            run_id=run_id,
            expected=expected,
            redactor=self._redactor,
            clock=self._clock,
            ids=self._ids,
        )
        with self._mutex:
            self._open_nested.append(inner)
        return inner

    def commit(self) -> None:
        """Commit the bundle. If the commit is refused, the bundle stays in progress."""
        self._require_open("bundle commit")
        if any(inner._open for inner in self._open_nested):
            self.abort()
            raise UsageError("a nested bundle is still open", op="bundle commit", fix_hints=["close it first"])
        self._open = False
        self._commit(None)

    def fail(self, error: BaseException) -> None:
        """Commit the bundle as failed, with everything written so far. If that is refused, add a note to `error`."""
        self._require_open("bundle fail")
        self._open = False
        try:
            self._commit(error)
        except BaseException as refused:
            error.add_note(f"the bundle {self.run_id} was not committed: {refused}")

    def abort(self) -> None:
        """Stop writing and leave the bundle in progress. A writer can take it over as `released`."""
        self._open = False
        for log in self._open_logs:
            log.close()

    def __enter__(self) -> Self:
        self._require_open("bundle open")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._open:
            return  # ended explicitly inside the block
        if error is not None:
            self.fail(error)
        else:
            self.commit()

    def _create(self) -> None:
        if self._out is None:
            create_nested(self.path, self._status)
        else:
            create_run(self._out, self._status)

    def _inherit(self, aside: Iterable[str], released: bool) -> None:
        before = last_status(self.path, self.run_id)
        if before is None:
            self._create()
            return
        require_left(self.path, before, abandoned=released or is_alive(before.writer) is False)
        self._status = continued(before, self._status)
        self.run_id, self._dry, self._expected = self._status.run_id, self._status.dry, self._status.expected
        self._partial = list(self._status.partial_reasons)
        set_aside(self.path, aside)
        for path in left_behind(self.path):
            self._artifacts[path] = self._measure(path)
        write_document(self.path / STATUS, self._status.to_bytes())

    def mark_partial(self, reason: str) -> None:
        """Mark the bundle as partial, even if every expected artifact exists: the commit won't be `ok`.

        The mark is written to disk at once, so that it survives a takeover.
        """
        self._require_open("bundle mark_partial")
        cleaned = preview(self._clean(reason), 1000)[0]
        with self._mutex, self._locked("mark"):
            require_ours(self.path, self._status, "bundle mark_partial")
            self._partial.append(cleaned)
            self._status = self._status._replace(partial_reasons=tuple(self._partial))
            write_document(self.path / STATUS, self._status.to_bytes())

    def withhold_secrets(self) -> tuple[str, ...]:
        """Remove artifacts that contain an exact secret, now and at the commit, instead of refusing the commit.

        Return the paths removed now. A bundle with removed artifacts is partial and lists them in its reasons.
        """
        self._require_open("bundle withhold_secrets")
        self._withholding = True
        return self._withhold()

    def _withhold(self) -> tuple[str, ...]:
        # A nested bundle's index stays: it has only names and digests, and the files beside it are found through it.
        taken = tuple(sorted(path for path in self._secrets if not path.endswith("/" + INDEX)))
        for path in taken:
            os.unlink(self.path / path)
            self._artifacts.pop(path, None)
            self._anchors.pop(path, None)
            self._partial.append(preview(self._clean(f"{path} contained a secret and was removed"), 1000)[0])
        self._secrets.clear()
        return taken

    # Artifacts

    def write_json(self, path: str, value: Any) -> Artifact:
        """Write a JSON document in canonical form; its `schema_version` goes into the index."""
        try:
            data = canonical_bytes(value)
        except CanonicalError as error:
            raise UsageError(f"{path} has no canonical JSON: {error}", op="bundle write_json") from error
        return self._store(path, [data], stated_schema(value), "bundle write_json")

    def write_bytes(self, path: str, data: bytes, *, schema_version: str | None = None) -> Artifact:
        return self._store(path, [data], schema_version, "bundle write_bytes")

    def add_file(self, path: str, source: _Path | BinaryIO, *, schema_version: str | None = None) -> Artifact:
        """Copy a file, or the rest of a binary stream, into the bundle."""
        with pieces_of(source) as pieces:
            return self._store(path, pieces, schema_version, "bundle add_file")

    def open_log(self, path: str, *, sync_every: int = SYNC_EVERY) -> BundleLog:
        """Open a hash-chained log. The index records its number of entries and its head."""
        self._claim(path, "bundle open_log")
        target = self._target(path)
        chain = ChainWriter(target, f"{self.run_id}/{path}", sync_every=sync_every)
        log = BundleLog(chain, self._redactor, lambda anchor: self._anchors.__setitem__(path, anchor))
        with self._mutex:
            self._open_logs.append(log)
        return log

    def _store(self, path: str, pieces: Iterable[bytes], schema: str | None, op: str) -> Artifact:
        self._claim(path, op)
        try:
            meter = write_new(self._target(path), pieces, self._redactor)
        except BaseException:
            with self._mutex:
                self._artifacts.pop(path, None)
            raise
        if meter.secret:
            self._secrets.add(path)
        artifact = Artifact(path, meter.size, meter.sha256, schema)
        self._artifacts[path] = artifact
        return artifact

    def _claim(self, path: str, op: str) -> None:
        check_artifact_path(path, op)
        with self._mutex:
            self._require_open(op)
            if path in self._artifacts:
                raise BundleExists(f"{path} is already written", op=op, fix_hints=["choose another name"])
            self._artifacts[path] = None

    def _target(self, path: str) -> str:
        parent = os.path.dirname(path)
        if parent:
            os.makedirs(self.path / parent, exist_ok=True)
        return f"{self.path}/{path}"

    def _require_open(self, op: str) -> None:
        if not self._open:
            raise UsageError("the bundle is closed", op=op, fix_hints=["write before the bundle is committed"])

    # The commit

    def _commit(self, error: BaseException | None) -> None:
        for log in self._open_logs:
            log.close()
        artifacts, interrupted = self._collect()
        if self._secrets and self._withholding and self._withhold():
            artifacts, interrupted = self._collect()
            self._secrets.clear()  # from a nested index, which was measured again
        if self._secrets:
            raise BundleSecretFound(
                f"{len(self._secrets)} artifacts contain a secret: {', '.join(sorted(self._secrets)[:5])}",
                op="bundle commit",
                fix_hints=["keep the secret out of the artifacts; this bundle stays in progress and is not evidence"],
                details={"paths": sorted(self._secrets)},
            )
        present = [artifact.path for artifact in artifacts]
        missing = sorted(set(self._expected).difference(present) | set(interrupted))
        unsynced = present
        if self._out is not None:  # other runs wait for the lock
            sync_all(self.path, present)
            unsynced = []
        with self._locked("commit"):
            require_ours(self.path, self._status, "bundle commit")
            self._status = self._status._replace(
                state="complete" if error is None else "failed",
                finished_at=isoformat(self._clock.now()),
                failure=None if error is None else self._failure(error),
                partial_reasons=tuple(self._partial),
            )
            document = self._status.to_bytes()
            artifacts.append(Artifact(STATUS, len(document), sha256_hex(document), STATUS_SCHEMA))
            outcome = "failed" if error is not None else "partial" if missing or self._partial else "ok"
            index = index_of(self.run_id, world_id(self._status.world), outcome, artifacts, missing)
            entries = bounded_bytes(index)
            with replacing(self.path / INDEX, entries) as index_file, replacing(self.path / STATUS, document) as file:
                # Before the status is replaced, then the index. Together, so that the disk is waited for only once.
                sync_all(self.path, [*unsynced, file, index_file])
            self.index_sha256 = sha256_hex(entries)
            if self._out is not None and error is None and not self._dry:
                write_document(os.path.join(self._out, LATEST), f"{self.run_id}\n".encode())

    def _collect(self) -> tuple[list[Artifact], list[str]]:
        known = [artifact for artifact in self._artifacts.values() if artifact is not None]
        return cover(self.path, known, self._measure)

    def _measure(self, path: str) -> Artifact:
        artifact, secret = measured(self.path, path, self._redactor, self._anchors.get(path))
        if secret:
            self._secrets.add(path)
        return artifact

    def _failure(self, error: BaseException) -> dict[str, str]:
        message = preview(self._clean(str(error)), 4000)[0]
        return {"stage": preview(self.stage, 200)[0], "error": type(error).__name__[:200], "message": message}

    def _clean(self, text: str) -> str:
        return (self._redactor or Redactor()).redact(text)


def _in_output(out: _Path, run_id: str, mode: Mode, timeout: float, options: WriterOptions) -> _Place:
    place = os.fspath(out)
    clock = options.get("clock")
    Path(place).mkdir(parents=True, exist_ok=True)

    def lock(purpose: str) -> RunLock:
        return RunLock(place, purpose=f"{purpose} {run_id}", mode=mode, timeout=timeout, clock=clock)

    return _Place(Path(place) / run_id, place, lock)


def _inside(directory: _Path, path: str) -> Path:
    checked = check_artifact_path(path, "bundle nested")
    if checked.count("/") >= NESTED_LEVELS:
        raise BundlePathRefused(
            f"a nested bundle is at most {NESTED_LEVELS} directories below the outer one: {shown(path)}",
            op="bundle nested",
            fix_hints=["use a path such as attempts/NAME"],
        )
    return Path(directory) / checked


def _at(place: Path) -> _Place:
    return _Place(place, None, lambda _: holding(place))


def _run_id(given: str | None, prefix: str, options: WriterOptions) -> str:
    return (options.get("ids") or _IDS).new_id(prefix) if given is None else checked_run_id(given)
