"""`artifact_index.json`: every file of a bundle by path, size and digest. Where it is, the bundle is committed.

The index is the RFC 8785 canonical JSON of one object and nothing else. `index_sha256` is the SHA-256 of the canonical
JSON of all its other members, so that damage to the index itself shows. Entries are sorted by path and each path is
there once. An entry of a log carries `chain`, its number of lines and its head; the chain's name is `<run_id>/<path>`,
so that a log moved from another run or place does not verify. An entry called `…/artifact_index.json` is a nested
bundle's index: the files below its directory are that index's to cover.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from proofbox.core.canonical import CanonicalError, canonical_bytes, check_values, parse_strict
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import declare
from proofbox.errors import BundleTooLarge
from proofbox.evidence.bundle.paths import INDEX, MAX_INDEX_BYTES, RUN_ID, is_artifact_path
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import SHA256, ShapeError

SCHEMA = "proofbox.artifact_index/1"
STATES = ("ok", "partial", "failed")


@dataclass(frozen=True, slots=True)
class Anchor:
    """What a log's chain must end with."""

    count: int
    head: str


class Artifact(NamedTuple):
    """One file of a bundle. `path` is relative to the bundle's directory."""

    path: str
    file_size: int
    sha256: str
    schema_version: str | None = None
    chain: Anchor | None = None

    @property
    def is_nested_index(self) -> bool:
        return self.path.endswith("/" + INDEX)

    def as_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"path": self.path, "file_size": self.file_size, "sha256": self.sha256}
        if self.schema_version is not None:
            entry["schema_version"] = self.schema_version
        if self.chain is not None:
            entry["chain"] = {"count": self.chain.count, "head": self.chain.head}
        return entry


class SchemaUnknown(ShapeError):
    """The document may be good, but it is of a version that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Index:
    run_id: str
    world_id: str
    status: str
    artifacts: Mapping[str, Artifact]
    missing: tuple[str, ...] = ()
    repairs: int = 0
    """How often the index was computed anew after the commit. Never goes back to 0."""
    digest: str = field(default="", compare=False)

    def to_bytes(self) -> bytes:
        document = {
            "schema_version": SCHEMA,
            "run_id": self.run_id,
            "world_id": self.world_id,
            "status": self.status,
            "artifacts": [self.artifacts[path].as_json() for path in sorted(self.artifacts)],
            "missing": sorted(self.missing),
            "repairs": self.repairs,
        }
        without = _canonical({**document, "index_sha256": ""})[1]
        return _canonical({**document, "index_sha256": sha256_hex(without)})[0]


_ANCHOR = shape.record(
    {
        "count": shape.count.meaning("Its number of lines."),
        "head": shape.sha256.meaning("What a further line would state as `prev`: it commits to every byte before."),
    }
)
_ENTRY = shape.record(
    {
        "path": shape.text().meaning("Relative to the bundle."),
        "file_size": shape.count.meaning("In bytes."),
        "sha256": shape.sha256.meaning("Of its content."),
    },
    {
        "schema_version": shape.text(200).meaning(
            "What a JSON document states of itself; of a log, the chain's format."
        ),
        "chain": _ANCHOR.meaning("Of a log: its number of lines, and its head."),
    },
)
_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "run_id": shape.text(128).meaning("The run's id; of a nested bundle, its own."),
        "world_id": shape.sha256.meaning("Of the host and the tool that the run was made with."),
        "status": shape.one_of(*STATES).meaning("`partial`: something is lacking; `failed`: an exception ended it."),
        "artifacts": shape.elsewhere(shape.array(_ENTRY)).meaning("Every file, sorted by path, each once."),
        "missing": shape.array(shape.text()).meaning("Expected artifacts that are not there."),
        "repairs": shape.count.meaning("How often the index was computed anew after the commit."),
        "index_sha256": shape.sha256.meaning("Of the canonical JSON of all other members."),
    }
)
declare(
    SCHEMA,
    at="BUNDLE/artifact_index.json",
    meaning="Every file of a bundle by path, size and digest. Where it is, the bundle is committed.",
    shape=_DOCUMENT.json_schema,
)


def parse_index(data: bytes) -> Index:
    """Read an index, or raise ShapeError (SchemaUnknown for a version that is not known)."""
    try:
        document = parse_strict(data)
        if type(document) is not dict:
            raise ShapeError("the index is not an object")
        refuse_other_schema(document, SCHEMA)
        _DOCUMENT(document, "index")
        stated, computed = _canonical(document)
    except CanonicalError as error:
        raise ShapeError(str(error)) from error
    if stated != data:
        raise ShapeError("the index is not in canonical form")
    digest = document["index_sha256"]
    if sha256_hex(computed) != digest:
        raise ShapeError("the index does not have the digest it states")
    if not RUN_ID.fullmatch(document["run_id"]):
        raise ShapeError("index.run_id can't be the name of a run")
    missing = document["missing"]
    if not all(map(is_artifact_path, missing)) or missing != sorted(set(missing)):
        raise ShapeError("index.missing is not a sorted list of paths inside the bundle")
    artifacts = _artifacts(document["artifacts"])
    if any(path in artifacts for path in missing):
        raise ShapeError("index.missing names an artifact that is there")
    if document["status"] == "ok" and missing:
        raise ShapeError("the index says ok, and names missing artifacts")
    return Index(
        run_id=document["run_id"],
        world_id=document["world_id"],
        status=document["status"],
        artifacts=artifacts,
        missing=tuple(missing),
        repairs=document["repairs"],
        digest=digest,
    )


def _canonical(document: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The canonical bytes of a whole index, and of all of it but its own digest.

    `artifacts` sorts before every other member, so that its many entries are encoded once for both.
    """
    first = b'{"artifacts":' + canonical_bytes(document["artifacts"]) + b","
    rest = {name: value for name, value in document.items() if name != "artifacts"}
    whole = first + canonical_bytes(rest)[1:]
    del rest["index_sha256"]
    return whole, first + canonical_bytes(rest)[1:]


