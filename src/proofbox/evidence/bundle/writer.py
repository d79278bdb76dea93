"""Write a bundle: a directory that is in progress until one atomic step commits it.

    with BundleWriter("out", expected=["results.json"]) as bundle:
        bundle.write_json("results.json", {"schema_version": "example/1", "passed": True})

Leaving the block commits. If an exception leaves the block, the bundle is committed as failed with everything written
so far, and the exception propagates. If the process is killed, the directory stays in progress, and readers report it.

The index is the commit barrier: artifacts are written under their final names and synced with their directories at the
commit, then `run_status.json` and `artifact_index.json` are written by atomic replace, and LATEST last. Digests in the
index are of the bytes passed to the writer, not of the file at the commit, so a file changed in between is detected.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from proofbox.core.canonical import CanonicalError, canonical_bytes
from proofbox.core.chain import ChainWriter
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.digest import sha256_hex
from proofbox.core.files.atomic import write_document
from proofbox.core.ids import IdSource
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview
from proofbox.errors import BundleExists, BundleSecretFound, UsageError
from proofbox.evidence.bundle.content import pieces_of, sync_all, write_new
from proofbox.evidence.bundle.covering import cover, measured
from proofbox.evidence.bundle.creation import checked_run_id, create_nested, create_run
from proofbox.evidence.bundle.identity import is_alive, process_identity, world, world_id
from proofbox.evidence.bundle.index import Anchor, Artifact, bounded_bytes, index_of, stated_schema
from proofbox.evidence.bundle.lock import Mode, RunLock, holding
from proofbox.evidence.bundle.log import SYNC_EVERY, BundleLog
from proofbox.evidence.bundle.paths import INDEX, LATEST, STATUS, check_artifact_path
from proofbox.evidence.bundle.status import SCHEMA as STATUS_SCHEMA
from proofbox.evidence.bundle.status import RunStatus
from proofbox.evidence.bundle.takeover import continued, last_status, left_behind, require_left, require_ours, set_aside

_Path = str | os.PathLike[str]
_IDS = IdSource()


class BundleWriter:
    """Writes one run's bundle into `out/<run_id>/`. Thread-safe; one process creates and commits it.

    For example:

        with proofbox.BundleWriter("evidence", expected=["results.json"]) as bundle:
            bundle.write_json("results.json", {"schema_version": "example/1", "passed": True})

    `expected` are the artifacts of a complete run: those absent at the commit are listed as missing, and the bundle is
    then `partial`. A `dry` run commits but does not update LATEST. With a `redactor`, logs are redacted, and the commit
    is refused if any artifact contains one of its exact secrets (`withhold_secrets` removes such artifacts).

    `stage` describes the run's current activity and is recorded if the run fails.
    """

    def __init__(
        self,
        out: _Path,
        *,
        expected: Iterable[str] = (),
        run_id: str | None = None,
        dry: bool = False,
        redactor: Redactor | None = None,
        lock: Mode = "wait",
        lock_timeout: float = 30.0,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self._setup(expected, dry, redactor, clock, ids)
        self._out: str | None = os.fspath(out)
        self._lock_options: dict[str, Any] = {"mode": lock, "timeout": lock_timeout, "clock": self._clock}
        self.run_id = self._new_id("run") if run_id is None else checked_run_id(run_id)
        self.path = Path(self._out) / self.run_id

    @classmethod
    def nested_in(
        cls,
        directory: _Path,
        path: str,
        *,
        expected: Iterable[str] = (),
        run_id: str | None = None,
        redactor: Redactor | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> Self:
        """Create a writer for a bundle at `path` inside another bundle, whose writer may be another process.

        It commits independently. The outer bundle, committed later, covers its index by digest.
        """
        nested = cls.__new__(cls)
        nested._setup(expected, False, redactor, clock, ids)
        nested._out = None
        nested.run_id = nested._new_id("bundle") if run_id is None else checked_run_id(run_id)
        nested.path = Path(directory) / check_artifact_path(path, "bundle nested")
        return nested

    def taking_over(self, *, aside: Iterable[str] = (), released: bool = False) -> Self:
        """Take over a bundle whose writer died: `with BundleWriter(out, run_id=…).taking_over() as bundle`.

        Existing files are kept and indexed as they are. This includes logs, which get no anchor and no more entries.
        Paths in `aside` are moved below `unfinished/`, because their writer never finished them. A bundle whose writer
        is not known to be dead is refused, unless the caller knows that the writer `released` it. A committed bundle is
        always refused.
        """
        self._takes_over = True
        self._released = released
        self._aside: tuple[str, ...] = tuple(aside)
        return self

    def _setup(
        self,
        expected: Iterable[str],
        dry: bool,
        redactor: Redactor | None,
        clock: Clock | None,
        ids: IdSource | None,
    ) -> None:
        if isinstance(expected, str):
            raise UsageError("expected is a list of paths, not one path", op="bundle open")
        self._expected = tuple(dict.fromkeys(check_artifact_path(path, "bundle open") for path in expected))
        self._dry = dry
        self._redactor = redactor
        self._clock: Clock = clock or SystemClock()
        self._ids = ids
        self._mutex = threading.Lock()
        self._artifacts: dict[str, Artifact | None] = {}
        self._anchors: dict[str, Anchor] = {}
        self._secrets: set[str] = set()
        self._open_logs: list[BundleLog] = []
        self._open_nested: list[BundleWriter] = []
        self._partial: list[str] = []
        self._takes_over = False
        self._released = False
        self._withholding = False
        self._aside = ()
        self._state = "new"
        self.stage = "run"

    def _new_id(self, prefix: str) -> str:
        return (self._ids or _IDS).new_id(prefix)

    # The life of a bundle

    def __enter__(self) -> Self:
        if self._state != "new":
            raise UsageError("a bundle is written once", op="bundle open", fix_hints=["create a new BundleWriter"])
        self._status = RunStatus(
            run_id=self.run_id,
            state="in_progress",
            started_at=isoformat(self._clock.now()),
            writer=process_identity(),
            world=world(),
            dry=self._dry,
            expected=self._expected,
        )
        if self._out is not None:
            Path(self._out).mkdir(parents=True, exist_ok=True)
        with self._locked("create"):
            if self._takes_over and self._inherit():
                pass
            elif self._out is None:
                create_nested(self.path, self._status)
            else:
                create_run(self._out, self._status)
        self._state = "open"
        return self

    def _inherit(self) -> bool:
        """Take over a dead writer's bundle. Return False if it died before writing anything."""
        before = last_status(self.path, self.run_id)
        if before is None:
            return False
        require_left(self.path, before, abandoned=self._released or is_alive(before.writer) is False)
        self._status = continued(before, self._status)
        self.run_id, self._dry, self._expected = self._status.run_id, self._status.dry, self._status.expected
        self._partial = list(self._status.partial_reasons)
        set_aside(self.path, self._aside)
        for path in left_behind(self.path):
            self._artifacts[path] = self._measure(path)
        write_document(self.path / STATUS, self._status.to_bytes())
        return True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._commit(error)
        except BaseException as refused:
            if error is None:
                raise
            # Raise the original error, with a note about the missing commit.
            error.add_note(f"the bundle {self.run_id} was not committed: {refused}")
        finally:
            self._state = "closed"

    def mark_partial(self, reason: str) -> None:
        """Mark the bundle as partial, even if every expected artifact exists: the commit won't be `ok`.

        The mark is written to disk at once, so that it survives a takeover.
        """
        self._require_open("bundle mark_partial")
        cleaned = preview(self._clean(reason), 1000)[0]
        with self._mutex, self._locked("mark"):
            require_ours(self.path, self._status, "bundle mark_partial")
            self._partial.append(cleaned)
            self._status = replace(self._status, partial_reasons=tuple(self._partial))
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

    def nested(self, path: str, *, expected: Iterable[str] = (), run_id: str | None = None) -> BundleWriter:
        """Create a nested bundle with its own index, such as an attempt's inside a run's."""
        self._require_open("bundle nested")
        inner = BundleWriter.nested_in(
            self.path,
            path,
            expected=expected,
            run_id=run_id,
            redactor=self._redactor,
            clock=self._clock,
            ids=self._ids,
        )
        with self._mutex:
            self._open_nested.append(inner)
        return inner

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
        return os.fspath(self.path / path)

    def _require_open(self, op: str) -> None:
        if self._state != "open":
            raise UsageError(
                f"the bundle is {'not open yet' if self._state == 'new' else 'closed'}",
                op=op,
                fix_hints=["write inside the `with` block of the BundleWriter"],
            )

    # The commit

    def _commit(self, error: BaseException | None) -> None:
        if error is None and any(inner._state == "open" for inner in self._open_nested):
            raise UsageError("a nested bundle is still open", op="bundle commit", fix_hints=["close it first"])
        self._state = "closed"
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
        sync_all(self.path, present)  # before the status and the index refer to them
        with self._locked("commit"):
            require_ours(self.path, self._status, "bundle commit")
            self._status = replace(
                self._status,
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
            write_document(self.path / STATUS, document)
            write_document(self.path / INDEX, entries)
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

    @contextlib.contextmanager
    def _locked(self, purpose: str) -> Iterator[None]:
        if self._out is None:
            with holding(self.path):
                yield
            return
        with RunLock(self._out, purpose=f"{purpose} {self.run_id}", **self._lock_options):
            yield
