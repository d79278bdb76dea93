"""`run_status.json`: whether a run is still writing, and how it ended.

It is written when the run begins and once more just before the index, which covers it. So `complete` here means that
the run's work is done; that the bundle is committed, only the index says.
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
        "run_id": shape.text(128).meaning("The run's id; of a nested bundle, its own."),
        "state": shape.one_of("in_progress", "complete", "failed").meaning(
            "Of the run's work; `failed`: an exception ended it."
        ),
        "dry": shape.flag.meaning("A rehearsal: LATEST does not follow it, and it can't be promoted."),
        "writer": PROCESS.meaning("The process that writes the bundle; the last, if one took it over."),
        "world": WORLD.meaning("Where it ran, and what recorded it."),
        "started_at": shape.moment.meaning("When the bundle was opened; a takeover keeps it."),
        "finished_at": shape.or_null(shape.moment).meaning("When it was committed; null: it is in progress."),
        "expected": shape.array(shape.text()).meaning("Artifacts without which the bundle is partial."),
        "failure": shape.or_null(
            shape.record(
                {
                    "stage": shape.text().meaning("What the run was doing."),
                    "error": shape.text().meaning("The exception's class."),
                    "message": shape.text(1 << 16).meaning("What it said, redacted."),
                }
            )
        ).meaning("What ended it; null unless it failed."),
        "partial_reasons": shape.array(shape.text()).meaning("What the writer says is lacking; any makes it partial."),
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