def bounded_bytes(index: Index) -> bytes:
    """The index as its file, or BundleTooLarge: one that nobody would read is not written."""
    try:
        data = index.to_bytes()
        check_values(data)
    except CanonicalError as error:
        raise _too_many(index, str(error)) from error
    if len(data) > MAX_INDEX_BYTES:
        raise _too_many(index, f"{len(data)} bytes, and {MAX_INDEX_BYTES} are read")
    return data


def _too_many(index: Index, why: str) -> BundleTooLarge:
    return BundleTooLarge(
        f"{index.run_id} has too many files for one index ({len(index.artifacts)}): {why}",
        op="bundle commit",
        fix_hints=["put many small files into an archive, or into nested bundles, each with an index of its own"],
    )


def refuse_other_schema(document: Mapping[str, Any], known: str) -> None:
    version = document.get("schema_version")
    if version != known:
        raise SchemaUnknown(f"schema_version is {str(version)[:100]!r}; known is {known!r}")


_MEMBERS = frozenset({"path", "file_size", "sha256", "schema_version", "chain"})


def _artifacts(entries: Any) -> dict[str, Artifact]:
    """Written out rather than with `shape`: an index may have a hundred thousand entries."""
    if type(entries) is not list:
        raise ShapeError("index.artifacts is not an array")
    artifacts: dict[str, Artifact] = {}
    last, is_sha256 = "", SHA256.fullmatch
    for number, entry in enumerate(entries):
        try:
            path, size, digest = entry["path"], entry["file_size"], entry["sha256"]
        except (TypeError, KeyError, IndexError):
            raise ShapeError(f"index.artifacts[{number}] is not an artifact's entry") from None
        if type(path) is not str or not is_artifact_path(path) or path == INDEX:
            raise ShapeError(f"index.artifacts[{number}].path is not a path inside the bundle")
        if path <= last:
            raise ShapeError(f"index.artifacts[{number}].path is out of order, or there twice")
        if type(size) is not int or size < 0 or type(digest) is not str or not is_sha256(digest):
            raise ShapeError(f"index.artifacts[{number}] has no size or no digest")
        schema, anchor = None, None
        if len(entry) > 3:
            if not entry.keys() <= _MEMBERS:
                raise ShapeError(f"index.artifacts[{number}] has a member that is not known")
            schema = _schema_version(entry, number)
            if "chain" in entry:
                _ANCHOR(entry["chain"], f"index.artifacts[{number}].chain")
                anchor = Anchor(**entry["chain"])
        artifacts[path] = Artifact(path, size, digest, schema, anchor)
        last = path
    return artifacts


def _schema_version(entry: Mapping[str, Any], number: int) -> str | None:
    if "schema_version" not in entry:
        return None
    version = entry["schema_version"]
    if type(version) is not str or len(version) > 200:
        raise ShapeError(f"index.artifacts[{number}].schema_version is not a text")
    return version


def schema_of(data: bytes) -> str | None:
    """The `schema_version` that a JSON document states, if the bytes are one."""
    try:
        value = parse_strict(data)
    except CanonicalError:
        return None
    return stated_schema(value)


def stated_schema(value: Any) -> str | None:
    version = value.get("schema_version") if type(value) is dict else None
    return version if type(version) is str and len(version) <= 200 else None


def index_of(run_id: str, world_id: str, status: str, artifacts: Iterable[Artifact], missing: Iterable[str]) -> Index:
    return Index(run_id, world_id, status, {each.path: each for each in artifacts}, tuple(missing))
