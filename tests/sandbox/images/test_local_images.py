"""Images made on this machine: imported, built, unpacked, used as a root, and collected."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from private_engine import private_engine, rootfs

import proofbox
from proofbox import Sandboxes
from proofbox.cli import main
from proofbox.config.settings import Settings
from proofbox.core.files import programs
from proofbox.core.files.programs import find_program
from proofbox.errors import (
    ImageBuildFailed,
    ImageCorrupt,
    ImageLocked,
    ImageUnknown,
    NotFoundError,
    PathRefused,
    UsageError,
)
from proofbox.sandbox.images import build
from proofbox.sandbox.images.catalogue import find_image
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.images.local import local_images
from proofbox.sandbox.images.recipes import RECIPES
from proofbox.sandbox.images.tree import unpacked
from proofbox.sandbox.images.unused_files import YOUNG, image_files
from proofbox.sandbox.machines import kernel

SOAK = os.environ.get("PROOFBOX_SOAK", "") not in ("", "0")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def busybox(project: Path, tmp_path: Path) -> str:
    (tmp_path / "rootfs.tar").write_bytes(rootfs())
    return import_image(tmp_path / "rootfs.tar", "tools").name


def tree_at(path: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def tar(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


@pytest.mark.parametrize("name", ["var", "etc", "etc/passwd", "var/tmp"])
def test_links_of_an_image_lead_nowhere_when_it_is_unpacked(project: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
    (tmp_path / "rootfs.tar").write_bytes(data.getvalue())
    unpacked(import_image(tmp_path / "rootfs.tar", "hostile"))
    assert list(outside.iterdir()) == []


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("links", [{"etc": ""}, {"var": ""}, {"data": ""}, {"data": "b", "b": ""}])
def test_image_whose_links_lead_to_the_host_is_refused(project: Path, tmp_path: Path, links: dict[str, str]) -> None:
    """bubblewrap makes places for mounts through links of the image, while the host is at /oldroot."""
    outside, data = tmp_path / "outside", io.BytesIO()
    outside.mkdir()
    with tarfile.open(fileobj=io.BytesIO(rootfs())) as given, tarfile.open(fileobj=data, mode="w") as archive:
        for member in given:
            if member.name.removeprefix("./").partition("/")[0] not in links:
                archive.addfile(member, given.extractfile(member) if member.isreg() else None)
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target or f"/oldroot{outside}"
            archive.addfile(link)
    (tmp_path / "rootfs.tar").write_bytes(data.getvalue())
    image = import_image(tmp_path / "rootfs.tar", "hostile").name
    with Sandboxes(project) as boxes, pytest.raises(ImageCorrupt, match="leads out of the image"):
        boxes.exec(["true"], provider="bubblewrap", image=image, mounts=[f"{tmp_path / 'project'}:/data/files"])
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.REGTYPE])
def test_image_without_a_directory_for_var_is_unpacked(project: Path, tmp_path: Path, kind: bytes) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        entry = tarfile.TarInfo("var")
        entry.type, entry.linkname = kind, "/nowhere" if kind == tarfile.SYMTYPE else ""
        archive.addfile(entry)
    (tmp_path / "rootfs.tar").write_bytes(data.getvalue())
    tree = unpacked(import_image(tmp_path / "rootfs.tar", "odd"))
    assert os.path.lexists(tree / "var")


# Imports.


def test_same_files_give_the_same_digest(project: Path, tmp_path: Path) -> None:
    files = {"bin/sh": "a", "etc/passwd": "b", "lib/x/y": "c"}
    first = tree_at(tmp_path / "one", files)
    second = tree_at(tmp_path / "two", dict(reversed(files.items())))
    os.link(first / "bin/sh", first / "bin/same")
    (second / "bin/same").write_text("a")
    os.utime(second / "bin/sh", (1, 1))
    assert import_image(first, "one").sha256 == import_image(second, "two").sha256
    (second / "bin/sh").chmod(0o755)
    assert import_image(second, "two").sha256 != import_image(first, "one").sha256


def test_importing_a_name_again_replaces_it(project: Path, tmp_path: Path) -> None:
    before = import_image(tree_at(tmp_path / "one", {"a": "1"}), "tools")
    after = import_image(tree_at(tmp_path / "one", {"a": "2"}), "tools")
    assert [each.sha256 for each in local_images()] == [after.sha256] != [before.sha256]
    assert proofbox.pull_image("tools", project_root=project).image.sha256 == after.sha256
    import_image(tree_at(tmp_path / "one", {"a": "1"}), "tools")
    with pytest.raises(ImageLocked):
        proofbox.pull_image("tools", project_root=project)


def layout(place: Path, layers: list[bytes], **changes: Any) -> Path:
    """Write an OCI layout; `changes` replace blobs, by their position."""
    blobs = place / "blobs/sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    manifest = blob(json.dumps({"layers": [blob(layer) for layer in layers]}).encode())
    (place / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (place / "index.json").write_text(json.dumps({"manifests": [manifest], **changes}))
    return place


def test_layers_of_an_oci_layout_are_applied_in_order(project: Path, tmp_path: Path) -> None:
    lower = tar({"etc/passwd": b"old", "gone": b"x", "dir/a": b"1", "dir/b": b"2", "kept": b"k"})
    upper = tar({".wh.gone": b"", "dir/.wh..wh..opq": b"", "dir/c": b"3", "etc/passwd": b"new"})
    image = import_image(layout(tmp_path / "oci", [lower, upper]), "layered")
    tree = unpacked(image)
    found = {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}
    assert {name: text for name, text in found.items() if text} == {
        "etc/passwd": "new",
        "kept": "k",
        "dir/c": "3",
    }
    assert not any(".wh." in name for name in found)


def test_layout_with_a_changed_blob_is_refused(project: Path, tmp_path: Path) -> None:
    place = layout(tmp_path / "oci", [tar({"a": b"1"})])
    for blob in (place / "blobs/sha256").iterdir():
        blob.write_bytes(blob.read_bytes() + b" ")
    with pytest.raises(ImageCorrupt, match="another digest"):
        import_image(place, "layered")
    assert os.listdir(images_dir()) == []


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ({"oci-layout": b"{}", "index.json": b"{}", "manifest.json": b"[]"}, "unpack it: "),
        ({"manifest.json": b"[]", "1/layer.tar": b"", "1/json": b"{}"}, "docker load -i "),
    ],
)
def test_saved_image_is_not_taken_for_a_root(project: Path, tmp_path: Path, files: dict[str, bytes], hint: str) -> None:
    (tmp_path / "saved.tar").write_bytes(tar(files))
    with pytest.raises(UsageError, match="not the files of an image") as raised:
        import_image(tmp_path / "saved.tar", "saved")
    assert raised.value.fix_hints[0].startswith(hint)
    assert local_images() == []


def test_layer_compressed_with_zstd_is_refused_as_such(project: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageCorrupt, match="compressed with zstd"):
        import_image(layout(tmp_path / "oci", [b"\x28\xb5\x2f\xfd data"]), "tools")


def test_layout_for_another_architecture_is_refused(project: Path, tmp_path: Path) -> None:
    foreign = [{"digest": "sha256:" + "0" * 64, "platform": {"architecture": "s390x", "os": "linux"}}]
    with pytest.raises(ImageCorrupt, match="0 images for"):
        import_image(layout(tmp_path / "oci", [], manifests=foreign), "layered")


def linked(kind: bytes, target: str) -> bytes:
    """Return a tar with a link, and a file below the link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in ("link", "link/file"):
            member = tarfile.TarInfo(name)
            if name == "link":
                member.type, member.linkname = kind, target
            archive.addfile(member)
    return data.getvalue()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"not a tar", ImageCorrupt),
        (tar({"../up": b"1"}), ImageCorrupt),
        (linked(tarfile.SYMTYPE, "/tmp"), ImageCorrupt),
        (linked(tarfile.LNKTYPE, "/etc/shadow"), ImageCorrupt),
        (None, NotFoundError),
    ],
    ids=["no-tar", "escaping", "through-a-link", "hard-link", "missing"],
)
def test_wrong_source_is_refused_and_leaves_nothing(
    project: Path, tmp_path: Path, content: bytes | None, error: type[Exception]
) -> None:
    if content is not None:
        (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(error):
        import_image(tmp_path / "x.tar", "tools")
    assert os.listdir(images_dir()) == []


ELF = b"\x7fELF\x02\x01".ljust(64, b"\0")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param({"bin/sh": ELF}, "it has no modules/failover.ko", id="image"),
        pytest.param({"vmlinux": ELF}, "it has no modules/failover.ko", id="without modules"),
        pytest.param(
            {"vmlinux": b"text", **dict.fromkeys(kernel._WANTED.values(), b"")}, "not a kernel for x86_64", id="no ELF"
        ),
    ],
)
def test_kernel_that_no_machine_boots_is_refused_and_keeps_the_former(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes], reason: str
) -> None:
    monkeypatch.setattr(kernel, "architecture", lambda: "x86_64")
    (tmp_path / "kernel.tar").write_bytes(tar({"vmlinux": ELF, **dict.fromkeys(kernel._WANTED.values(), b"")}))
    former = import_image(tmp_path / "kernel.tar", "kernel")
    for source in (tmp_path / "other.tar", tmp_path / "other"):
        if source.suffix:
            source.write_bytes(tar(files))
        else:
            with tarfile.open(tmp_path / "other.tar") as archive:
                archive.extractall(source, filter="data")
        with pytest.raises(ImageCorrupt, match=reason) as raised:
            import_image(source, "kernel")
        assert "proofbox images build kernel" in raised.value.fix_hints[0]
    assert [each.sha256 for each in local_images()] == [former.sha256]


