"""Every kind of source gives the same files with the same contents and modes, or is refused."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from trees import scan_tree

from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.client.body import export_body
from proofbox.delivery.client.wire import InitialExport
from proofbox.delivery.source.names import is_git, looks_secret
from proofbox.delivery.source.snapshot import ATTEMPT, ATTEMPT_SCHEMA
from proofbox.delivery.source.tree import SourceLimits, SourceTree, open_source
from proofbox.errors import BundleCorrupt, DeliverySecretFound, SourceRefused
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents.tree import tree_manifest
from proofbox.workspace import registry
from proofbox.workspace.workspace import Workspace

CONTENT = {
    "README.md": b"# App\r\n\n",
    "bin/run": b"#!/bin/sh\n",
    "data/blob": bytes(range(256)) * 1000,
    "empty": b"",
    "ünï/✓.txt": "ü".encode(),
}


def project(root: Path) -> Path:
    for path, data in CONTENT.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "bin/run").chmod(0o755)
    (root / "link").symlink_to("bin/run")
    return root


def read(tree: SourceTree) -> dict[str, tuple[str, bytes]]:
    return {file.path: (file.mode, b"".join(file.pieces())) for file in tree.files}


def expected() -> dict[str, tuple[str, bytes]]:
    found = {path: ("100644", data) for path, data in CONTENT.items()}
    return {**found, "bin/run": ("100755", CONTENT["bin/run"]), "link": ("120000", b"bin/run")}


def zipped(root: Path, place: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            name = prefix + str(path.relative_to(root))
            if path.is_symlink():
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
                archive.writestr(info, os.readlink(path))
            else:
                archive.write(path, name)
    return place


def test_all_kinds_of_sources_give_the_same_tree(tmp_path: Path) -> None:
    root = project(tmp_path / "app")
    seen = []
    with open_source(root) as tree:
        seen.append(read(tree))
        digest = tree.tree_sha256
        assert [file.path for file in tree.files] == sorted(CONTENT | {"link": b""}, key=str.encode)
    with open_source(zipped(root, tmp_path / "app.zip")) as tree:
        seen.append(read(tree))
        assert tree.tree_sha256 == digest
    with open_source(zipped(root, tmp_path / "inside.zip", "top/app/"), root="top/app") as tree:
        seen.append(read(tree))
    with Workspace.init(root) as workspace:
        taken = workspace.snapshot("done", sealed=True)
        manifest = tree_manifest(scan_tree(root))
    (root / "README.md").write_bytes(b"changed afterwards")
    with open_source(root, snapshot=taken.id[:12]) as tree:
        seen.append(read(tree))
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_json("tree_manifest.json", manifest)
        store = registry.registered(str(root.resolve())).store
        bundle.write_json(ATTEMPT, {"schema_version": ATTEMPT_SCHEMA, "final": {"store": store, "snapshot": taken.id}})
    with open_source(bundle.path) as tree:
        seen.append(read(tree))
        assert tree.kind == "attempt"
    assert all(each == expected() for each in seen)
    assert digest == manifest["tree_sha256"]


def test_attempt_must_match_its_manifest(tmp_path: Path) -> None:
    root = project(tmp_path / "app")
    with Workspace.init(root) as workspace:
        taken = workspace.snapshot(sealed=True)
    store = registry.registered(str(root.resolve())).store
    for number, spoil in enumerate(("missing", "mode", "more")):
        entries = scan_tree(root)
        if spoil == "missing":
            entries = entries[1:]
        elif spoil == "mode":
            entries[0] = entries[0]._replace(mode="100755")
        else:
            entries.append(entries[0]._replace(path=b"zzz"))
        with BundleWriter.create(tmp_path / f"out{number}") as bundle:
            bundle.write_json("tree_manifest.json", tree_manifest(entries))
            bundle.write_json(
                ATTEMPT, {"schema_version": ATTEMPT_SCHEMA, "final": {"store": store, "snapshot": taken.id}}
            )
        with pytest.raises(SourceRefused), open_source(bundle.path):
            pass
    (bundle.path / "tree_manifest.json").write_text("{}")
    with pytest.raises(BundleCorrupt), open_source(bundle.path):
        pass


def test_likely_secrets_are_left_out_and_listed(tmp_path: Path) -> None:
    kept = [".env.example", "deploy/.env.sample", "src/keyboard.py", "a.key.md", "id_rsa.pub", ".envrc.md", "env"]
    dropped = [".env", ".env.local", "deploy/prod.env", "tls/server.KEY", "a.pem", "b.p12", "c.pfx", "id_ed25519"]
    for path in [*kept, *dropped]:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x")
    (tmp_path / "note.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nabc")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("deploy/../../x")
    (tmp_path / ".git/objects").mkdir(parents=True)
    (tmp_path / "sub/.git").mkdir(parents=True)
    (tmp_path / "sub/.git/config").write_text("x")
    (tmp_path / ".gitignore").write_text("x")
    with open_source(tmp_path) as tree:
        assert {file.path for file in tree.files} == {*kept, ".gitignore"}
        left = {each.path: each.reason for each in tree.left_out}
    assert set(left) == {*dropped, "note.txt", "out", "up", ".git", "sub/.git"}


@pytest.mark.parametrize("spelling", ["plain", "base64"])
def test_known_secret_is_refused(tmp_path: Path, spelling: str) -> None:
    secret = b"s3cr3t-value-0123456789"
    data = secret if spelling == "plain" else base64.b64encode(b"x" + secret)
    (tmp_path / "a.txt").write_bytes(b"y" * 500_000 + data)
    with pytest.raises(DeliverySecretFound) as caught, open_source(tmp_path, redactor=Redactor([secret])):
        pass
    assert caught.value.details["paths"] == ["a.txt"]
    assert secret.decode() not in repr(caught.value.as_dict())


def member(name: str, *, kind: int = stat.S_IFREG | 0o644, data: bytes = b"x") -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo("placeholder")
    info.filename = name
    info.orig_filename = name
    info.create_system, info.external_attr = 3, kind << 16
    return info, data


HOSTILE: dict[str, list[tuple[zipfile.ZipInfo, bytes]]] = {
    "escape": [member("../evil")],
    "escape inside": [member("a/../../evil")],
    "absolute": [member("/etc/passwd")],
    "drive": [member("C:/evil")],
    "backslash": [member("..\\evil")],
    "device name": [member("src/NUL.txt")],
    "device name again": [member("com1")],
    "stream": [member("a.txt:hidden")],
    "trailing dot": [member("evil. ")],
    "newline": [member("a\nb")],
    "dot": [member("./a")],
    "double slash": [member("a//b")],
    "link out": [member("link", kind=stat.S_IFLNK | 0o777, data=b"../../etc/passwd")],
    "absolute link": [member("link", kind=stat.S_IFLNK | 0o777, data=b"/etc/passwd")],
    "links out together": [
        member("d/l", kind=stat.S_IFLNK | 0o777, data=b".."),
        member("d/out", kind=stat.S_IFLNK | 0o777, data=b"l/../x"),
    ],
    "through a link": [member("d", kind=stat.S_IFLNK | 0o777, data=b"x"), member("d/evil")],
    "device": [member("dev", kind=stat.S_IFBLK | 0o644)],
    "pipe": [member("pipe", kind=stat.S_IFIFO | 0o644)],
    "twice": [member("a"), member("a")],
    "file and directory": [member("a"), member("a/b")],
    "too large": [member("big", data=bytes(3000))],
    "too many": [member(f"f{n}") for n in range(12)],
}


NAMES = ["a", "b", "c"]
PLACE = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
TARGET = st.lists(st.sampled_from([*NAMES, "..", ".."]), min_size=1, max_size=5).map("/".join)


@given(st.dictionaries(PLACE, TARGET, min_size=1, max_size=8), st.lists(PLACE, max_size=4))
@example({"a/a": "..", "a/b": "a/../c"}, [])
@example({"a": "b/c", "b/c": "../c/a", "b/a": "../a/.."}, ["c/a/b"])
def test_combined_links_stay_inside_the_tree(links: dict[str, str], directories: list[str]) -> None:
    """Real links in a real tree: the kernel resolves every accepted link to a path inside the tree."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(os.path.realpath(place), "top")
        for path in directories:
            (top / path).mkdir(parents=True, exist_ok=True)
        top.mkdir(exist_ok=True)
        made: list[str] = []
        for path, target in links.items():
            if not any(path.startswith(f"{link}/") for link in made) and not (top / path).is_dir():
                (top / path).parent.mkdir(parents=True, exist_ok=True)
                (top / path).symlink_to(target)
                made.append(path)
        with open_source(top) as tree:
            delivered = [file.path for file in tree.files]
            dropped = [left.path for left in tree.left_out]
        for path in dropped:
            parts = os.readlink(top / path).split("/")
            (top / path).unlink()
            up = parts.count("..")
            if ".." not in parts[up:]:  # a link that goes up and then down is left out only if it goes too far up
                assert up > path.count("/")
        for path in delivered:
            assert (top / path).is_symlink()
            assert Path(os.path.realpath(top / path)).is_relative_to(top), (path, os.readlink(top / path))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", HOSTILE)
