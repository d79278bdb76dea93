"""Images by digest: archives that were sent to this machine, and names that mean something else here."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_engine import rootfs

from proofbox import Sandboxes
from proofbox.core.digest import sha256_hex
from proofbox.errors import ImageCorrupt, ImageLocked, ImageUnknown
from proofbox.sandbox.images.image import Image, images_dir
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.images.pull import lock_image, named_image, runnable_image
from proofbox.sandbox.images.received import received_dir
from proofbox.sandbox.images.tree import unpacked


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def own(project: Path, tmp_path: Path) -> Image:
    (tmp_path / "root/bin").mkdir(parents=True)
    return import_image(tmp_path / "root", "tools")


def receive(data: bytes) -> str:
    """Store an archive where the conductor keeps its own, and return the reference to it under the name `tools`."""
    digest = sha256_hex(data)
    received_dir().mkdir(parents=True, exist_ok=True)
    (received_dir() / f"{digest}.tar").write_bytes(data)
    return f"tools@sha256:{digest}"


@pytest.mark.needs("bubblewrap")
def test_received_image_is_the_root_of_a_box_while_its_name_means_another(project: Path, own: Image) -> None:
    reference = receive(rootfs())
    before = sorted(images_dir().iterdir())
    with Sandboxes(project) as boxes:
        result = boxes.exec(["sh", "-c", "busybox | head -1"], provider="bubblewrap", image=reference)
    assert "BusyBox" in result.stdout
    assert result.policy.image == reference
    assert sorted(images_dir().iterdir()) == before, "nothing was added to the images of this machine"
    assert runnable_image("tools", project) == own


def test_own_image_with_the_digest_is_used_regardless_of_its_name(project: Path, own: Image) -> None:
    found = named_image(f"other@sha256:{own.sha256}", project)
    assert found is not None
    assert (found.name, found.archive) == ("other", own.archive)


def test_received_image_is_found_only_by_its_digest(project: Path) -> None:
    reference = receive(b"data")
    for name in ("tools", f"tools@sha256:{'0' * 64}", reference[:-1], f"../{reference}"):
        with pytest.raises(ImageUnknown):
            runnable_image(name, project)


def test_damaged_archive_is_refused_and_removed(project: Path) -> None:
    reference = receive(b"data")
    image = runnable_image(reference, project)
    image.archive.write_bytes(b"other")
    with pytest.raises(ImageCorrupt):
        unpacked(image)
    assert not image.archive.exists()


def test_lock_of_the_project_applies(project: Path, own: Image) -> None:
    lock_image(project, own)
    with pytest.raises(ImageLocked):
        runnable_image(receive(b"data"), project)