@pytest.mark.parametrize("name", ["../up", "Upper", "", "debian-12"])
def test_wrong_name_is_refused(project: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        import_image(tree_at(tmp_path / "one", {"a": "1"}), name)


def test_damaged_record_is_reported_and_not_ignored(project: Path, busybox: str) -> None:
    [record] = images_dir().glob("*.json")
    record.write_text("{")
    with pytest.raises(UsageError, match="can't be used"):
        proofbox.list_images()


def test_import_command(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree_at(tmp_path / "one", {"a": "1"})
    assert main(["images", "import", str(tmp_path / "one"), "mine", "--json"]) == 0
    image = json.loads(capsys.readouterr().out)["image"]
    assert (image["name"], image["source"], image["pulled"]) == ("mine", "import", True)
    assert main(["images", "list", "--json"]) == 0
    assert image["sha256"] in [each["sha256"] for each in json.loads(capsys.readouterr().out)["images"]]


# As the root of a box.


@pytest.mark.needs("bubblewrap", "docker")
def test_image_is_the_root_of_a_bubblewrap_box(project: Path, busybox: str) -> None:
    with Sandboxes(project) as boxes:
        result = boxes.exec(
            ["sh", "-c", "busybox | head -1; ls /usr/share 2>&1; touch new; echo x > /bin/new"],
            provider="bubblewrap",
            image=busybox,
        )
    assert "BusyBox" in result.stdout
    assert "/usr/share: No such file" in result.stdout, "nothing of the host's programs is visible"
    assert "Read-only file system" in result.stderr
    assert (project / "new").exists()
    assert result.policy.image == find_image(busybox).reference
    assert not (unpacked(find_image(busybox)) / "bin/new").exists()


@pytest.mark.needs("bubblewrap", "docker")
def test_project_below_a_directory_of_the_image_is_mounted(project: Path, busybox: str) -> None:
    mount = proofbox.Mount(project, "/usr/bin/deep/project")
    with Sandboxes(project) as boxes:
        result = boxes.exec(["sh", "-c", "pwd; busybox true"], provider="bubblewrap", image=busybox, mounts=[mount])
    assert (result.stdout, result.exit_code) == ("/usr/bin/deep/project\n", 0)


@pytest.mark.needs("bubblewrap")
def test_unknown_image_is_refused_by_bubblewrap(project: Path) -> None:
    with Sandboxes(project) as boxes, pytest.raises(ImageUnknown) as raised:
        boxes.exec(["true"], provider="bubblewrap", image="nowhere")
    assert "import it: proofbox images import docker:nowhere NAME" in raised.value.fix_hints


def test_damaged_archive_is_not_unpacked(project: Path, tmp_path: Path) -> None:
    image = import_image(tree_at(tmp_path / "one", {"a": "1"}), "tools")
    image.archive.write_bytes(image.archive.read_bytes().replace(b"a\0", b"b\0", 1))
    with pytest.raises(ImageCorrupt):
        unpacked(image)
    assert not image.archive.with_suffix(".tree").exists()


# Builds.


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("minimal", "debian-12"),
        ("python", "debian-12-python"),
        ("node", "debian-12-node"),
        ("build", "debian-12-build"),
    ],
)
def test_preset_stands_for_an_image_of_the_default_release(
    project: Path, monkeypatch: pytest.MonkeyPatch, preset: str, name: str
) -> None:
    def run(words: list[str], *_: object) -> None:
        Path(words[-4]).write_bytes(rootfs())

    monkeypatch.setattr(build, "find_program", lambda _: "/bin/false")
    monkeypatch.setattr(build, "_released", lambda _: 0)
    monkeypatch.setattr(build, "_run", run)
    image = build.build_image(preset, project_root=project).image
    assert (image.name, image.default) == (name, preset == "minimal")
    assert [each.name for each in local_images()] == [name]


