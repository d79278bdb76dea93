"""Harbor tasks in docker, in their own images, with the tests' own engine."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harbor_tasks import PASSES_IF, TOML, Ran, put, task
from private_engine import IMAGE, PrivateEngine, private_engine

from proofbox.errors import ImageAbsent
from proofbox.lab.suite.harbor.tasks import read_tasks
from proofbox.sandbox.containers.image_files import copy_from_image
from proofbox.sandbox.containers.ownership import our_containers

pytestmark = [pytest.mark.needs("docker"), pytest.mark.xdist_group("docker")]


@pytest.fixture(scope="module")
def engine() -> Iterator[PrivateEngine]:
    with private_engine() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started.host)
        yield started


def build(engine: PrivateEngine, name: str, workdir: str, files: dict[str, str]) -> None:
    """An image with files and a WORKDIR, as a build of a Dockerfile would produce."""
    container = engine.engine.call("POST", "/containers/create", op="create", body={"Image": IMAGE, "Cmd": ["-"]})["Id"]
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.uid, member.mode = len(text), 1234, 0o640
            tar.addfile(member, io.BytesIO(text.encode()))
        for path, target in (("app/out", "/etc/passwd"), ("app/deep/up", "../../../../..")):
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    engine.engine.call("PUT", f"/containers/{container}/archive", op="fill", query={"path": "/"}, body=data.getvalue())
    repo, _, tag = name.partition(":")
    engine.engine.call(
        "POST",
        "/commit",
        op="commit",
        query={"container": container, "repo": repo, "tag": tag or "latest"},
        body={"WorkingDir": workdir, "Env": ["PATH=/bin"]},
    )
    engine.engine.call("DELETE", f"/containers/{container}", op="remove")


def containers(engine: PrivateEngine) -> list[object]:
    return list(engine.engine.call("GET", "/containers/json", op="list", query={"all": "1"}))


def test_a_task_runs_unchanged_in_its_image(engine: PrivateEngine, tmp_path: Path) -> None:
    build(engine, "task-of-tests:latest", "/app", {"app/given": "40\n", "app/deep/also": "2\n", "opt/tool": "x"})
    root = task(
        tmp_path / "adds",
        toml=TOML + 'docker_image = "task-of-tests:latest"\n',
        test=PASSES_IF.format(condition="[ $(pwd) = /app ] && [ -e /opt/tool ] && grep -qx 42 answer.txt"),
        solve="#!/bin/sh\nexpr $(cat /app/given) + $(cat deep/also) > /app/answer.txt\n",
    )
    oracle = Ran(root, tmp_path / "out", "oracle", host_root=False)
    assert oracle.verdict() == ("passed", None, "completed")
    recorded = oracle.document("attempt.json")
    assert (recorded["comparable"], recorded["not_comparable"]) == (True, [])
    assert recorded["requested"]["image"] == "task-of-tests:latest"
    assert oracle.document("attempt.json")["verification"]["isolation"] == "container"
    assert Ran(root, tmp_path / "out", "nop", host_root=False).verdict() == ("failed", None, "completed")
    assert containers(engine) == []
    assert our_containers(engine.engine) == {}


def test_missing_image_is_reported_with_fix_hints(engine: PrivateEngine, tmp_path: Path) -> None:
    root = task(tmp_path / "t")
    with pytest.raises(ImageAbsent) as caught:
        read_tasks(root, to_run=True)
    image = caught.value.details["image"]
    assert caught.value.fix_hints[0] == f"docker build -t {image} {root / 'environment'}"
    put(root / "task.toml", TOML + 'docker_image = "nowhere/to-be:had"\n')
    with pytest.raises(ImageAbsent) as caught:
        read_tasks(root, to_run=True)
    assert caught.value.fix_hints[0] == "docker pull nowhere/to-be:had"
    build(engine, image, "/app", {})
    put(root / "task.toml", TOML)
    assert read_tasks(root, to_run=True).missions[0].image == image


def test_missing_image_is_built_and_its_entrypoint_is_reported(engine: PrivateEngine, tmp_path: Path) -> None:
    dockerfile = f'FROM {IMAGE}\nWORKDIR /app\nCOPY given /app/\nENTRYPOINT ["/start.sh"]\n'
    root = task(
        tmp_path / "built",
        dockerfile=dockerfile,
        test=PASSES_IF.format(condition="grep -qx 42 /app/given"),
        solve=None,
    )
    put(root / "environment/given", "42\n")
    mission = read_tasks(root, to_run=True, build=True).missions[0]
    assert mission.image is not None
    assert mission.image.startswith("harbor-built:")
    assert mission.workdir == "/app"
    assert mission.origin is not None
    assert ["ENTRYPOINT is replaced" in each for each in mission.origin.not_comparable] == [True]
    assert Ran(root, tmp_path / "out", "nop", host_root=False).verdict() == ("passed", None, "completed")
    assert containers(engine) == []


def test_all_failed_builds_are_reported_with_their_errors(engine: PrivateEngine, tmp_path: Path) -> None:
    task(tmp_path / "tasks/lacks", dockerfile=f"FROM {IMAGE}\nCOPY nowhere /app/\n")
    with pytest.raises(ImageAbsent, match=r"lacks could not be built: .*nowhere"):
        read_tasks(tmp_path / "tasks", to_run=True, build=True)
    task(tmp_path / "tasks/odd", dockerfile="FROM no-such-image-of-tests\n")
    with pytest.raises(ImageAbsent) as caught:
        read_tasks(tmp_path / "tasks", to_run=True, build=True)
    assert len(caught.value.details["images"]) == 2
    assert containers(engine) == []


def test_files_of_an_image_stay_within_their_directory(engine: PrivateEngine, tmp_path: Path) -> None:
    build(engine, "with-links:latest", "/app", {"app/a": "1"})
    assert copy_from_image("with-links:latest", "/app", tmp_path / "files")
    assert (tmp_path / "files/a").stat().st_uid == tmp_path.stat().st_uid
    assert (tmp_path / "files/out").readlink() == Path("/etc/passwd")
    assert not copy_from_image("with-links:latest", "/nowhere", tmp_path / "none")
    assert list((tmp_path / "none").iterdir()) == []
    assert containers(engine) == []
