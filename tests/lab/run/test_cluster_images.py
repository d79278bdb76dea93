"""Images on a Ray cluster: sent once per node by digest, resumed, checked, and used whatever their name means there."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_engine import DIGEST, REFERENCE, fake_engine
from private_engine import rootfs
from ray_cluster import RayCluster
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, say

from proofbox.config.engine import EngineSettings
from proofbox.config.settings import Settings
from proofbox.core.dirs import config_dir
from proofbox.errors import EngineUnavailable
from proofbox.lab.run.crews.cluster.images import find_images, with_images
from proofbox.lab.run.crews.cluster.preflight import MeasuredBox, absent_image, boxes_of
from proofbox.lab.run.plan import Plan
from proofbox.sandbox.images.catalogue import find_image
from proofbox.sandbox.images.image import Image, architecture
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.images.local import forget, local_images
from proofbox.sandbox.images.received import received_dir

FIRST, SECOND = "cluster-first", "cluster-second"


def image_with(marker: str, name: str, place: Path) -> Image:
    """Import an image with a shell, and a file that contains a marker."""
    with tarfile.open(place, "w") as archive, tarfile.open(fileobj=io.BytesIO(rootfs())) as base:
        for each in base:
            archive.addfile(each, base.extractfile(each) if each.isreg() else None)
        file = tarfile.TarInfo("etc/marker")
        file.size = len(marker)
        archive.addfile(file, io.BytesIO(marker.encode()))
    return import_image(place, name)


def reads_marker(id: str, expected: str, image: str, **fields: object) -> str:
    verify = {"commands": [f"grep -qx {expected} /etc/marker"]}
    return mission(id, command("cat /etc/marker"), say("done"), verify=verify, image=image, **fields)


@pytest.fixture
def nodes_image(tmp_path: Path) -> Iterator[Image]:
    """An image of the nodes, whose name stands for another image on this machine."""
    made = image_with("theirs", FIRST, tmp_path / "theirs.tar")
    yield made
    forget(made.name, made.arch)


@pytest.mark.needs("bubblewrap", "ray")
@pytest.mark.xdist_group("ray")
@pytest.mark.timeout(600)
def test_image_is_sent_once_per_node_and_used_by_digest(
    tmp_path: Path, cluster: RayCluster, nodes_image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted transfer continues. Here, what had arrived before is damaged, so the archive is refused and sent
    again as a whole."""
    out, parcels, engine = tmp_path / "out", received_dir(), EngineSettings(name=f"ray:{cluster.address}")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # not that of the nodes
        first = image_with("first", FIRST, tmp_path / "first.tar")
        source = HEAD + reads_marker("reads", "first", FIRST, replicates=4)
        made = plan(source, out, tmp_path, concurrency=4, engine=engine, trust=True)
        conduct(made, out)
        assert {each[1:] for each in results(made, out).values()} == {("passed", None, "completed")}
        nodes = set()
        for each in attempts(made, out).values():
            assert document(out, made, each, "attempt.json")["requested"]["image"] == first.reference
            nodes.add(document(out, made, each, "node.json")["name"])
        assert len(nodes) == 2
        sent = parcels / f"{first.sha256}.tar"
        assert sent.read_bytes() == first.archive.read_bytes()
        inode = sent.stat().st_ino

        second = image_with("second", SECOND, tmp_path / "second.tar")
        source = HEAD + reads_marker("again", "first", FIRST) + reads_marker("other", "second", SECOND)
        made = plan(source, out, tmp_path, concurrency=1, engine=engine, trust=True)
        for node in nodes:
            (parcels / f"{second.sha256}.{made.run_id}.{node}.part").write_bytes(bytes((second.size or 0) - 1000))
        conduct(made, out)
    found = results(made, out)
    assert found.pop("other.1")[2] == "ATTEMPT_WORKER_LOST"
    assert {id: each[1] for id, each in found.items()} == {"again.1": "passed", "other.1.r1": "passed"}
    lost = document(out, made, attempts(made, out)["other.1"], "outcome.json")
    assert "arrived with another digest" in lost["infra"]["detail"]
    assert sent.stat().st_ino == inode, "it was not sent again"
    assert find_image(FIRST) == nodes_image, "the nodes' own image stays"
    assert [each.name for each in local_images() if each.name in (FIRST, SECOND)] == [FIRST]


# Without a cluster.


def planned(*missions: str, **fields: Any) -> Plan:
    """Return a plan of missions with these tables."""
    source = HEAD + "".join(mission(f"m{number}") + each for number, each in enumerate(missions))
    return Plan(
        run_id="run",
        suite_name="suite",
        suite_source=source,
        base="/",
        chain="scripted",
        chain_origin="flag",
        concurrency=1,
        **fields,
    )


@pytest.fixture
def own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


@pytest.fixture
def tools(own_directories: None, tmp_path: Path) -> Image:
    (tmp_path / "root/bin").mkdir(parents=True)
    return import_image(tmp_path / "root", "tools")


def test_images_of_missions_become_references_with_digests(tools: Image) -> None:
    lines = ['schema_version = "proofbox.images/1"', "[[image]]", 'name = "pinned"', f'arch = "{architecture()}"']
    lines += [f'url = "docker://{REFERENCE}"', f'sha256 = "{DIGEST}"']
    (config_dir() / "images.toml").write_text("\n".join(lines))
    asked = [f'image = "{name}"\n' for name in ("tools", tools.reference, "pinned", "debian:12")]
    plan = planned("", *asked)
    found = find_images(plan)
    by_digest = {"m1": tools.reference, "m2": tools.reference, "m3": REFERENCE, "m4": "debian:12"}
    assert found.references == by_digest
    assert list(found.archives) == [tools.reference]
    assert found.in_engine == ["debian:12", REFERENCE]
    suite = plan.suite()
    there = with_images(suite, found.references)
    assert [each.image for each in there.missions] == [None, *by_digest.values()]
    assert there.sha256 == suite.sha256, "the evidence names the same suite"


def test_image_of_the_settings_is_used_by_digest_as_well(tools: Image) -> None:
    found = find_images(planned("", box_settings=Settings(image="tools")))
    assert found.references == {"m0": tools.reference}


@pytest.mark.parametrize("named", ["flag", "mission", "settings"])
def test_default_image_of_docker_is_used_by_digest(tools: Image, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default image may be another one on a node."""
    monkeypatch.setattr("proofbox.lab.run.crews.cluster.images.resolve_default_image", lambda: tools)
    plan = {
        "flag": lambda: planned("", provider="docker"),
        "mission": lambda: planned('provider = "docker"\n'),
        "settings": lambda: planned("", box_settings=Settings(provider="docker")),
    }[named]()
    found = find_images(plan)
    assert found.references == {"m0": tools.reference}
    assert boxes_of(plan, found) == [MeasuredBox("docker", None)]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"damaged")])
def test_run_whose_image_is_not_on_this_machine_is_refused(tools: Image, damage: Callable[[Path], object]) -> None:
    damage(tools.archive)
    with pytest.raises(EngineUnavailable, match="'tools'") as refused:
        find_images(planned('image = "tools"\n'))
    assert any("import it again" in hint for hint in refused.value.fix_hints)


def test_node_whose_engine_lacks_an_image_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
    assert absent_image([]) == "", "no engine is needed"
    assert "pull" in absent_image([REFERENCE]), "there is no engine"
    with fake_engine(tmp_path / "engine") as engine:
        assert f"the engine has no image '{REFERENCE}'" in absent_image([REFERENCE])
        assert engine.pulls == []
        engine.images.add(REFERENCE)
        assert absent_image([REFERENCE]) == ""