def test_unsafe_archive_is_refused(tmp_path: Path, name: str) -> None:
    place = tmp_path / "hostile.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for info, data in HOSTILE[name]:
            archive.writestr(info, data)
    with pytest.raises(SourceRefused), open_source(place, limits=SourceLimits(files=10, file_bytes=2000)):
        pass
    assert list(tmp_path.iterdir()) == [place]


def test_zip_bomb_is_refused_without_unpacking(tmp_path: Path) -> None:
    place = tmp_path / "bomb.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("zeros", bytes(50 << 20))
    with pytest.raises(SourceRefused, match="compression ratio"), open_source(place):
        pass
    with (
        pytest.raises(SourceRefused, match="unpacked size"),
        open_source(place, limits=SourceLimits(total_bytes=1 << 20)),
    ):
        pass


def test_oversized_member_list_is_not_read(tmp_path: Path) -> None:
    place = tmp_path / "many.zip"
    with zipfile.ZipFile(place, "w") as archive:
        for number in range(300):
            archive.writestr(f"{number:04}", b"")
    with pytest.raises(SourceRefused, match="list of members"), open_source(place, limits=SourceLimits(files=10)):
        pass
    with open_source(place) as tree:
        assert len(tree.files) == 300


def damage(place: Path, spoil: str) -> None:
    data = bytearray(place.read_bytes())
    central = data.rindex(b"PK\x01\x02")
    if spoil == "encrypted":
        data[central + 8] |= 1
    elif spoil == "method":
        data[central + 10] = 99
    elif spoil == "size":
        data[central + 24] ^= 0x40
    elif spoil == "content":
        at = data.index(b"PK\x03\x04") + 40
        data[at] ^= 0xFF
    else:
        del data[len(data) // 2 :]
    place.write_bytes(data)


@pytest.mark.parametrize("spoil", ["encrypted", "method", "content", "size", "cut"])
def test_unreadable_member_is_refused(tmp_path: Path, spoil: str) -> None:
    place = tmp_path / "a.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("file.txt", hashlib.sha256(b"x").hexdigest() * 20)
    damage(place, spoil)
    with pytest.raises(SourceRefused), open_source(place):
        pass


def test_torn_lzma_member_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "a.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("file.txt", hashlib.sha256(b"x").hexdigest() * 20)
    damage(place, "content")
    with pytest.raises(SourceRefused, match="compression method"), open_source(place):
        pass


def test_a_tree_without_a_root_folder_keeps_its_first_level(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("src/main.py", "1")
    with open_source(tmp_path / "a.zip") as tree:
        assert [file.path for file in tree.files] == ["src/main.py"]


def test_special_files_and_non_utf8_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (Path(os.fsdecode(os.fsencode(tmp_path / "d") + b"/\xff"))).write_text("x")
    with pytest.raises(SourceRefused, match="UTF-8"), open_source(tmp_path):
        pass
    other = tmp_path / "other"
    other.mkdir()
    os.mkfifo(other / "pipe")
    with pytest.raises(SourceRefused), open_source(other):
        pass
    with pytest.raises(SourceRefused), open_source(tmp_path / "nothing"):
        pass


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        "a/.GIT/x",
        ".g\u200cit/config",
        "git~1/x",
        "a/.git. /b",
        ".git:x",
        "a/.git::$INDEX_ALLOCATION/config",
        "GIT~1:s/x",
    ],
)
def test_git_directory_is_recognized_under_any_name(path: str) -> None:
    assert is_git(path)


@pytest.mark.parametrize("path", [".gitignore", ".github/x", "git/x", "digit~1x"])
def test_similar_names_are_not_git_directories(path: str) -> None:
    assert not is_git(path)
    assert not looks_secret(path)


def test_file_changed_while_sending_is_detected(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    with open_source(tmp_path) as tree:
        body = export_body(InitialExport(user_id="u"), tree.files)
        whole: Any = b"".join(body.pieces())
        assert len(whole) == body.length
        (tmp_path / "a").write_bytes(b"y" * 1000)
        with pytest.raises(SourceRefused, match="changed"):
            b"".join(body.pieces())
        (tmp_path / "a").write_bytes(b"x" * 1001)
        with pytest.raises(SourceRefused, match="changed"):
            b"".join(body.pieces())
