"""`artifact_index.json`: every file of a bundle by path, size and digest. A bundle with an index is committed.

The index is the RFC 8785 canonical JSON of one object and nothing else. `index_sha256` is the SHA-256 of the canonical
JSON of all other members, so that damage to the index itself is detected. Entries are sorted by path, and each path
occurs once. The entry of a log has `chain`: its number of lines and its head. The chain's name is `<run_id>/<path>`, so
that a log moved from another run or path does not verify. An entry called `…/artifact_index.json` is the index of a
nested bundle, which covers the files below its directory.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import lt
from typing import Annotated, Any, Literal, NamedTuple

from proofbox.core.canonical import (
    MAX_INTEGER,
    CanonicalError,
    canonical_bytes,
    check_values,
    limits,
    object_parser,
    parse_strict,
    record,
)
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import declare
from proofbox.errors import BundleTooLarge
from proofbox.evidence.bundle.paths import INDEX, MAX_INDEX_BYTES, RUN_ID, are_artifact_paths, is_artifact_path
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

SCHEMA = "proofbox.artifact_index/1"
STATES = ("ok", "partial", "failed")
_MAX_SCHEMA = 200
_START = '{"artifacts":['
_STATED = b'"index_sha256":"'
_STATED_BYTES = len(_STATED) + 64 + len('",')  # of the second member, with its comma
_HEX = b"0123456789abcdef"
_NOT_CANONICAL = "the index is not in canonical form"


_Count = Annotated[int, limits(ge=0, le=MAX_INTEGER)]
_Digest = Annotated[str, limits(min_length=64, max_length=64)]


@record
class Anchor:
    """The expected length and head of a log's chain."""

    count: _Count
    head: _Digest


@record
class Artifact:
    """One file of a bundle. `path` is relative to the bundle's directory."""

    path: str
    file_size: _Count
    sha256: _Digest
    schema_version: Annotated[str, limits(max_length=_MAX_SCHEMA)] | None = None
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
    """The document has an unsupported schema version."""


class Index(NamedTuple):
    """What an index states. Its digest is empty until it is written."""

    run_id: str
    world_id: str
    status: str
    artifacts: Mapping[str, Artifact]
    missing: tuple[str, ...] = ()
    repairs: int = 0
    """How many times the index was rebuilt after the commit. Never reset."""
    digest: str = ""

    def to_bytes(self) -> bytes:
        document: dict[str, Any] = {
            "schema_version": SCHEMA,
            "run_id": self.run_id,
            "world_id": self.world_id,
            "status": self.status,
            "artifacts": [self.artifacts[path].as_json() for path in sorted(self.artifacts)],
            "missing": sorted(self.missing),
            "repairs": self.repairs,
        }
        first = b"".join(_first_pieces(document.pop("artifacts")))
        digest = sha256_hex(first + canonical_bytes(document)[1:])
        return first + canonical_bytes({**document, "index_sha256": digest})[1:]


_ANCHOR = shape.record(
    {
        "count": shape.count.meaning("The number of lines."),
        "head": shape.sha256.meaning("The digest of the last line, which commits to every byte before it."),
    }
)
_ENTRY = shape.record(
    {
        "path": shape.text().meaning("Relative to the bundle's directory."),
        "file_size": shape.count.meaning("Size in bytes."),
        "sha256": shape.sha256.meaning("SHA-256 of the content."),
    },
    {
        "schema_version": shape.text(_MAX_SCHEMA).meaning(
            "The schema version that a JSON document states; for a log, the chain format."
        ),
        "chain": _ANCHOR.meaning("For a log: its number of lines and its head."),
    },
)
_MEMBERS = {
    "schema_version": shape.text(_MAX_SCHEMA),
    "run_id": shape.text(128).meaning("The run's id; for a nested bundle, the bundle's own id."),
    "world_id": shape.sha256.meaning("Digest of the host and tool that made the run."),
    "status": shape.one_of(*STATES).meaning("`partial`: something is missing; `failed`: an exception ended it."),
    "artifacts": shape.array(_ENTRY).meaning("Every file, sorted by path, without duplicates."),
    "missing": shape.array(shape.text()).meaning("Expected artifacts that do not exist."),
    "repairs": shape.count.meaning("How many times the index was rebuilt after the commit."),
    "index_sha256": shape.sha256.meaning("SHA-256 of the canonical JSON of all other members."),
}
_DOCUMENT = shape.record(_MEMBERS)
_REST = shape.record({name: check for name, check in _MEMBERS.items() if name != "artifacts"})
declare(
    SCHEMA,
    at="BUNDLE/artifact_index.json",
    meaning="Every file of a bundle by path, size and digest. A bundle with an index is committed.",
    shape=_DOCUMENT.json_schema,
)


