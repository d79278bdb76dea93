"""Snapshots, rollbacks and forks through the public API, tracked and scanned."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from proofbox import Workspace
from proofbox.core.dirs import state_dir
from proofbox.errors import InternalError, WorkspaceCorrupt, WorkspaceExists, WorkspaceUnknown
from proofbox.workspace import registry
from proofbox.workspace.model import Method
from proofbox.workspace.scanning import cache
from proofbox.workspace.store import generation

Content = dict[str, tuple[int, bytes]]


def content(root: Path) -> Content:
    """Return every path below with its mode and bytes, read without proofbox."""
    found: Content = {}
    for folder, dirs, files in os.walk(root):
        for name in dirs + files:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            data = os.fsencode(os.readlink(path)) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(root))] = (stat.S_IFLNK if path.is_symlink() else mode, data)
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "x/y/empty").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]")
    (root / "a").write_text("one")
    (root / "x/y/run").write_text("#!/bin/sh")
    (root / "x/y/run").chmod(0o755)
    (root / "link").symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\n")).write_text("not UTF-8")
    return root


@pytest.mark.parametrize("track", [True, False])
def test_rollback_and_its_undo_restore_files_exactly(project: Path, track: bool) -> None:
    with Workspace.init(project, track=track) as ws:
        first, before = ws.snapshot("first"), content(project)
        (project / "x").rename(project / "moved")
        (project / "moved/y/new").write_text("new")
        (project / "a").unlink()
        (project / "a").mkdir()
        (project / "link").unlink()
        (project / "moved/y/run").chmod(0o644)
        second, after = ws.snapshot("second"), content(project)
        assert second.method == ("tracked" if track else "scan")
        assert ws.rollback(first.id).warning == ""
        assert content(project) == before
        ws.rollback(second.id)
        assert content(project) == after
        assert ws.status().changes == ()
        assert ws.verify().sound


def test_rollback_records_unsaved_changes_first(project: Path) -> None:
    with Workspace.init(project) as ws:
        first = ws.snapshot("first")
        (project / "a").write_text("unsaved")
        result = ws.rollback(first.id)
        assert (project / "a").read_text() == "one"
        ws.rollback(result.before)
        assert (project / "a").read_text() == "unsaved"


def test_fork_is_an_independent_workspace(project: Path, tmp_path: Path) -> None:
    with Workspace.init(project) as ws:
        first, before = ws.snapshot("first"), content(project)
        with ws.fork(first.id[:8], tmp_path / "fork") as fork:
            assert content(fork.path) == before
            assert fork.status().changes == ()
            (fork.path / "a").write_text("two")
            assert fork.snapshot("there").parent == first.id
        assert len(ws.history()) == 1
        assert (project / "a").read_text() == "one"


def test_temporary_fork_has_history_but_is_no_workspace_for_others(project: Path, tmp_path: Path) -> None:
    with Workspace.init(project) as ws:
        first, known = ws.snapshot("first"), set(registry.base().rglob("*"))
        with ws.fork(first.id, tmp_path / "fork", track=True, temporary=True) as fork:
            (fork.path / "a").write_text("two")
            made = fork.snapshot("there", sealed=True)
            assert [each.id for each in fork.history()] == [first.id, made.id]
            with pytest.raises(WorkspaceUnknown):
                Workspace.open(fork.path)
            for refused in (lambda: fork.name("x", made.id), lambda: fork.rollback(first.id), lambda: fork.effects):
                with pytest.raises(InternalError):
                    refused()
        assert set(registry.base().rglob("*")) == known
        with Workspace.from_store(ws.store_id, made.id, tmp_path / "again") as again:
            assert (again.path / "a").read_text() == "two"


def test_fork_and_its_origin_write_to_the_same_store(project: Path, tmp_path: Path) -> None:
    with Workspace.init(project) as ws, ws.fork(ws.snapshot("first").id, tmp_path / "fork") as fork:
        for number in range(3):
            for name, each in (("origin", ws), ("fork", fork)):
                (each.path / "a").write_text(f"{name} {number}")
                made = each.snapshot("")
                with each.fork(made.id, tmp_path / f"{name}-{number}") as other:
                    assert (other.path / "a").read_text() == f"{name} {number}"
        assert ws.verify().sound
        assert fork.verify().sound


@pytest.mark.parametrize("scanned", [True, False])
def test_next_process_does_not_rescan_a_fork(project: Path, tmp_path: Path, scanned: bool) -> None:
    with Workspace.init(project) as ws:
        first = ws.snapshot("first")
        with ws.fork(first.id, tmp_path / "fork", track=False) as fork:
            if scanned:
                assert fork.status().changes == ()
        known, position = cache.load(registry.home_of(fork.id) / registry.CACHE)
        assert known.tree_id.hex() == first.id
        assert ws._store.still_has(position)


def test_cache_is_written_again_only_after_many_changes(project: Path) -> None:
    for number in range(200):
        (project / f"file-{number}").write_text("before")
    with Workspace.init(project, track=False) as ws:
        ws.snapshot("first")
        ws.settle()
    place = registry.home_of(ws.id) / registry.CACHE
    ids: list[str] = []
    for changed in (1, 1, 100):
        before = place.stat().st_ino
        for number in range(changed):
            (project / f"file-{number}").write_text(f"{changed} changed, {len(ids)}")
        with Workspace.open(project, track=False) as ws:
            ids.append(ws.snapshot("next").id)
        assert (place.stat().st_ino != before) == (changed == 100)
        with Workspace.open(project, track=False) as ws:
            assert ws.status().changes == ()
            assert ws.snapshot("sealed", sealed=True).id == ids[-1]
            ws._working_tree.forget()  # nothing to save
    assert len(set(ids)) == 3


@pytest.mark.parametrize("scanned", [True, False])
def test_workspace_forgotten_by_another_object_can_be_closed(project: Path, tmp_path: Path, scanned: bool) -> None:
    with Workspace.init(project) as ws:
        with ws.fork(ws.snapshot("first").id, tmp_path / "fork", track=False) as fork:
            if scanned:
                assert fork.status().changes == ()
            Workspace.open(tmp_path / "fork", track=False).forget()
        assert not registry.home_of(fork.id).exists()


def test_gc_keeps_latest_and_named_snapshots(project: Path) -> None:
    with Workspace.init(project) as ws:
        first = ws.snapshot("first")
        ws.name("start", first.id)
        for number in range(5):
            (project / "a").write_text(f"number {number}")
            ws.snapshot(str(number))
        assert ws.gc(keep=1).snapshots_dropped == 4
        assert ws.verify().sound
        ws.rollback("start")
        assert (project / "a").read_text() == "one"


def test_verify_finds_every_flipped_byte(project: Path, rounds: Callable[[int, int], int]) -> None:
    with Workspace.init(project, track=False) as ws:
        ws.snapshot("first")
        store = state_dir() / "workspaces/stores" / ws._registration.store
    for path in sorted(store.glob("*-1")):
        whole = path.read_bytes()
        for place in range(0, len(whole), rounds(7, 1)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            try:
                with Workspace.open(project, track=False) as ws:
                    assert not ws.verify().sound, f"byte {place} of {path.name}"
            except WorkspaceCorrupt:
                pass
        path.write_bytes(whole)
    with Workspace.open(project, track=False) as ws:
        assert ws.verify().sound


def test_open_needs_a_workspace_and_init_an_ordinary_directory(project: Path) -> None:
    with pytest.raises(WorkspaceUnknown):
        Workspace.open(project)
    Workspace.init(project).close()
    with pytest.raises(WorkspaceExists):
        Workspace.init(project)


def test_stale_temporary_homes_are_swept(project: Path) -> None:
    with Workspace.init(project, track=False) as ws:
        half = registry.base() / f".proofbox-tmp-{ws.id[:-1]}"
        half.mkdir()
        registry.sweep()
        assert half.exists(), "another process may still use it"
        registry.sweep(older_than=-1)
        assert not half.exists()
        assert ws.history() == []


def test_close_waits_for_a_running_operation(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ws = Workspace.init(project)
    plain = ws._working_tree.refresh
    closing = threading.Thread(target=ws.close)

    def refresh(*, sealed: bool = False) -> Method:
        found = plain(sealed=sealed)
        closing.start()
        closing.join(0.2)  # must not end before this operation
        return found

    monkeypatch.setattr(ws._working_tree, "refresh", refresh)
    made = ws.snapshot("last")
    closing.join()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ws.history()
    with Workspace.open(project, track=False) as again:
        assert [each.id for each in again.history()] == [made.id]
        assert again.verify().sound


def test_forgotten_workspace_can_be_closed(project: Path) -> None:
    with Workspace.init(project) as ws:
        ws.forget()
    ws.close()
    with pytest.raises(WorkspaceUnknown):
        Workspace.open(project)


def test_large_store_is_opened_without_a_scan_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of a workspace with many files has a lookup table, and a killed process left no cache."""
    monkeypatch.setattr(generation, "_UNSORTED", 1)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/one").write_text("one")
    with Workspace.init(tmp_path / "files") as made:
        first = made.snapshot("first", sealed=True)
    assert list(registry.store_path(made.store_id).glob("lookup.*"))
    (registry.home_of(made.id) / registry.CACHE).unlink()
    with Workspace.open(tmp_path / "files", track=False) as again:
        assert again.snapshot("again").id == first.id
