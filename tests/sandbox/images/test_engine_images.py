"""OCI references in the catalogue: pinned by digest, pulled by the container engine, and run only by `docker`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_engine import DIGEST, REFERENCE, FakeEngine, fake_engine

import proofbox
from proofbox.cli import main
from proofbox.core.dirs import cache_dir, config_dir
from proofbox.errors import EngineRefused, ImageLocked, ImageUnavailable, UsageError
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.images import engine_image
from proofbox.sandbox.images.image import architecture
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.images.pull import runnable_image
from proofbox.sandbox.images.received import received_dir
from proofbox.sandbox.images.tree import unpacked
from proofbox.sandbox.images.unused_files import YOUNG, engine_copies, signed_interpreters

OTHER = "b" * 64


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def engine(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path / "engine") as found:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
        yield found


def catalogue(url: str = f"docker://{REFERENCE}", sha256: str = DIGEST) -> None:
    lines = ['schema_version = "proofbox.images/1"', "[[image]]", 'name = "tools"', f'arch = "{architecture()}"']
    lines += [f'url = "{url}"', f'sha256 = "{sha256}"']
    (config_dir() / "images.toml").write_text("\n".join(lines) + "\n")


def test_engine_pulls_a_reference_by_digest_once(
    engine: FakeEngine, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue()
    assert are_here(capsys) == [False]
    assert main(["images", "pull", "tools", "--project", str(project), "--json"]) == 0
    pulled = json.loads(capsys.readouterr().out)
    assert (pulled["downloaded"], pulled["path"], pulled["image"]["sha256"]) == (True, "", DIGEST)
    assert are_here(capsys) == [True]
    engine.registry.clear()  # offline
    assert not proofbox.pull_image("tools", project_root=project).downloaded
    assert engine.pulls == [REFERENCE]
    assert DIGEST in (project / ".proofbox/images.lock").read_text()


def test_docker_runs_only_a_pulled_reference(engine: FakeEngine, project: Path) -> None:
    catalogue()
    with pytest.raises(ImageUnavailable) as refused:
        engine_image(ContainerEngine.find(), "tools", project)
    assert refused.value.fix_hints == ("proofbox images pull tools",)
    assert engine.pulls == [], "a start never downloads"
    proofbox.pull_image("tools", project_root=project)
    assert engine_image(ContainerEngine.find(), "tools", project) == REFERENCE


def test_failed_pull_is_explained_and_not_locked(engine: FakeEngine, project: Path) -> None:
    catalogue()
    engine.registry.clear()
    with pytest.raises(EngineRefused, match="manifest unknown"):
        proofbox.pull_image("tools", project_root=project)
    assert not (project / ".proofbox/images.lock").exists()


def test_another_digest_is_refused_until_it_is_accepted(engine: FakeEngine, project: Path) -> None:
    catalogue()
    proofbox.pull_image("tools", project_root=project)
    catalogue(f"docker://{REFERENCE}".replace(DIGEST, OTHER), OTHER)
    with pytest.raises(ImageLocked):
        proofbox.pull_image("tools", project_root=project)
    assert engine.pulls == [REFERENCE]


def test_gc_removes_copies_of_images_without_a_name(
    engine: FakeEngine, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "a").write_text("1")
    image = import_image(project, "tools")
    named, old, young, used = (f"proofbox-image/tools:{digest}" for digest in (image.sha256, *(c * 64 for c in "bcd")))
    now = int(time.time())
    engine.copies = [
        {"RepoTags": [named], "Size": 1_000_000, "Created": 1},
        {"RepoTags": [old], "Size": 2_000_000, "Created": 1},
        {"RepoTags": [young], "Size": 3_000_000, "Created": now},
        {"RepoTags": [used], "Size": 4_000_000, "Created": 1, "used": True},
        {"RepoTags": ["debian:12"], "Size": 5_000_000, "Created": 1},
    ]
    assert main(["gc", "--json"]) == 1
    items = [each for each in json.loads(capsys.readouterr().out)["items"] if each["kind"] == "engine_image"]
    assert [each["path"] for each in items if not each["free"]] == [named, young]
    assert [each["path"] for each in items if each["free"] and not each["left"]] == [old]
    assert [each["path"] for each in items if each["left"]] == [used]
    assert [each["RepoTags"][0] for each in engine.copies] == [named, young, used, "debian:12"]


def test_gc_keeps_the_copies_of_all_names_of_an_image(engine: FakeEngine, project: Path) -> None:
    """On a node, an attempt may also use an image by a name that it has only where the run was started."""
    (project / "a").write_text("1")
    image = import_image(project, "tools")
    assert import_image(project, "also-tools").sha256 == image.sha256
    kept = [f"proofbox-image/{name}:{image.sha256}" for name in ("tools", "also-tools", "elsewhere")]
    engine.copies = [{"RepoTags": [each], "Size": 1_000_000, "Created": 1} for each in kept]
    proofbox.collect_garbage()
    assert [each["RepoTags"] for each in engine.copies] == [[each] for each in kept]


def test_gc_keeps_the_copy_of_an_image_that_was_sent_to_this_node(engine: FakeEngine, project: Path) -> None:
    received, copy = received_dir() / f"{OTHER}.tar", f"proofbox-image/tools:{OTHER}"
    received.parent.mkdir(parents=True)
    received.touch()
    engine.copies = [{"RepoTags": [copy], "Size": 1_000_000, "Created": 1}]
    [item] = [each for each in proofbox.collect_garbage().items if each.kind == "engine_image"]
    assert (item.path, item.free, item.reason) == (copy, False, "an image that was sent to this node")
    received.unlink()
    assert [each.path for each in proofbox.collect_garbage().items if each.free] == [copy]
    assert engine.copies == []


def test_gc_without_an_engine_has_nothing_to_remove(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{project}/absent")
    assert engine_copies(0.0) == []


def test_gc_removes_signed_copies_of_another_python(project: Path) -> None:
    folder = cache_dir() / "apple-vm"
    for count, name in enumerate(("older", "newer", "signing-1")):
        (folder / name / "bin").mkdir(parents=True)
        os.utime(folder / name, (count, count))
    found = {path.name: free for path, free, _ in signed_interpreters(YOUNG + 10)}
    assert found == {"older": True, "newer": False, "signing-1": True}
    assert not any(each.free for each in signed_interpreters(YOUNG - 10))


def test_other_providers_explain_how_to_use_its_files(engine: FakeEngine, project: Path) -> None:
    catalogue()
    with pytest.raises(ImageUnavailable, match="only docker can run it") as refused:
        unpacked(runnable_image("tools", project))
    assert any(f"images import docker:{REFERENCE} " in hint for hint in refused.value.fix_hints)


def test_archive_that_was_never_pulled_is_explained_on_a_new_machine(project: Path) -> None:
    catalogue("https://example.org/rootfs.tar", DIGEST)
    with pytest.raises(ImageUnavailable, match="has not been pulled"):
        unpacked(runnable_image("tools", project))


def test_image_is_not_here_without_an_engine(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    catalogue()
    assert are_here(capsys) == [False]


@pytest.mark.parametrize(
    ("url", "sha256"),
    [
        ("docker://debian:12", DIGEST),
        (f"docker://debian@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/library/debian:12@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/library/debian@sha256:{OTHER}", DIGEST),
        (f"docker://user:secret@docker.io/debian@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/../x@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/x?y@sha256:{DIGEST}", DIGEST),
    ],
    ids=["tag", "no-registry", "tag-and-digest", "other-digest", "secret", "dots", "query"],
)
def test_reference_without_an_exact_meaning_is_refused(project: Path, url: str, sha256: str) -> None:
    catalogue(url, sha256)
    with pytest.raises(UsageError, match=r"docker://REGISTRY/NAME@sha256:DIGEST|not the digest in its url"):
        proofbox.list_images()


def are_here(capsys: pytest.CaptureFixture[str]) -> list[bool]:
    """Return which of the catalogue's images are on this machine, as `images list` prints it."""
    assert main(["images", "list", "--catalogue", str(config_dir() / "images.toml"), "--json"]) == 0
    return [each["pulled"] for each in json.loads(capsys.readouterr().out)["images"]]
