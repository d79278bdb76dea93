"""`run_status.json`: whether a run is still writing, and how it ended.

It is written when the run begins and once more just before the index, which covers it. So `complete` here means that
the run's work is done; that the bundle is committed, only the index says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.documents import declare
from proofbox.evidence import shape
from proofbox.evidence.identity import PROCESS, WORLD
from proofbox.evidence.index import refuse_other_schema
from proofbox.evidence.paths import RUN_ID, is_artifact_path
from proofbox.evidence.shape import ShapeError

SCHEMA = "proofbox.run_status/1"


@dataclass(frozen=True, slots=True)
class RunStatus:
    run_id: str
    state: str
    """in_progress, complete or failed."""
    started_at: str
    writer: dict[str, Any]
    world: dict[str, Any]
    dry: bool = False
    finished_at: str | None = None
    expected: tuple[str, ...] = ()
    failure: dict[str, str] | None = None
    """stage (what the run was doing), error (the exception's class), message."""
    partial_reasons: tuple[str, ...] = field(default=())

    def to_bytes(self) -> bytes:
        return canonical_bytes(
            {
                "schema_version": SCHEMA,
                "run_id": self.run_id,
                "state": self.state,
                "dry": self.dry,
                "writer": self.writer,
                "world": self.world,
                "started_at": self.started_at,
                "finished_at": self.finished_at,
                "expected": list(self.expected),
                "failure": self.failure,
                "partial_reasons": list(self.partial_reasons),
            }
        )


_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "run_id": shape.text(128),
        "state": shape.one_of("in_progress", "complete", "failed"),
        "dry": shape.flag.meaning("A rehearsal: LATEST does not follow it, and it can't be promoted."),
        "writer": PROCESS,
        "world": WORLD,
        "started_at": shape.moment,
        "finished_at": shape.or_null(shape.moment),
        "expected": shape.array(shape.text()).meaning("Artifacts without which the bundle is partial."),
        "failure": shape.or_null(
            shape.record({"stage": shape.text(), "error": shape.text(), "message": shape.text(1 << 16)})
        ),
        "partial_reasons": shape.array(shape.text()),
    }
)
declare(
    SCHEMA,
    at="BUNDLE/run_status.json",
    meaning="Whether a run is still writing, and how it ended. That it is committed, only the index says.",
    shape=_DOCUMENT.json_schema,
)


def parse_status(data: bytes) -> RunStatus:
    """Read a status, or raise ShapeError (SchemaUnknown for a version that is not known)."""
    try:
        document = parse_strict(data)
    except CanonicalError as error:
        raise ShapeError(str(error)) from error
    if type(document) is not dict:
        raise ShapeError("the status is not an object")
    refuse_other_schema(document, SCHEMA)
    _DOCUMENT(document, "status")
    del document["schema_version"]
    if not RUN_ID.fullmatch(document["run_id"]) or not all(map(is_artifact_path, document["expected"])):
        raise ShapeError("status holds a name that can't be a run's or an artifact's")
    document["expected"] = tuple(document["expected"])
    document["partial_reasons"] = tuple(document["partial_reasons"])
    return RunStatus(**document)
