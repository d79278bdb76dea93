"""`run_status.json`: whether a run is still writing, and how it ended.

It is written when the run starts and again just before the index, which covers it. `complete` here means that the run's
work is done; only the index shows that the bundle is committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.documents import declare
from proofbox.evidence.bundle.identity import PROCESS, WORLD
from proofbox.evidence.bundle.index import refuse_other_schema
from proofbox.evidence.bundle.paths import RUN_ID, is_artifact_path
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

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
    """stage (the run's activity at the time), error (the exception's class), message."""
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
        "run_id": shape.text(128).meaning("The run's id; for a nested bundle, the bundle's own id."),
        "state": shape.one_of("in_progress", "complete", "failed").meaning(
            "The state of the run; `failed`: an exception ended it."
        ),
        "dry": shape.flag.meaning("A dry run: it does not update LATEST and can't be promoted."),
        "writer": PROCESS.meaning("The process that writes the bundle; after a takeover, the new writer."),
        "world": WORLD.meaning("The host and the recording tool."),
        "started_at": shape.moment.meaning("When the bundle was created; unchanged by a takeover."),
        "finished_at": shape.or_null(shape.moment).meaning("When the bundle was committed; null while in progress."),
        "expected": shape.array(shape.text()).meaning("Artifacts that a complete bundle must have."),
        "failure": shape.or_null(
            shape.record(
                {
                    "stage": shape.text().meaning("The run's activity at the time of the failure."),
                    "error": shape.text().meaning("The exception's class."),
                    "message": shape.text(1 << 16).meaning("The exception's message, redacted."),
                }
            )
        ).meaning("The exception that ended the run; null unless it failed."),
        "partial_reasons": shape.array(shape.text()).meaning("The writer's reasons for marking it partial."),
    }
)
declare(
    SCHEMA,
    at="BUNDLE/run_status.json",
    meaning="Whether a run is still writing, and how it ended. Only the index shows that it is committed.",
    shape=_DOCUMENT.json_schema,
)


def parse_status(data: bytes) -> RunStatus:
    """Parse a status. Raises ShapeError (SchemaUnknown for an unsupported version)."""
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
        raise ShapeError("status contains an invalid run id or artifact path")
    document["expected"] = tuple(document["expected"])
    document["partial_reasons"] = tuple(document["partial_reasons"])
    return RunStatus(**document)
