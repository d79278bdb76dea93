"""Indexes can be read back, and only in the form in which they are written."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import digest_of
from proofbox.evidence.bundle.index import Anchor, Artifact, SchemaUnknown, index_of, parse_index
from proofbox.evidence.bundle.paths import are_artifact_paths, is_artifact_path
from proofbox.evidence.documents.shape import ShapeError

A, B = "a" * 64, "0" * 64
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join).filter(is_artifact_path)
SIZES = st.integers(0, 2**53 - 1)
ARTIFACTS = st.builds(
    Artifact,
    path=PATHS,
    file_size=SIZES,
    sha256=st.sampled_from([A, B]),
    schema_version=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
    chain=st.none() | st.builds(Anchor, count=SIZES, head=st.just(B)),
)


@given(st.lists(ARTIFACTS, max_size=4), st.sets(PATHS, max_size=2))
def test_written_index_is_read_back(artifacts: list[Artifact], missing: set[str]) -> None:
    absent = sorted(missing - {each.path for each in artifacts})
    index = index_of("run-1", B, "partial", artifacts, absent)
    assert parse_index(index.to_bytes())._replace(digest="") == index
    with without_msgspec():
        assert parse_index(index.to_bytes())._replace(digest="") == index


def without_msgspec() -> AbstractContextManager[object]:
    return patch("proofbox.evidence.bundle.index._parse_members", lambda _: None)


UNUSUAL = st.sampled_from(["a", ".", "..", "", "/", "\n", "-", ".b", "é", "x" * 256, "x/" * 512])


@example(["a\nb"])
@example(["a/b", "x/" * 512 + "x"])
@example(["a/../b"])
@given(st.lists(st.lists(UNUSUAL, max_size=4).map("".join), max_size=4))
def test_paths_are_valid_together_if_each_of_them_is(paths: list[str]) -> None:
    assert are_artifact_paths(paths) == all(map(is_artifact_path, paths))


DATA = index_of(
    "run-1",
    B,
    "ok",
    [Artifact('a"b.json', 1, A, 'x/1 "\n', None), Artifact("events.jsonl", 20, A, None, Anchor(2, B))],
    (),
).to_bytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"file_size":1,', b'"file_size":01,'),
        (b'"file_size":1,', b'"file_size":1.0,'),
        (b'"file_size":1,', b'"file_size": 1,'),
        (b'"file_size":1,', b'"file_size":-1,'),
        (b'"file_size":1,', b'"file_size":1,"file_size":1,'),
        (b'"file_size":1,', b'"file_size":9007199254740993,'),
        (b'"file_size":1,', b'"extra":1,"file_size":1,'),
        (b'"file_size":1,', b'"chain":null,"file_size":1,'),
        (b'"count":2', b'"count":-2'),
        (b'"count":2', b'"count":9007199254740992'),
        (b'"head":"0', b'"head":"g'),
        (b'"sha256":"a', b'"sha256":"'),
        (b'\\"b', b"\\u0022b"),
        (b"\\n", b"\\u000a"),
        (b"a\\", b"../a\\"),
        (b"a\\", b"z\\"),
        (b"x/1", b"x" * 200),
        (b'"path":"events.jsonl"', b'"path":"artifact_index.json"'),
        (b'"path":"events.jsonl"', b'"path":"a\\"b.json"'),
        (b"events", b"ev\\nents"),
        (b"events", b"e" * 1020),
        (b"},{", b"}, {"),
        (b"},{", b"},,{"),
        (b"}],", b"},],"),
        (b'"repairs":0', b'"repairs":00'),
        (b'"repairs":0', b'"extra":0,"repairs":0'),
        (b'"repairs":0', b'"repairs":-1'),
        (b'"repairs":0', b'"repairs":9007199254740992'),
        (b'"status":"ok"', b'"status":"fine"'),
        (b'"world_id":"0', b'"world_id":"g'),
        (A.encode(), A.upper().encode()),
        (b"events", b"\xffvents"),
        (b"events", b"\\ud800"),
    ],
)
def test_other_spelling_is_refused_even_with_a_matching_digest(old: bytes, new: bytes) -> None:
    assert old in DATA
    changed = DATA.replace(old, new, 1)
    try:
        rest = json.loads(changed)
        stated = rest.pop("index_sha256")
        changed = changed.replace(stated.encode(), digest_of(rest).encode())
    except ValueError:
        pass
    with pytest.raises(ShapeError):
        parse_index(changed)
    with without_msgspec(), pytest.raises(ShapeError):
        parse_index(changed)


def test_version_is_checked_if_everything_else_is_valid() -> None:
    other = json.loads(DATA) | {"schema_version": "proofbox.artifact_index/2"}
    del other["index_sha256"]
    data = canonical_bytes(other | {"index_sha256": digest_of(other)})
    with pytest.raises(SchemaUnknown, match="artifact_index/2"):
        parse_index(data)
    with without_msgspec(), pytest.raises(SchemaUnknown, match="artifact_index/2"):
        parse_index(data)


def test_index_of_another_version_is_named_regardless_of_its_entries() -> None:
    other = {"artifacts": [{"name": "a"}], "schema_version": "proofbox.artifact_index/2"}
    with pytest.raises(SchemaUnknown, match="artifact_index/2"):
        parse_index(json.dumps(other).encode())