def test_list_fits_80_columns(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "list"]) == 0
    shown = capsys.readouterr().out
    assert "minimal, python, node, build" in shown
    assert "Debian 12 with compilers" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_build_of_the_kernel_trusts_no_program_of_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "bin").mkdir()
    (project / "bin/planted").write_text("#!/bin/sh\n")
    (project / "bin/planted").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(programs, "_distrusted", set())
    assert find_program("planted") == str(project / "bin/planted")
    monkeypatch.setattr(kernel, "build_kernel", lambda _: find_program("planted"))
    with pytest.raises(PathRefused, match="planted"):
        proofbox.build_image("kernel", project_root=project)


def test_unknown_recipe_is_refused_with_a_suggestion(project: Path) -> None:
    with pytest.raises(ImageUnknown) as raised:
        build.build_image("debian-12-pyton", project_root=project)
    assert "debian-12-python" in raised.value.fix_hints[0]
    with pytest.raises(ImageUnknown) as raised:
        build.build_image("nothing-like-it", project_root=project)
    assert [hint.partition(":")[0] for hint in raised.value.fix_hints] == ["known"]


@pytest.mark.skipif(find_program("apt-get") is None, reason="this machine has no apt")
@pytest.mark.parametrize(
    ("listed", "parts", "mirrors"),
    [
        pytest.param(
            "deb http://one/debian bookworm main\ndeb [arch=amd64] http://two/s bookworm-security main\n",
            "",
            ("http://one/debian", "http://two/s"),
            id="one-line",
        ),
        pytest.param(
            "",
            "Types: deb\nURIs: http://one/d\nSuites: bookworm bookworm-updates\nComponents: main contrib\n\n"
            "Types: deb\nURIs: http://two/s\nSuites: bookworm-security\nComponents: main\n",
            ("http://one/d", "http://two/s"),
            id="deb822",
        ),
        pytest.param("deb http://one/d bookworm main\n", "", ("http://one/d", "http://one/d-security"), id="assumed"),
        pytest.param(
            "deb http://one/d trixie main\n", "", (build.PUBLIC_MIRROR, f"{build.PUBLIC_MIRROR}-security"), id="public"
        ),
    ],
)
def test_mirrors_are_those_of_apt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, parts: str, mirrors: tuple[str, str]
) -> None:
    tree_at(tmp_path, {"list": listed, "parts/debian.sources": parts, "lists/empty": ""})
    places = {"Etc::sourcelist": "list", "Etc::sourceparts": "parts", "State::lists": "lists"}
    (tmp_path / "conf").write_text("".join(f'Dir::{key} "{tmp_path / name}";\n' for key, name in places.items()))
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "conf"))
    found = build._mirrors(RECIPES["debian-12"], None)
    assert found == mirrors
    assert [*found.suites("bookworm")][-1] == (mirrors[1], "bookworm-security")


