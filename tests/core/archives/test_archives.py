"""Untrusted archives: valid ones are unpacked unchanged, and nothing is written outside the destination."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from capabilities import OrdinaryUser
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.archives.unpack import ArchiveLimits, ArchiveRefused, unpack, unpack_tar
from proofbox.core.files.overlaying import OverlayWriter

ENOUGH = ArchiveLimits(files=100, size=1 << 20)
KINDS = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
}


class Member(NamedTuple):
    name: str
    kind: str = "file"
    data: bytes = b""
    """What a file holds, or where a link leads."""
    mode: int = 0o644


def tar(*members: Member, mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for each in members:
            info = tarfile.TarInfo(each.name)
            info.type, info.mode, info.uid, info.gid = KINDS[each.kind], each.mode, 1234, 1234
            if each.kind == "file":
                info.size = len(each.data)
            else:
                info.linkname = os.fsdecode(each.data)
            archive.addfile(info, io.BytesIO(each.data))
    return out.getvalue()


def zipped(*members: Member) -> bytes:
    types = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "link": stat.S_IFLNK, "pipe": stat.S_IFIFO}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in members:
            info = zipfile.ZipInfo(each.name + "/" * (each.kind == "directory"))
            info.create_system, info.external_attr = 3, (types[each.kind] | each.mode) << 16
            archive.writestr(info, each.data)
    return out.getvalue()


def unpacked(data: bytes, dest: Path, limits: ArchiveLimits = ENOUGH) -> None:
    with tempfile.NamedTemporaryFile() as source:
        source.write(data)
        source.flush()
        unpack(Path(source.name), dest, limits)


HONEST = (
    Member(".", "directory", mode=0o700),
    Member("./src", "directory", mode=0o750),
    Member("./src/run.sh", data=b"#!/bin/sh\n", mode=0o755),
    Member("./deep/er/file", data=b"x" * 300_000),
    Member("./here", "link", b"src/run.sh"),
    Member("./out", "link", b"/etc/passwd"),
)


@pytest.mark.parametrize("how", ["w", "w:gz", "w:bz2", "w:xz", "zip"])
def test_valid_archive_is_unpacked_unchanged(tmp_path: Path, how: str) -> None:
    data = zipped(*HONEST[1:]) if how == "zip" else tar(*HONEST, Member("again", "hard link", b"./here"), mode=how)
    unpacked(data, tmp_path)
    assert (tmp_path / "src/run.sh").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((tmp_path / "src/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "src").stat().st_mode) == 0o750
    assert (tmp_path / "deep/er/file").stat().st_size == 300_000
    assert os.readlink(tmp_path / "here") == "src/run.sh"
    assert os.readlink(tmp_path / "out") == "/etc/passwd"
    assert how == "zip" or os.readlink(tmp_path / "again") == "src/run.sh"
    assert {each.lstat().st_uid for each in tmp_path.rglob("*")} == {os.getuid()}


def test_set_uid_bits_and_owners_are_dropped(tmp_path: Path) -> None:
    unpacked(tar(Member("a", mode=0o6777), Member("b", mode=0), Member("d", "directory", mode=0o1000)), tmp_path)
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert modes == {"a": 0o755, "b": 0o600, "d": 0o700}


def test_hard_link_is_unpacked_as_a_copy(tmp_path: Path) -> None:
    unpacked(tar(Member("a/b", data=b"1", mode=0o755), Member("c/d", "hard link", b"a/b")), tmp_path)
    assert (tmp_path / "c/d").read_bytes() == b"1"
    assert os.access(tmp_path / "c/d", os.X_OK)
    (tmp_path / "c/d").write_bytes(b"2")
    assert (tmp_path / "a/b").read_bytes() == b"1"


def test_last_member_of_a_name_wins(tmp_path: Path) -> None:
    members = (Member("a/b", data=b"1"), Member("a", data=b"2"), Member("c", "link", b"/"), Member("c/", "directory"))
    unpacked(tar(*members, Member("c/d", data=b"3")), tmp_path)
    assert (tmp_path / "a").read_bytes() == b"2"
    assert not (tmp_path / "c").is_symlink()
    assert (tmp_path / "c/d").read_bytes() == b"3"


UNSAFE: dict[str, tuple[Member, ...]] = {
    "upwards": (Member("../out", data=b"x"),),
    "upwards, later": (Member("a/../../out", data=b"x"),),
    "from the root": (Member("/out", data=b"x"),),
    "through a link": (Member("a", "link", b".."), Member("a/out", data=b"x")),
    "through a link to a link": (Member("a", "link", b"b"), Member("b", "link", b".."), Member("a/out", data=b"x")),
    "a link through a link": (Member("a", "link", b".."), Member("a/out", "link", b"/")),
    "a directory through a link": (Member("a", "link", b".."), Member("a/out", "directory")),
    "a hard link to the outside": (Member("a", "hard link", b"../canary"),),
    "a hard link through a link": (Member("a", "link", b".."), Member("b", "hard link", b"a/canary")),
    "a hard link to a directory": (Member("d", "directory"), Member("b", "hard link", b"d")),
    "a hard link to itself": (Member("a", "hard link", b"a"),),
    "a hard link to what is not there": (Member("a", "hard link", b"b"),),
    "a pipe": (Member("a", "pipe"),),
    "too long a name": (Member("a" * 300, data=b"x"),),
    "too many": tuple(Member(str(number)) for number in range(101)),
    "too large": tuple(Member(str(number), data=b"x" * 300_000) for number in range(4)),
    "too large by hard links": (Member("a", data=b"x" * 300_000), *(Member(c, "hard link", b"a") for c in "bcd")),
}


@pytest.mark.parametrize("members", UNSAFE.values(), ids=UNSAFE)
def test_an_unsafe_archive_is_refused_and_touches_nothing_else(tmp_path: Path, members: tuple[Member, ...]) -> None:
    made = [tar(*members, mode="w:gz")]
    if all(each.kind != "hard link" for each in members):
        made.append(zipped(*members))
    for data in made:
        with watched(tmp_path) as dest, pytest.raises(ArchiveRefused):
            unpacked(data, dest)


def test_devices_are_skipped_when_unpacking_an_image(tmp_path: Path) -> None:
    data = tar(Member("p", "pipe"), Member("a", data=b"1"))
    unpack_tar(io.BytesIO(data), tmp_path, ENOUGH, skip_devices=True)
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_unpacking_over_links_never_writes_through_them(tmp_path: Path) -> None:
    """An image's files are unpacked first, and may be hostile, as the archive may be."""
    given_dir = tmp_path / "given"
    (given_dir / "a").mkdir(parents=True)
    (given_dir / "a/canary").write_text("overwritten")
    for data in (None, tar(Member("a/canary", data=b"overwritten")), zipped(Member("a/canary", data=b"overwritten"))):
        with watched(tmp_path) as dest:
            (dest / "a").symlink_to("..")
            if data is None:
                OverlayWriter(dest).copy_tree(given_dir)
            else:
                unpacked(data, dest)
            assert (dest / "a/canary").read_text() == "overwritten"