# An index may have a hundred thousand entries, and a campaign ten thousand indexes. Without msgspec, each entry is
# parsed by a pattern: it has only one canonical form, so that the pattern also checks it. Paths are checked together.
@record
class _Members:
    artifacts: list[Artifact]
    index_sha256: str  # compared with the computed one
    missing: list[Annotated[str, limits(max_length=4096)]]
    repairs: _Count
    run_id: str
    schema_version: str
    status: Literal["ok", "partial", "failed"]
    world_id: Annotated[str, limits(pattern=rf"\A{shape.SHA256.pattern}\Z")]


_parse_members = object_parser(_Members)
_STRING = r'"(?:[^"\\\x00-\x1f]++|\\.){0,4096}+"'
_NUMBER = r"(0|[1-9][0-9]{0,15})"
_DIGEST = r'"([0-9a-f]{64})"'
_CANONICAL_ENTRY = (
    rf'\{{(?:"chain":\{{"count":{_NUMBER},"head":{_DIGEST}\}},)?"file_size":{_NUMBER},"path":({_STRING}),'
    rf'(?:"schema_version":({_STRING}),)?"sha256":{_DIGEST}\}}(?:,(?=\{{)|(?=\]))'
)


def parse_index(data: bytes) -> Index:
    """Parse an index. Raises ShapeError (SchemaUnknown for an unsupported version)."""
    try:
        check_values(data)
        members = _parse_members(data)
        if members is None:
            artifacts, at = _parse_entries(data.decode("utf-8"))
            document = parse_strict(b"{" + data[at:])
            _REST(document, "index")
            if canonical_bytes(document) != b"{" + data[at:]:
                raise ShapeError(_NOT_CANONICAL)
            members = _Members(artifacts=[], **document)
        else:
            artifacts, at = _checked_entries(members.artifacts), data.rindex(_STATED)
        _check_digest(data, at, members.index_sha256)
    except ValueError as error:
        raise _problem(data, error) from None
    if members.schema_version != SCHEMA:
        raise _other_schema(members.schema_version, SCHEMA)
    if not RUN_ID.fullmatch(members.run_id):
        raise ShapeError("index.run_id is not a valid run id")
    if members.missing:
        _check_missing(members.missing, members.status, artifacts)
    return Index(
        run_id=members.run_id,
        world_id=members.world_id,
        status=members.status,
        artifacts=artifacts,
        missing=tuple(members.missing),
        repairs=members.repairs,
        digest=members.index_sha256,
    )


def _check_missing(missing: list[str], status: str, artifacts: Container[str]) -> None:
    if not all(map(is_artifact_path, missing)) or missing != sorted(set(missing)):
        raise ShapeError("index.missing is not a sorted list of paths inside the bundle")
    if any(path in artifacts for path in missing):
        raise ShapeError("index.missing names an artifact that index.artifacts lists")
    if status == "ok":
        raise ShapeError("the index has status ok but lists missing artifacts")


def _checked_entries(entries: Sequence[Artifact]) -> dict[str, Artifact]:
    """Return the entries that msgspec parsed, which have sizes and lengths within their limits. Raises ShapeError."""
    paths = tuple([each.path for each in entries])
    digests = [each.sha256 for each in entries]
    digests += [chain.head for each in entries if (chain := each.chain) is not None]
    if len(paths) <= _USUAL:
        _check_usual_paths(paths)
    else:
        _check_paths(paths)
    if "".join(digests).encode().translate(None, _HEX):
        raise ShapeError("index.artifacts has a digest that is not a SHA-256 in lower-case hexadecimal")
    return dict(zip(paths, entries, strict=True))


def _parse_entries(text: str) -> tuple[dict[str, Artifact], int]:
    """Return the entries of an index, and where its second member begins, in bytes. `artifacts` sorts before every
    other one."""
    artifacts: list[Artifact] = []
    at, schemas = len(_START), dict[str | None, str | None]({None: None})
    for found in re.compile(_CANONICAL_ENTRY).finditer(text, at):
        if found.start() != at:
            break
        count, head, size, path, schema, sha256 = found.groups()
        if schema not in schemas:
            schemas[schema] = _check_schema(_unquote(schema), len(artifacts))
        anchor = None if head is None else Anchor(_integer(count), head)
        artifacts.append(Artifact(_unquote(path), _integer(size), sha256, schemas[schema], anchor))
        at = found.end()
    if not text.startswith(_START) or not text.startswith("],", at):
        raise ShapeError(_NOT_CANONICAL)
    paths = [each.path for each in artifacts]
    _check_paths(paths)
    return dict(zip(paths, artifacts, strict=True)), len(text[: at + 2].encode())