def test_unreachable_mirror_is_a_typed_error_and_leaves_nothing(project: Path) -> None:
    with pytest.raises(ImageBuildFailed, match="can't be read"):
        build.build_image(project_root=project, mirror="http://127.0.0.1:9/debian")
    assert [path.name for path in images_dir().iterdir() if path.suffix != ".lock"] == []


@pytest.mark.parametrize("mirror", ["file:///etc", "http://a b/", "-o x", "http://h/;rm"])
def test_wrong_mirror_is_refused(project: Path, mirror: str) -> None:
    with pytest.raises(UsageError):
        build.build_image(project_root=project, mirror=mirror)


def test_failed_build_keeps_nothing_and_shows_the_last_lines(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_released", lambda _: 1)
    script = "echo 'I: trying' >&2; echo 'E: no \x1b[31mspace' >&2; exit 3"
    monkeypatch.setattr(build, "_command", lambda *_: ["sh", "-c", script])
    lines: list[str] = []
    with pytest.raises(ImageBuildFailed, match="exit code 3: E: no") as raised:
        build.build_image(project_root=project, mirror="http://127.0.0.1:9/debian", on_line=lines.append)
    assert lines == ["trying"]
    assert "\x1b" not in raised.value.message
    assert local_images() == []
    assert not (project / ".proofbox").exists()


@pytest.mark.skipif(not SOAK, reason="a build takes a minute and needs a Debian mirror: scripts/soak")
@pytest.mark.needs("bubblewrap", "docker")
def test_two_builds_have_one_digest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = proofbox.build_image("debian-12", project_root=project)
    second = proofbox.build_image("debian-12", project_root=project)
    assert first.image.sha256 == second.image.sha256
    with private_engine() as engine, Sandboxes(project, settings=Settings()) as boxes:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        assert boxes.exec(["true"], provider="docker").exit_code == 0, "the default image, which was built"
        for provider in ("bubblewrap", "docker"):
            assert "bookworm" in boxes.exec(["cat", "/etc/os-release"], provider=provider, image="debian-12").stdout


# Collection.


def test_collection_frees_archives_without_a_name(project: Path, tmp_path: Path) -> None:
    old = import_image(tree_at(tmp_path / "one", {"a": "1"}), "tools")
    unpacked(old)
    new = import_image(tree_at(tmp_path / "one", {"a": "2"}), "tools")
    later = new.archive.stat().st_mtime + YOUNG + 1
    assert {path.name: free for path, free, _ in image_files(later)} == {
        f"{old.sha256}.rootfs": True,
        f"{old.sha256}.tree": True,
        f"{new.sha256}.rootfs": False,
    }
    assert not any(free for _, free, _ in image_files(later - YOUNG)), "new files may be about to get a name"
