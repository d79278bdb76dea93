"""`run_status.json`: whether a run is still writing, and how it ended.

It is written when the run starts and again just before the index, which covers it. `complete` here means that the run's
work is done; only the index shows that the bundle is committed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, cast

from proofbox.core.canonical import (
    CanonicalError,
    canonical_bytes,
    check_values,
    limits,
    object_parser,
    parse_strict,
    record,
)
from proofbox.core.documents import declare
from proofbox.evidence.bundle.identity import PROCESS, WORLD, Process, World
from proofbox.evidence.bundle.index import refuse_other_schema
from proofbox.evidence.bundle.paths import MAX_PATH, RUN_ID, are_artifact_paths
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

SCHEMA = "proofbox.run_status/1"


class RunStatus(NamedTuple):
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
    partial_reasons: tuple[str, ...] = ()

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


# A campaign has thousands of statuses. The one of a bundle that did not fail has these members, which msgspec fills and
# limits; times, the id and paths are checked afterwards.
_Text = Annotated[str, limits(max_length=4096)]


@record
class _Members:
    dry: bool
    expected: tuple[_Text, ...]
    failure: None
    finished_at: str | None
    partial_reasons: tuple[_Text, ...]
    run_id: Annotated[str, limits(max_length=128)]
    schema_version: str
    started_at: str
    state: Literal["in_progress", "complete", "failed"]
    world: World
    writer: Process


_parse_members = object_parser(_Members)


def parse_status(data: bytes) -> RunStatus:
    """Parse a status. Raises ShapeError (SchemaUnknown for an unsupported version)."""
    try:
        check_values(data)
        members = _parse_members(data)
        if members is None or members.schema_version != SCHEMA:
            return _parse_any(data)
    except CanonicalError as error:
        raise ShapeError(str(error)) from error
    shape.moment(members.started_at, "status.started_at")
    if members.finished_at is not None:
        shape.moment(members.finished_at, "status.finished_at")
    _check_names(members.run_id, members.expected)
    return RunStatus(
        run_id=members.run_id,
        state=members.state,
        started_at=members.started_at,
        writer=cast("dict[str, Any]", members.writer),
        world=cast("dict[str, Any]", members.world),
        dry=members.dry,
        finished_at=members.finished_at,
        expected=members.expected,
        partial_reasons=members.partial_reasons,
    )


def _parse_any(data: bytes) -> RunStatus:
    """Parse a status in any form."""
    document = parse_strict(data)
    if type(document) is not dict:
        raise ShapeError("the status is not an object")
    refuse_other_schema(document, SCHEMA)
    _DOCUMENT(document, "status")
    del document["schema_version"]
    document["expected"] = tuple(document["expected"])
    document["partial_reasons"] = tuple(document["partial_reasons"])
    _check_names(document["run_id"], document["expected"])
    return RunStatus(**document)


def _check_names(run_id: str, expected: tuple[str, ...]) -> None:
    if not RUN_ID.fullmatch(run_id) or not _are_paths(expected):
        raise ShapeError("status contains an invalid run id or artifact path")


def _are_paths(paths: tuple[str, ...]) -> bool:
    if len(paths) > _USUAL or max(map(len, paths), default=0) > MAX_PATH:
        return are_artifact_paths(paths)
    return _are_usual_paths(paths)


_USUAL = 32
_are_usual_paths = lru_cache(maxsize=64)(are_artifact_paths)  # the attempts of a run have the same
