"""Every version of every stored document has an example and a fixed shape, and readers refuse unknown versions."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from shapes import current_shapes, recorded_shapes

from proofbox import BundleWriter, load_bundle
from proofbox.agents.health import counters
from proofbox.agents.runtimes.acp.threads import AcpThreadStore
from proofbox.agents.runtimes.claude.threads import ClaudeThreadStore
from proofbox.agents.runtimes.scripted.threads import ThreadStore
from proofbox.cli import schemas
from proofbox.config import consent, settings
from proofbox.core.canonical import canonical_bytes
from proofbox.core.dirs import state_dir
from proofbox.delivery.patch.baseline import parse_baseline
from proofbox.errors import BundleSchemaUnknown, VersionUnknown
from proofbox.evidence.bundle import repair
from proofbox.evidence.bundle.index import SchemaUnknown, parse_index
from proofbox.evidence.bundle.status import parse_status
from proofbox.evidence.documents.base_tree import BaseTree, base_path, read_tree
from proofbox.evidence.documents.outcome import parse_outcome
from proofbox.evidence.documents.tree import TreeEntry, parse_tree_manifest
from proofbox.evidence.documents.witnesses import check_witnesses
from proofbox.evidence.promotion.packet import parse_packet
from proofbox.evidence.promotion.policy import check_policy
from proofbox.evidence.verify.embedded import parse_embedded
from proofbox.lab.campaign.history import known_campaigns
from proofbox.lab.campaign.registration import read_manifest
from proofbox.lab.run import limiter
from proofbox.lab.run.ledger import Ledger
from proofbox.sandbox.images import catalogue, pull
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.local import local_images
from proofbox.sandbox.sessions import SessionStore
from proofbox.viewer.annotations import parse_note

EXAMPLES = Path(__file__).parent
NAMES = sorted(recorded_shapes())
stored = cache(schemas.stored)
UNKNOWN = (VersionUnknown, BundleSchemaUnknown, SchemaUnknown)


def example(name: str) -> Path:
    """Return the example of a version, such as proofbox.outcome/1.json; those without a version are `unversioned`."""
    kind, _, version = name.partition("/")
    (path,) = (EXAMPLES / kind).glob(f"{version or 'unversioned'}.*")
    return path


def document(name: str) -> Any:
    path = example(name)
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_bytes())


# Examples and shapes


def test_no_shape_changes_without_a_new_version() -> None:
    """If this fails, give the document a new version, as docs/schema-versions.md describes."""
    recorded, current = recorded_shapes(), current_shapes()
    assert {name: shape for name, shape in current.items() if recorded.get(name, shape) != shape} == {}
    assert current.keys() - recorded.keys() == set(), "run .venv/bin/python tests/schemas/shapes.py"


@pytest.mark.parametrize("name", NAMES)
def test_every_version_has_an_example_that_matches_its_schema(name: str) -> None:
    if name == "proofbox.ledger/1":
        assert "CREATE TABLE" in example(name).read_text()
        return
    found = document(name)
    stated = found.get("schema_version", name)
    assert stated == name or not isinstance(stated, str)
    if name in stored():
        jsonschema.Draft202012Validator(stored()[name].json_schema).validate(found)


def test_every_stored_document_has_a_recorded_version() -> None:
    assert set(stored()) <= set(NAMES)


# Readers


def in_bundle(name: str) -> Callable[[bytes, Path], object]:
    """Read a document as an artifact of a bundle."""

    def read(data: bytes, place: Path) -> object:
        with BundleWriter.create(place / "out") as bundle:
            bundle.write_bytes("document.json", data)
        return load_bundle(place / "out").read_json("document.json", schema=name)

    return read


def in_file(path: Callable[[Path], Path], read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Read a document from a file, which stays unchanged."""

    def with_file(data: bytes, place: Path) -> object:
        file = path(place)
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(data)
        try:
            return read(place)
        finally:
            assert file.read_bytes() == data
            file.unlink()
            if before is not None:
                file.write_bytes(before)

    return with_file


def ledger(data: bytes, place: Path) -> object:
    path = place / "run.ledger"
    with sqlite3.connect(path) as database:
        database.executescript(data.decode())
    database.close()
    with Ledger(path) as opened:
        return opened.attempts()


def repair_log(data: bytes, place: Path) -> object:
    with BundleWriter.create(place / "out") as bundle:
        pass
    (bundle.path / "repair_log.json").write_bytes(data)
    return repair.reindex_repair(bundle.path)


def tree_differences(data: bytes, place: Path) -> object:
    base = BaseTree([TreeEntry(b"notes.txt", "100644", 3, "0" * 64)])
    path = place / base_path(base.sha256)
    path.parent.mkdir()
    path.write_bytes(base.document)
    return read_tree(json.loads(data), str(place / "attempt"))


def index(data: bytes, _: Path) -> object:
    return parse_index(canonical_bytes(json.loads(data)))


