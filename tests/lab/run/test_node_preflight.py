"""Which nodes of a cluster get attempts: version, architecture, keys, clock, and what was measured."""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import pytest

from proofbox.evidence.bundle.identity import world
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.run.crews.cluster.preflight import MAX_SKEW, absent_image, refusals
from proofbox.sandbox.images.imports import import_image

NODE = NodeRecord(
    name="node-1",
    kernel="6.1",
    machine=platform.machine(),
    python="3.11.0",
    proofbox=world()["tool"]["version"],
    provider="bubblewrap",
    checks={"network-none": "passed"},
    problem="",
    disk_free=1 << 40,
    keys=("MODEL_API_KEY",),
    measured_at="2026-01-01T00:00:00Z",
)


def test_equal_node_gets_attempts() -> None:
    assert list(refusals(NODE, ["MODEL_API_KEY"], MAX_SKEW)) == []


@pytest.mark.parametrize(
    ("differs", "skew", "reason"),
    [
        ({"proofbox": "0.0.7"}, 0.0, "it has proofbox 0.0.7, and this machine"),
        ({"machine": "sparc64"}, 0.0, "its architecture is sparc64, and that of this machine"),
        ({"keys": ()}, 0.0, "MODEL_API_KEY is not set there"),
        ({}, MAX_SKEW + 1, "its clock differs by 31 s"),
        ({}, -MAX_SKEW - 1, "its clock differs by -31 s"),
        ({"problem": "bubblewrap fails network-none"}, 0.0, "bubblewrap fails network-none"),
    ],
)
def test_node_that_differs_is_refused_with_the_reason(differs: dict[str, object], skew: float, reason: str) -> None:
    found = list(refusals(msgspec.structs.replace(NODE, **differs), ["MODEL_API_KEY"], skew))
    assert len(found) == 1
    assert reason in found[0]


def test_every_reason_is_given() -> None:
    node = msgspec.structs.replace(NODE, proofbox="0.0.7", machine="sparc64", keys=(), problem="the disk is full")
    assert len(list(refusals(node, ["MODEL_API_KEY"], 3600.0))) == 5


def test_node_needs_each_image_with_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "root/bin").mkdir(parents=True)
    assert "'tools' is not there" in absent_image({"tools": "0" * 64})
    image = import_image(tmp_path / "root", "tools")
    assert absent_image({"tools": image.sha256}) == ""
    assert "another digest" in absent_image({"tools": "0" * 64})
    image.archive.unlink()
    assert "'tools' is not there" in absent_image({"tools": image.sha256})