def test_a_directory_keeps_its_modes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "closed/below").mkdir(parents=True)
    (source / "closed/below/file").write_text("1")
    (source / "closed").chmod(0o555)
    dest = tmp_path / "dest"
    dest.mkdir()
    OverlayWriter(dest).copy_tree(source)
    assert stat.S_IMODE((dest / "closed").stat().st_mode) == 0o555
    assert (dest / "closed/below/file").read_text() == "1"
    for each in (source, dest):
        (each / "closed").chmod(0o755)


def test_opening_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        unpack(tmp_path / "pipe", into)
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="not a regular file"):
        OverlayWriter(into).put("a", pipe)
    os.close(pipe)
    assert not list(into.iterdir())


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path: Path) -> None:
    unpacked(tar(Member("main.py", data=b"1"), Member("dist/pkg.whl", data=zipped(Member("inner.txt")))), tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dist", "main.py"]


@pytest.mark.parametrize("how", ["w", "w:gz", "w:bz2", "w:xz"])
def test_truncated_tar_is_refused(tmp_path: Path, how: str) -> None:
    """This includes cuts between two members, where the unpacked part would look complete."""
    files = (Member("a", data=b"1" * 700), Member("b" * 150, data=b"2"), Member("c", "link", b"a"))
    whole = tar(*files, mode=how)
    end = len(tar(*files)) - len(tar()) + 512 if how == "w" else len(whole)  # one block of zeros is an end
    for at in {*range(0, end, 97), *range(0, end, 512), end - 1}:
        with watched(tmp_path) as dest, pytest.raises(ArchiveRefused):
            unpacked(whole[:at], dest)


def test_flipped_header_bit_is_detected(tmp_path: Path) -> None:
    whole = tar(Member("a", data=b"1"), Member("b", data=b"2"))
    for bit in range(0, 512 * 8, 3):
        if 148 <= bit // 8 < 156:  # the sum itself, which can be written in several ways
            continue
        damaged = bytearray(whole)
        damaged[1024 + bit // 8] ^= 1 << bit % 8
        with watched(tmp_path) as dest, pytest.raises(ArchiveRefused):
            unpacked(bytes(damaged), dest)


BOMBS: dict[str, Callable[[], bytes]] = {
    "names of 200,000 directories": lambda: tar(
        Member("a/" * 200_000 + "b"), Member("c/" * 200_000 + "d"), mode="w:gz"
    ),
    "a header of 40 MB": lambda: tar(Member("a" * 40_000_000), mode="w:gz"),
    "a directory for each member": lambda: tar(*(Member(f"{n}/a/b/c") for n in range(30))),
    "a link of 40 MB": lambda: tar(Member("a", "link", b"x" * 40_000_000), mode="w:gz"),
    "300 deep": lambda: tar(Member("a/" * 300 + "b")),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_at_little_cost(tmp_path: Path, bomb: Callable[[], bytes]) -> None:
    data = bomb()
    tracemalloc.start()
    try:
        with watched(tmp_path) as dest, pytest.raises(ArchiveRefused):
            unpacked(data, dest)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_archive_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    data = lzma.compress(tar(Member("a")), filters=filters)
    with watched(tmp_path) as dest, pytest.raises(ArchiveRefused, match="emory"):
        unpacked(data, dest)


def test_several_streams_of_one_compression_are_one_archive(tmp_path: Path) -> None:
    data = tar(Member("a", data=b"1" * 3000))
    first, rest = data[:1000], data[1000:]
    for number, packed in enumerate(
        (
            gzip.compress(first) + gzip.compress(rest),
            bz2.compress(first) + bz2.compress(rest),
            lzma.compress(first) + bytes(8) + lzma.compress(rest),
        )
    ):
        dest = tmp_path / str(number)
        dest.mkdir()
        unpacked(packed, dest)
        assert (dest / "a").read_bytes() == b"1" * 3000


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_gnu_tar_are_unpacked(tmp_path: Path, form: str) -> None:
    long = form not in ("v7", "ustar")
    source, dest = tmp_path / "source", tmp_path / "dest"
    names = ["a", "é ß", "d/e", *([f"{'x' * 120}/{'y' * 200}"] if long else [f"{'x' * 30}/{'y' * 60}"])]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name * 40)
    (source / "d/e").chmod(0o755)
    (source / "link").symlink_to("z" * 150 if long else "z" * 50)
    os.link(source / "a", source / "same")
    dest.mkdir()
    made = subprocess.run(["tar", "-C", source, "--format", form, "-cf", "-", "."], capture_output=True, check=True)
    unpacked(made.stdout, dest)
    compared = subprocess.run(["diff", "-r", "--no-dereference", source, dest], capture_output=True, text=True)
    assert compared.stdout == ""
    assert os.access(dest / "d/e", os.X_OK)


def test_sparse_file_is_refused(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    sparse.write_bytes(b"")
    os.truncate(sparse, 1 << 20)
    for form in ("gnu", "posix"):
        argv = ["tar", "-S", "-C", str(tmp_path), "--format", form, "-cf", "-", "sparse"]
        made = subprocess.run(argv, capture_output=True, check=True)
        with watched(tmp_path) as dest, pytest.raises(ArchiveRefused, match="sparse"):
            unpacked(made.stdout, dest)


@pytest.mark.needs("unprivileged-user")
def test_unreadable_directory_is_an_error(ordinary_user: OrdinaryUser) -> None:
    program = (
        "import pathlib, sys, tempfile\n"
        "from proofbox.core.files.overlaying import OverlayWriter\n"
        "with tempfile.TemporaryDirectory() as dest:\n"
        "    try: OverlayWriter(pathlib.Path(dest)).copy_tree(pathlib.Path(sys.argv[1]))\n"
        "    except PermissionError as error: print('refused', error.filename)\n"
    )
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch).chmod(0o755)
        closed = Path(scratch, "closed")
        closed.mkdir()
        (closed / "test.sh").write_text("exit 1\n")
        closed.chmod(0)
        output = ordinary_user.run_code(program, scratch)
        closed.chmod(0o700)
    assert output == f"refused {closed}\n"


def test_file_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused):
        unpacked(b"no archive at all", tmp_path)


NAMES = ["a", "b", "a/b", "a/b/c", "b/a", "./a", "a//b", "..", "../x", "a/../../x", "/x", ".", "a\n", "é"]
members_of_tar = st.builds(
    Member,
    st.sampled_from(NAMES),
    st.sampled_from([*KINDS]),
    st.sampled_from([b"a", b"b", b"a/b", b"..", b"../canary", b"/", b".", b"x" * 5000]),
    st.integers(0, 0o7777),
)


@given(st.lists(members_of_tar, max_size=8))
def test_any_tar_stays_below_its_directory(members: list[Member]) -> None:
    with tempfile.TemporaryDirectory() as scratch, watched(Path(scratch)) as dest:
        try:
            unpacked(tar(*members), dest)
        except ArchiveRefused:
            return
        assert not members or os.path.lexists(dest / members[-1].name)


@given(
    st.sampled_from([tar(*HONEST), tar(*HONEST, mode="w:gz"), tar(*HONEST, mode="w:xz"), zipped(*HONEST[1:])]),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=6),
    st.integers(0, 1 << 20) | st.none(),
)
def test_a_damaged_archive_is_refused_or_stays_below_its_directory(
    data: bytes, flips: list[tuple[int, int]], cut: int | None
) -> None:
    damaged = bytearray(data)
    for at, value in flips:
        damaged[at % len(damaged)] = value
    if cut is not None:
        del damaged[cut % len(damaged) :]
    with tempfile.TemporaryDirectory() as scratch, watched(Path(scratch)) as dest:
        try:
            unpacked(bytes(damaged), dest)
        except ArchiveRefused:
            pass


@contextmanager
def watched(above: Path) -> Iterator[Path]:
    """A directory to unpack into, inside one where nothing else may change."""
    with tempfile.TemporaryDirectory(dir=above) as scratch:
        (Path(scratch) / "canary").write_text("alive")
        dest = Path(scratch) / "dest"
        dest.mkdir()
        yield dest
        assert sorted(each.name for each in Path(scratch).iterdir()) == ["canary", "dest"]
        assert (Path(scratch) / "canary").read_text() == "alive"