SESSION = document("proofbox.session_record/1")["id"]
THREAD = document("proofbox.thread/1")["id"]
CLAUDE_THREAD = document("proofbox.claude_thread/1")["id"]
ACP_THREAD = document("proofbox.acp_thread/1")["id"]
READERS: dict[str, Callable[[bytes, Path], object]] = {
    "proofbox.artifact_index/1": index,
    "proofbox.run_status/1": lambda data, _: parse_status(canonical_bytes(json.loads(data))),
    "proofbox.outcome/1": lambda data, _: parse_outcome(json.loads(data)),
    "proofbox.tree_manifest/1": lambda data, _: parse_tree_manifest(json.loads(data)),
    "proofbox.annotation/1": lambda data, _: parse_note(data),
    "proofbox.embedded_evidence/1": lambda data, _: parse_embedded(data),
    "proofbox.tree_manifest/2": tree_differences,
    "proofbox.path_witnesses/1": lambda data, _: check_witnesses(json.loads(data)),
    "proofbox.promotion_packet/1": lambda data, _: parse_packet(json.loads(data)),
    "proofbox.promotion_packet/2": lambda data, _: parse_packet(json.loads(data)),
    "proofbox.promotion_policy/1": lambda data, _: check_policy(json.loads(data)),
    "proofbox.delivery_baseline/1": lambda data, _: parse_baseline(data, "baseline.json"),
    "proofbox.repair_log/1": repair_log,
    "proofbox.ledger/1": ledger,
    "proofbox.campaign_manifest/1": in_file(lambda tmp: tmp / "campaign.json", read_manifest),
    "proofbox.campaign_history/1": in_file(lambda _: state_dir() / "campaigns.json", lambda _: known_campaigns()),
    "proofbox.consents/1": in_file(lambda _: state_dir() / "consents.json", lambda _: consent._read()),
    "proofbox.trusted/1": in_file(lambda _: state_dir() / "trusted.json", lambda _: settings._agreed()),
    "proofbox.limiter/1": in_file(lambda place: place / "l.json", lambda place: limiter._read(place / "l.json")),
    "proofbox.strategy_health/1": in_file(
        lambda place: place / "h.json", lambda place: counters._read(place / "h.json", "codex_app_server")
    ),
    "proofbox.images/1": in_file(
        lambda place: place / "images.toml", lambda place: catalogue.read_catalogue(place / "images.toml")
    ),
    "proofbox.local_image/1": in_file(lambda _: images_dir() / "small-x86_64.json", lambda _: local_images()),
    "proofbox.images_lock/1": in_file(lambda place: place / pull.LOCK_FILE, pull._locked),
    "proofbox.thread/1": in_file(
        lambda place: place / "threads" / f"{THREAD}.json", lambda place: ThreadStore(place).load(THREAD)
    ),
    "proofbox.acp_thread/1": in_file(
        lambda place: place / "threads" / f"{ACP_THREAD}.json", lambda place: AcpThreadStore(place).load(ACP_THREAD)
    ),
    "proofbox.claude_thread/1": in_file(
        lambda place: place / "threads" / f"{CLAUDE_THREAD}.json",
        lambda place: ClaudeThreadStore(place).load(CLAUDE_THREAD),
    ),
    "proofbox.session_record/1": in_file(
        lambda place: place / SESSION / "session.json", lambda place: SessionStore(place).load(SESSION)
    ),
    **{
        name: in_bundle(name)
        for name in (
            *("proofbox.attempt/2", "proofbox.attempt_report/2", "proofbox.feedback/1"),
            *("proofbox.plan_manifest/1", "proofbox.runtime_results/1"),
        )
    },
}
NOT_READ = {
    "proofbox.trials/1": "a cache, which is ignored and written again",
    "proofbox.runtime_measurement/1": "a benchmark's result, which is ignored and measured again",
    "proofbox.chain/1": "the name of the chain, which every line's digest covers",
    **dict.fromkeys(
        ("proofbox.runner_ref/1", "proofbox.torn_attempt/1"),
        "shown as it is",
    ),
    **dict.fromkeys(
        ("proofbox.conformance/1", "proofbox.node/1", "proofbox.runtime_conformance/1", "proofbox.run_environment/1"),
        "shown as it is",
    ),
    "proofbox.exploration/1": "only written",
    **dict.fromkeys(
        ("proofbox.delivery_answer/1", "proofbox.delivery_record/1", "proofbox.delivery_request/1"), "only written"
    ),
    **dict.fromkeys(
        ("proofbox.effect/1", "proofbox.model_exchange/1", "proofbox.step/2", "proofbox.tool_call/2"), "lines of a log"
    ),
    "proofbox.run_summary/1": "derived from the attempts and compared; another version is not compared",
    "proofbox.suite/1": "written by people, without a version",
    "proofbox.campaign/1": "written by people, without a version",
    "proofbox.campaign_regrade/1": "only written",
    "proofbox.attempt_cleanup/2": "only its code is read, and counted",
    **dict.fromkeys(
        ("proofbox.campaign_results/1", "proofbox.campaign_runs/1"),
        "derived from the runs and compared as a whole",
    ),
    "proofbox.plan/1": "the copy of a plan in its evidence, which no command reads",
    **dict.fromkeys(
        (
            *("proofbox.apply_preflight/1", "proofbox.baseline_results/1", "proofbox.expected_matrix/1"),
            *("proofbox.mismatch_summary/1", "proofbox.oracle_results/1", "proofbox.plan_summary/1"),
            "proofbox.runtime_events/1",
        ),
        "read by promotion policies, which name the members they need",
    ),
}


def test_every_version_is_read_or_has_a_reason() -> None:
    versioned = {name for name in NAMES if "/" in name}
    assert READERS.keys() | NOT_READ.keys() == versioned
    assert not READERS.keys() & NOT_READ.keys()


@pytest.mark.parametrize("name", READERS)
def test_reader_accepts_every_known_version(name: str, tmp_path: Path) -> None:
    READERS[name](example(name).read_bytes(), tmp_path)


@pytest.mark.parametrize("name", READERS)
def test_reader_refuses_an_unknown_version_and_names_both(name: str, tmp_path: Path) -> None:
    newer = f"{name.partition('/')[0]}/99"
    data = example(name).read_bytes().replace(name.encode(), newer.encode())
    with pytest.raises(UNKNOWN) as refused:
        READERS[name](data, tmp_path)
    assert newer in str(refused.value)
    assert name.partition("/")[0] + "/" in str(refused.value).replace(newer, "")
