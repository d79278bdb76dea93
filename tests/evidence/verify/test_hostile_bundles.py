"""Untrusted documents: readers refuse invalid content with their own error and never crash."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox import BundleWriter
from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import digest_of
from proofbox.errors import ProofboxError
from proofbox.evidence.attest.dsse import Envelope
from proofbox.evidence.attest.keys import load_private_key, new_key
from proofbox.evidence.bundle.index import parse_index
from proofbox.evidence.bundle.status import parse_status
from proofbox.evidence.documents.outcome import Outcome, Verdict, parse_outcome
from proofbox.evidence.documents.schedule import read_schedule
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.documents.tree import TreeEntry, parse_tree_manifest, tree_manifest
from proofbox.evidence.documents.witnesses import PathWitness, check_witnesses, witnesses_document
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.packet import PREDICATE_TYPES, parse_packet
from proofbox.evidence.promotion.policies import POLICIES
from proofbox.evidence.promotion.policy import check_policy, evaluate
from proofbox.evidence.verify.check import check_bundle
from proofbox.evidence.verify.verifier import verify_packet

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
AT = "2026-01-01T00:00:00.000000Z"
SCHEDULE = [
    {"kind": "planned", "attempt": "a", "at": AT, "path": "attempts/a", "parent": None},
    {"kind": "started", "attempt": "a", "at": AT},
    {"kind": "finished", "attempt": "a", "at": AT, "index_sha256": "0" * 64},
    {"kind": "closed", "at": AT, "planned": 1},
]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A good document of each kind."""
    place = tmp_path_factory.mktemp("samples")
    with BundleWriter.create(place / "out", expected=["absent"]) as bundle:
        bundle.write_json("outcome.json", Outcome(Verdict("passed", "me", "so")).as_json())
        with bundle.open_log("l.jsonl") as log:
            log.append({"n": 1})
    new_key(place / "key")
    signed = emit_promotion(bundle.path, sign=place / "key")
    assert load_private_key(place / "key")
    return {
        "path": str(bundle.path),
        "index": json.loads((bundle.path / "artifact_index.json").read_bytes()),
        "status": json.loads((bundle.path / "run_status.json").read_bytes()),
        "packet": signed.document,
        "envelope": json.loads(Path(signed.path).read_bytes()),
        "outcome": Outcome().as_json(),
        "tree": tree_manifest([TreeEntry(b"a", "100644", 1, "0" * 64), TreeEntry(b"\xff", "120000", 1, "0" * 64)]),
        "witnesses": witnesses_document([PathWitness("/", "/", None, "/")]),
        "schedule": SCHEDULE,
        "policy": POLICIES["run"],
    }


def places(value: Any) -> list[tuple[Any, Any]]:
    """Yield the container and the key of every member and item of a document."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += [(value, name) for name in value]
    elif isinstance(value, list):
        found += [(value, number) for number in range(len(value))]
    return found + [deeper for holder, name in found for deeper in places(holder[name])]


def parse_envelope(document: Any) -> None:
    Envelope(document).statement(PREDICATE_TYPES)


def parse_index_document(document: Any) -> None:
    """Parse the document as a forger would write it: canonical, and with a matching digest."""
    if isinstance(document, dict) and "index_sha256" in document:
        rest = {name: value for name, value in document.items() if name != "index_sha256"}
        document = {**rest, "index_sha256": digest_of(rest)}
    parse_index(canonical_bytes(document))


PARSERS: dict[str, Callable[[Any], Any]] = {
    "index": parse_index_document,
    "status": lambda document: parse_status(canonical_bytes(document)),
    "packet": parse_packet,
    "envelope": parse_envelope,
    "outcome": parse_outcome,
    "tree": parse_tree_manifest,
    "witnesses": check_witnesses,
    "schedule": lambda document: read_schedule(document if isinstance(document, list) else [document]),
    "policy": check_policy,
}


@pytest.mark.parametrize("kind", PARSERS)
def test_the_samples_are_good(samples: dict[str, Any], kind: str) -> None:
    PARSERS[kind](copy.deepcopy(samples[kind]))


@pytest.mark.parametrize("kind", PARSERS)
@given(data=st.data())
def test_any_member_value_is_handled(samples: dict[str, Any], kind: str, data: st.DataObject) -> None:
    document = copy.deepcopy(samples[kind])
    for _ in range(data.draw(st.integers(1, 3))):
        reachable = places(document)
        holder, name = reachable[data.draw(st.integers(0, len(reachable) - 1))]
        action = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "remove":
            del holder[name]
        elif action == "add" and isinstance(holder, dict):
            holder[data.draw(st.text(max_size=5))] = data.draw(JSON)
        else:
            holder[name] = data.draw(JSON)
        if not places(document):
            break
    with contextlib.suppress(ShapeError):
        PARSERS[kind](document)


@pytest.mark.parametrize("kind", PARSERS)
@given(document=JSON)
def test_any_document_is_handled(kind: str, document: Any) -> None:
    with contextlib.suppress(ShapeError):
        PARSERS[kind](document)


@given(data=st.data())
def test_valid_policy_never_breaks_the_evaluation(samples: dict[str, Any], data: st.DataObject) -> None:
    policy = copy.deepcopy(POLICIES[data.draw(st.sampled_from(sorted(POLICIES)))])
    for rule in policy["rules"]:
        for name in rule.keys() - {"reason", "check"}:
            if data.draw(st.booleans()):
                artifacts = ["outcome.json", "l.jsonl", "run_status.json", "artifact_index.json", "../x"]
                rule[name] = data.draw(JSON | st.sampled_from([*artifacts, ["claimed", "result"], []]))
    try:
        check_policy(policy)
    except ShapeError:
        return
    rulings = evaluate(policy, check_bundle(samples["path"]))
    assert [ruling.reason for ruling in rulings] == [rule["reason"] for rule in policy["rules"]]


@given(content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_packet_file_content_is_handled(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "packet"
    path.write_bytes(content)
    with contextlib.suppress(ProofboxError):
        assert not verify_packet(str(path)).ok