def _check_paths(paths: Sequence[str]) -> None:
    if not are_artifact_paths(paths):
        raise _outside(next(number for number, path in enumerate(paths) if not is_artifact_path(path)))
    if not all(map(lt, paths, paths[1:])):
        wrong = next(n for n, (path, following) in enumerate(pairwise(paths), 1) if path >= following)
        raise ShapeError(f"index.artifacts[{wrong}].path is out of order or a duplicate")
    at = bisect_left(paths, INDEX)
    if at < len(paths) and paths[at] == INDEX:
        raise _outside(at)


def _outside(number: int) -> ShapeError:
    return ShapeError(f"index.artifacts[{number}].path is not a path inside the bundle")


_USUAL = 32
_check_usual_paths = lru_cache(maxsize=64)(_check_paths)  # the attempts of a run have the same


def _check_schema(schema: str, number: int) -> str:
    if len(schema) > _MAX_SCHEMA:
        raise ShapeError(f"index.artifacts[{number}].schema_version is too long")
    return schema


def _unquote(literal: str) -> str:
    """Return the value of a JSON string. Raises ShapeError if it is not in canonical form."""
    if "\\" not in literal:
        return literal[1:-1]
    value = parse_strict(literal.encode())
    if canonical_bytes(value) != literal.encode():
        raise ShapeError(_NOT_CANONICAL)
    return str(value)


def _integer(literal: str) -> int:
    value = int(literal)
    if value > MAX_INTEGER:
        raise ShapeError(_NOT_CANONICAL)
    return value


def _check_digest(data: bytes, at: int, stated: str) -> None:
    """Raise ShapeError unless an index has the digest that it states, in its second member, which begins at `at`."""
    computed = hashlib.sha256(memoryview(data)[:at])
    computed.update(memoryview(data)[at + _STATED_BYTES :])
    if computed.hexdigest() != stated:
        raise ShapeError("the index does not match its own digest")


def _problem(data: bytes, error: ValueError) -> ShapeError:
    """Return what is wrong with an index: its version or its shape if that is the reason, else `error`."""
    try:
        document = parse_strict(data)
        if type(document) is not dict:
            return ShapeError("the index is not an object")
        refuse_other_schema(document, SCHEMA)
        _DOCUMENT(document, "index")
    except ShapeError as problem:
        return problem
    except CanonicalError as problem:
        return ShapeError(str(problem))
    return ShapeError(str(error))


def _first_pieces(entries: list[Any]) -> Iterator[bytes]:
    """Yield the canonical bytes of an index up to its second member. `artifacts` sorts before every other member."""
    yield _START.encode()
    for number, entry in enumerate(entries):
        yield (b"," if number else b"") + canonical_bytes(entry)
    yield b"],"


def bounded_bytes(index: Index) -> bytes:
    """Return the bytes of the index file. Raises BundleTooLarge if readers would refuse it."""
    try:
        data = index.to_bytes()
        check_values(data)
    except CanonicalError as error:
        raise _too_many(index, str(error)) from error
    if len(data) > MAX_INDEX_BYTES:
        raise _too_many(index, f"{len(data)} bytes; the limit is {MAX_INDEX_BYTES}")
    return data


def _too_many(index: Index, why: str) -> BundleTooLarge:
    return BundleTooLarge(
        f"{index.run_id} has too many files for one index ({len(index.artifacts)}): {why}",
        op="bundle commit",
        fix_hints=["put many small files into an archive or into nested bundles"],
    )


def refuse_other_schema(document: Mapping[str, Any], known: str) -> None:
    version = document.get("schema_version")
    if version != known:
        raise _other_schema(version, known)


def _other_schema(version: object, known: str) -> SchemaUnknown:
    return SchemaUnknown(f"schema_version is {str(version)[:100]!r}; expected {known!r}")


def schema_of(data: bytes) -> str | None:
    """Return the `schema_version` of a JSON document; None if the bytes are not JSON."""
    try:
        value = parse_strict(data)
    except CanonicalError:
        return None
    return stated_schema(value)


def stated_schema(value: Any) -> str | None:
    version = value.get("schema_version") if type(value) is dict else None
    return version if type(version) is str and len(version) <= _MAX_SCHEMA else None


def index_of(run_id: str, world_id: str, status: str, artifacts: Iterable[Artifact], missing: Iterable[str]) -> Index:
    return Index(run_id, world_id, status, {each.path: each for each in artifacts}, tuple(missing))
