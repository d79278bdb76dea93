"""Promotion packets, which later stages read instead of a bundle: pinned pointers into it, and a verdict.

`proofbox.promotion_packet/2` is written, and on request `runtime-tools.promotion_packet.v0.2`, whose pointers are bare
paths without digests (`packet_v02`). Those pin nothing, and verification states that. Version 1 is only read; its
`observed` has the text of an error where version 2 has its code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import declare
from proofbox.errors import PacketInvalid
from proofbox.evidence.bundle.index import STATES, SchemaUnknown
from proofbox.evidence.bundle.paths import INDEX, is_artifact_path, read_bounded, shown
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.policies import FIELDS, OPTIONAL_FIELDS, SEED_FIELDS
from proofbox.evidence.promotion.policy import POLICY, check_policy

SCHEMA = "proofbox.promotion_packet/2"
SCHEMA_1 = "proofbox.promotion_packet/1"
SEED_SCHEMA = "runtime-tools.promotion_packet.v0.2"
PREDICATE_TYPES = {SCHEMA: "urn:proofbox:promotion_packet:2", SCHEMA_1: "urn:proofbox:promotion_packet:1"}
"""The predicate type of a signed packet, by the packet's version."""
SUFFIX = ".promotion.json"
MAX_PACKET_BYTES = 1 << 24


class Pointer(NamedTuple):
    """A pointer to an artifact. Without size and digest (v0.2) it pins nothing."""

    path: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Packet:
    """A parsed packet. `document` is the whole packet."""

    schema_version: str
    document: dict[str, Any]
    pointers: dict[str, Pointer]
    promotable: bool
    reasons: tuple[str, ...]
    run_id: str | None = None
    bundle_path: str | None = None
    """Relative to the packet's directory; None if the bundle is elsewhere."""
    index: Pointer | None = None
    policy: str | None = None
    """The name of its policy; None for a v0.2 packet."""

    @property
    def pinned(self) -> bool:
        return self.index is not None


@shape.checks({"type": "string"})
def _path(value: Any, where: str) -> None:
    if type(value) is not str or not is_artifact_path(value):
        raise ShapeError(f"{where} is not a path inside a bundle")


_POINTER = shape.record(
    {
        "path": _path.meaning("Relative to the bundle's directory."),
        "size": shape.count.meaning("Size in bytes."),
        "sha256": shape.sha256.meaning("SHA-256 of the file's content."),
    }
)
_OTHERS = {
    **{field: f"By default `{artifact}`; absent if it does not exist." for field, artifact in OPTIONAL_FIELDS.items()},
    "outcome": "An attempt's `outcome.json`.",
    "tree_manifest": "An attempt's `tree_manifest.json`.",
    "schedule": "A run's `schedule.jsonl`.",
}
_NAMES = shape.array(shape.text(200))
_PROMOTABILITY = shape.record(
    {
        "promotable_decision_stage": shape.flag.meaning("The verdict: whether the bundle may be relied on."),
        "reasons": _NAMES.meaning("The names of the rules that failed."),
        "accepted": _NAMES.meaning("The failed rules that the caller accepted."),
        "gating_inputs": shape.table(
            shape.record(
                {
                    "rule": shape.anything.meaning("The rule in the policy."),
                    "held": shape.flag.meaning("Whether positive evidence satisfies it."),
                    "observed": shape.anything.meaning(
                        "The observed value. A long text is truncated; a large object or array is `omitted`, with its"
                        " number of `items`; `unknown` has the code of the error that prevents the observation."
                    ),
                }
            )
        ).meaning("The observation of each rule."),
        "policy": shape.checks(POLICY.json_schema)(lambda value, _: check_policy(value)).meaning(
            "The whole policy, so that a verifier can recompute the verdict."
        ),
    }
)
_PACKET = shape.record(
    {
        "schema_version": shape.text(200),
        "emitted_at": shape.moment.meaning("When the packet was created."),
        "run_id": shape.text(128).meaning("The bundle's run id, from its index."),
        "world_id": shape.sha256.meaning("Digest of the host and tool that made the run."),
        "bundle": shape.record(
            {
                "path": shape.or_null(_path).meaning(
                    "Relative to the packet's directory; null if the bundle is not below it."
                ),
                "index": _POINTER.meaning("Pins the index file, which covers every other file."),
                "status": shape.one_of(*STATES).meaning("The status in the index."),
                "repairs": shape.count.meaning("Total repairs of its index and nested indexes."),
            }
        ).meaning("The bundle of this verdict."),
        **{
            field: shape.or_null(_POINTER).meaning(
                f"By default `{artifact}`; null if it does not exist or does not apply."
            )
            for field, artifact in SEED_FIELDS.items()
        },
        "not_applicable": _NAMES.meaning("Fields that do not apply to this kind of bundle."),
        "promotability": _PROMOTABILITY.meaning("The verdict and its basis."),
    },
    {field: _POINTER.meaning(_OTHERS[field]) for field in FIELDS if field not in SEED_FIELDS},
)
declare(
    SCHEMA,
    at="RUN.promotion.json beside the run; signed, as the predicate of an in-toto Statement in a DSSE envelope",
    meaning="Pinned pointers into a bundle, and the verdict whether it may be relied on.",
    shape=_PACKET.json_schema,
)
declare(
    SCHEMA_1,
    at="as version 2, written by older versions",
    meaning="A packet whose `observed` has text where version 2 has `unknown` or `omitted`.",
    shape=_PACKET.json_schema,
)
_SEED_PROMOTABILITY = shape.record(
    {"promotable_decision_stage": shape.flag, "reasons": _NAMES}, {"gating_inputs": shape.anything}
)


