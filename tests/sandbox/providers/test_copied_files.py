"""A box of root has copies of small files in /etc: as they are when it starts, and out of its reach."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox import Sandboxes
from proofbox.sandbox.providers import host_root

pytestmark = pytest.mark.needs("bubblewrap", "root")

TRY_TO_CHANGE = """
for path in /etc/passwd /etc/hosts /etc/nsswitch.conf; do
    (echo changed >> $path) 2>/dev/null && echo "wrote $path"
    chmod 0666 $path 2>/dev/null && echo "chmod $path"
    mv $path /tmp/moved 2>/dev/null && echo "moved $path"
    rm -f $path 2>/dev/null && echo "removed $path"
done
touch /etc/new 2>/dev/null && echo "created a file"
true
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def own_etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the files that every box has in place of the host's."""
    caches = (host_root.host_parts, host_root.copied_files)
    path = tmp_path / "etc"
    path.mkdir()
    for name in ("passwd", "group", "hosts"):
        (path / name).write_bytes((host_root.OWN_ETC / name).read_bytes())
    monkeypatch.setattr(host_root, "OWN_ETC", path)
    for cache in caches:
        cache.cache_clear()
    yield path
    for cache in caches:
        cache.cache_clear()


def test_copies_have_the_content_of_the_host_s_files(project: Path) -> None:
    with Sandboxes(project).start_session(provider="bubblewrap") as box:
        places = [word for word in host_root.host_parts("none") if word.startswith("/etc/")]
        copied = {place for place in places if str(Path(place).resolve()) in host_root.copied_files()}
        assert "/etc/nsswitch.conf" in copied
        found = box.exec(["sha256sum", *sorted(copied)])
        mounted = box.exec(["cut", "-d", " ", "-f", "5", "/proc/self/mountinfo"]).stdout.split()
    digests = [f"{hashlib.sha256(Path(each).read_bytes()).hexdigest()}  {each}" for each in sorted(copied)]
    assert found.stdout.splitlines() == digests
    assert copied.isdisjoint(mounted)


def test_commands_cannot_change_the_copies(project: Path) -> None:
    with Sandboxes(project) as boxes:
        result = boxes.exec(["sh", "-c", TRY_TO_CHANGE], provider="bubblewrap")
    assert (result.exit_code, result.stdout) == (0, "")


def test_each_box_has_the_files_as_they_are_when_it_starts(project: Path, own_etc: Path) -> None:
    with Sandboxes(project) as boxes:
        for address in ("192.0.2.1", "192.0.2.2"):
            (own_etc / "hosts").write_text(f"{address} example\n")
            assert boxes.exec(["cat", "/etc/hosts"], provider="bubblewrap").stdout == f"{address} example\n"


def test_large_file_is_mounted(project: Path, own_etc: Path) -> None:
    (own_etc / "hosts").write_text("# a comment\n" * (host_root.COPIED_SIZE // 8))
    with Sandboxes(project) as boxes:
        found = boxes.exec(["sh", "-c", "wc -c < /etc/hosts; grep -c ' /etc/hosts ' /proc/self/mountinfo"])
    assert found.stdout.split() == [str((own_etc / "hosts").stat().st_size), "1"]


def test_no_process_of_the_box_keeps_the_files_open(project: Path, own_etc: Path) -> None:
    with Sandboxes(project).start_session(provider="bubblewrap") as box:
        assert box.exec(["true"]).exit_code == 0
        opened = {target for entry in Path("/proc").glob("[0-9]*/fd/*") if (target := _target(entry)) is not None}
    assert not [target for target in opened if target.startswith(f"{own_etc}/")]


def _target(entry: Path) -> str | None:
    try:
        return str(entry.readlink())
    except OSError:  # the process has ended
        return None
