"""Which nodes of a cluster get attempts: version, architecture, keys, clock, and what was measured."""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from suites import HEAD, mission, say

from proofbox.config.settings import Settings
from proofbox.evidence.bundle.identity import world
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.doctor import QUICK
from proofbox.lab.run import resources
from proofbox.lab.run.crews.cluster import preflight
from proofbox.lab.run.crews.cluster.images import RunImages
from proofbox.lab.run.crews.cluster.preflight import MAX_SKEW, MeasuredBox, boxes_of, measure_node, refusals
from proofbox.lab.run.plan import Plan, key_names, required_keys
from proofbox.sandbox.images.image import Image

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
        ({"proofbox": "0.0.7"}, 0.0, "it has proofbox 0.0.7, but this machine has"),
        ({"machine": "sparc64"}, 0.0, "its architecture is sparc64, but this machine has"),
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


@pytest.mark.needs("bubblewrap")
def test_node_is_measured_with_its_sandbox_and_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("secret\n")
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    monkeypatch.setenv("TEAM_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("LOST_KEY_FILE", str(tmp_path / "lost"))
    keys = ["MODEL_API_KEY", "TEAM_KEY", "LOST_KEY", "UNSET_KEY"]
    found = measure_node("node-1", [MeasuredBox("bubblewrap", None)], keys, [], tmp_path)
    assert (found.name, found.kernel, found.machine) == ("node-1", platform.release(), platform.machine())
    assert set(found.checks) == set(QUICK)
    assert set(found.checks.values()) == {"passed"}
    assert (found.keys, found.problem) == (("MODEL_API_KEY", "TEAM_KEY"), "")
    monkeypatch.setattr(resources, "reason", lambda place: "the disk is full")
    full = measure_node("node-1", [MeasuredBox("bubblewrap", None)], [], [], tmp_path)
    assert list(refusals(full, [], 0.0)) == ["the disk is full"]


@pytest.mark.parametrize("provider", ["docker", "unknown"])
def test_node_without_the_provider_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    found = measure_node("node-1", [MeasuredBox(provider, None)], [], [], tmp_path)
    assert "passed" not in found.checks.values()
    assert found.problem


def test_each_provider_of_the_missions_is_measured_with_an_image_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HEAD + mission("plain", say("done")) + mission("other", say("done"), provider="bubblewrap")
    source += "".join(mission(id, say("done"), provider="docker", image=f"{id}:1") for id in ("first", "second"))
    source += mission("archived", say("done"), image="tools@sha256:1")
    references = {"first": "first:1", "second": "second:1", "archived": "tools@sha256:1"}
    images = RunImages(references, {"tools@sha256:1": Image(name="tools", arch="", sha256="1", source="import")})
    made = plan_of(source, tmp_path)
    found = boxes_of(made, images)
    assert found == [MeasuredBox(None, None), MeasuredBox("bubblewrap", None), MeasuredBox("docker", "first:1")]
    assert boxes_of(msgspec.structs.replace(made, provider="bubblewrap"), RunImages()) == [found[1]]

    measured: list[tuple[str, str | None]] = []

    def conformance(provider: str, *, only: object, settings: Settings) -> SimpleNamespace:
        measured.append((provider, settings.image))
        return SimpleNamespace(results=[SimpleNamespace(check="network.tcp", outcome="passed")])

    monkeypatch.setattr("proofbox.sandbox.conformance.run_conformance", conformance)
    monkeypatch.setattr(preflight, "absent_image", lambda images: "")
    record = measure_node("node-1", found[1:], [], ["first:1", "second:1"], tmp_path)
    assert measured == [("bubblewrap", None), ("docker", "first:1")]
    assert (record.provider, record.problem) == ("bubblewrap, docker", "")
    assert record.checks == {"bubblewrap: network.tcp": "passed", "docker: network.tcp": "passed"}
    monkeypatch.setattr(preflight, "absent_image", lambda images: "pull it")
    assert measure_node("node-1", found[1:], [], ["first:1"], tmp_path).problem == "pull it"
    assert len(measured) == 2, "a missing image is not built for a measurement"


def plan_of(source: str, base: Path, chain: str = "scripted", **options: Any) -> Plan:
    return Plan(
        run_id="run-1",
        suite_name="suite.toml",
        suite_source=source,
        base=str(base),
        chain=chain,
        chain_origin="flag",
        concurrency=1,
        **options,
    )


def test_every_reason_is_given() -> None:
    node = msgspec.structs.replace(NODE, proofbox="0.0.7", machine="sparc64", keys=(), problem="the disk is full")
    assert len(list(refusals(node, ["MODEL_API_KEY"], 3600.0))) == 5


@pytest.mark.parametrize(
    ("chain", "options", "env", "required"),
    [
        ("codex_app_server", {}, {}, ["OPENAI_API_KEY"]),
        ("claude_code", {}, {}, ["ANTHROPIC_API_KEY"]),
        ("codex_app_server", {"flags": {"api_key_env": "TEAM_KEY"}}, {}, ["TEAM_KEY"]),
        ("codex_app_server", {"runtimes": {"codex_app_server": {"base_url": "http://127.0.0.1:1"}}}, {}, []),
        ("codex_app_server,claude_code", {}, {}, ["OPENAI_API_KEY"]),
        ("codex_app_server,claude_code", {"strategy": "claude_code"}, {}, ["ANTHROPIC_API_KEY"]),
        ("scripted,codex_app_server", {}, {}, []),
        ("scripted,codex_app_server", {}, {"OPENAI_API_KEY": "k"}, ["OPENAI_API_KEY"]),
    ],
)
def test_node_needs_the_key_of_the_strategy_and_those_set_here(
    tmp_path: Path, chain: str, options: dict[str, Any], env: dict[str, str], required: list[str]
) -> None:
    made = plan_of(HEAD + mission("answer", say("done")), tmp_path, chain, **options)
    assert required_keys(made, env) == required
    assert set(required) <= set(key_names(made)), "their values are redacted"