def parse_packet(document: Any) -> Packet:
    """Parse a packet of any known version. Raises ShapeError (SchemaUnknown for an unsupported version)."""
    shape.table(shape.anything)(document, "packet")
    version = document.get("schema_version")
    if version in (SCHEMA, SCHEMA_1):
        return _current(document)
    if version == SEED_SCHEMA:
        return _seed(document)
    known = " or ".join(map(repr, (SCHEMA, SCHEMA_1, SEED_SCHEMA)))
    raise SchemaUnknown(f"schema_version is {str(version)[:100]!r}; expected {known}")


def _current(document: dict[str, Any]) -> Packet:
    _PACKET(document, "packet")
    bundle, verdict = document["bundle"], document["promotability"]
    index = Pointer(**bundle["index"])
    if index.path != INDEX:
        raise ShapeError("packet.bundle.index does not point to an index")
    return Packet(
        schema_version=document["schema_version"],
        document=document,
        pointers={field: Pointer(**document[field]) for field in FIELDS if document.get(field) is not None},
        promotable=verdict["promotable_decision_stage"],
        reasons=tuple(verdict["reasons"]),
        run_id=document["run_id"],
        bundle_path=bundle["path"],
        index=index,
        policy=verdict["policy"]["name"],
    )


def _seed(document: dict[str, Any]) -> Packet:
    pointers = {}
    for field in (*SEED_FIELDS, *OPTIONAL_FIELDS):
        value = document.get(field)
        if value is not None:
            shape.text()(value, f"packet.{field}")
            pointers[field] = Pointer(value, None, None)
    verdict = document.get("promotability")
    _SEED_PROMOTABILITY(verdict, "packet.promotability")
    assert type(verdict) is dict  # noqa: S101 (checked by the line above, which a type checker can't see)
    return Packet(
        schema_version=SEED_SCHEMA,
        document=document,
        pointers=pointers,
        promotable=verdict["promotable_decision_stage"],
        reasons=tuple(verdict["reasons"]),
    )


def read_document(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the JSON of a packet file (a packet, or its envelope) and the SHA-256 of the file."""
    place = os.fspath(path)
    try:
        data = read_bounded(place, MAX_PACKET_BYTES)
        return parse_strict(data), sha256_hex(data)
    except OSError as error:
        raise PacketInvalid(
            f"{shown(place)} can't be read: {error.strerror or error}",
            op="promotion read",
            fix_hints=["check the path"],
        ) from error
    except CanonicalError as error:
        raise PacketInvalid(f"{shown(place)} is not a packet: {error}", op="promotion read") from error
