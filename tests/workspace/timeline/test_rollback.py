"""A rollback skips paths that it can't change, restores the rest, and never makes the workspace unusable."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from capabilities import OrdinaryUser

from proofbox import Workspace
from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.errors import RollbackUnfinished
from proofbox.lab.attempt.adhoc.run import run_attempt
from proofbox.workspace import registry
from proofbox.workspace.scanning import scanner
from proofbox.workspace.timeline import restore
from proofbox.workspace.tools.toolbox import open_toolbox


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    (made / "src/file").write_text("one")
    (made / "other").write_text("one")
    return made


@pytest.fixture
def ws(root: Path) -> Iterator[Workspace]:
    with Workspace.init(root) as made:
        yield made


def journal_of(ws: Workspace) -> Path:
    return registry.home_of(ws.id) / registry.ROLLBACK


REFUSED = """if True:
    import json, os, sys, tempfile
    from pathlib import Path
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = scratch + "/state"
        from proofbox import Workspace
        result = {}
        for track in (True, False):
            root = Path(scratch, f"project-{track}")
            for name in ("closed/file", "locked/file", "other", "new/kept"):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("one")
            with Workspace.init(root, track=track) as ws:
                first = ws.snapshot("first")
                (root / "other").write_text("two")
                (root / "closed").chmod(0)
                done = ws.rollback(first.id)
                skipped = [(left.path, left.reason) for left in done.left]
                seen = ws.snapshot("tracked").id == ws.snapshot("sealed", sealed=True).id
            with Workspace.open(root, track=track) as ws:
                (root / "closed").chmod(0o755)
                again = ws.rollback(first.id)
                whole = [ws.unfinished, list(again.left), (root / "closed/file").read_text(), ws.status().changes]
            result[str(track)] = [skipped, (root / "other").read_text(), seen, whole]
        print(json.dumps(result))"""


@pytest.mark.needs("unprivileged-user")
def test_unopenable_directory_is_skipped_and_reported(ordinary_user: OrdinaryUser) -> None:
    expected = [[["closed", "Permission denied"]], "one", True, ["", [], "one", []]]
    assert json.loads(ordinary_user.run_code(REFUSED)) == {"True": expected, "False": expected}


@pytest.mark.parametrize("track", [True, False])
@pytest.mark.parametrize("call", ["unlink", "rmdir", "rename", "mkdir"])
def test_unchangeable_paths_are_skipped_and_the_rest_is_restored(
    root: Path, track: bool, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workspace.init(root, track=track) as ws:
        first = ws.snapshot("first")
        (root / "came/below").mkdir(parents=True)
        (root / "came/below/file").write_text("came")
        (root / "src/file").unlink()
        (root / "src").rmdir()
        (root / "other").write_text("two")
        refused = {"unlink": "file", "rmdir": "below", "rename": "other", "mkdir": "src"}[call]
        real = getattr(os, call)

        def refusing(*arguments: Any, **options: Any) -> None:
            if arguments[1 if call == "rename" else 0] == refused:
                raise OSError(errno.EPERM, os.strerror(errno.EPERM))
            real(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, refusing)
            done = ws.rollback(first.id)
        left = {"unlink": "came/below/file", "rmdir": "came/below", "rename": "other", "mkdir": "src"}[call]
        assert left in {each.path for each in done.left}
        assert "differ from the snapshot" in done.warning
        assert (root / "other").read_text() == ("two" if call == "rename" else "one")
        assert (root / "src/file").exists() == (call != "mkdir")
        assert (root / "came/below").exists() == (call in ("unlink", "rmdir"))
        seen = ws.head
        assert seen is not None
        assert ws.snapshot("as it is", sealed=True).id == seen.id, "the history matches the files"
        assert ws.rollback(first.id).left == ()
        assert ws.snapshot("whole", sealed=True).id == first.id


def test_workspace_opens_after_a_rollback_on_a_full_disk(
    ws: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ws.snapshot("first")
    (root / "other").write_text("two")
    real = restore.write_file

    def full(store: Any, fd: int, name: str, *arguments: Any, **options: Any) -> Any:
        real(store, fd, name, *arguments, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(restore, "write_file", full)
        with pytest.raises(RollbackUnfinished, match="No space left"):
            ws.rollback(first.id)
        with Workspace.open(root) as again:
            assert "No space left" in again.unfinished
            assert again.status().unfinished == again.unfinished
            assert (root / "other").read_text() == "two"
            assert sorted(os.listdir(root)) == ["other", "src"], "no partial file is left"
            with pytest.raises(RollbackUnfinished, match="No space left"):
                again.require_finished()
            with pytest.raises(RollbackUnfinished):
                run_attempt("x", root)
            with pytest.raises(RollbackUnfinished), open_toolbox(root):
                pass
            second = again.snapshot("works")
    with Workspace.open(root) as again:
        assert again.unfinished == ""
        assert (root / "other").read_text() == "one"
        again.rollback(second.id)
        assert (root / "other").read_text() == "two"
    assert not journal_of(ws).exists()


def test_new_rollback_replaces_an_unfinished_one(ws: Workspace, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ws.snapshot("first")
    (root / "other").write_text("two")
    second = ws.snapshot("second")
    gone = registry.Rollback("0" * 64, first.id, TEMPORARY_PREFIX + "1")
    registry.write(journal_of(ws), gone)  # its target has been collected
    (root / gone.temporary).write_text("half")
    with Workspace.open(root) as again:
        assert "0000" in again.unfinished
        again.rollback(second.id)
        assert again.unfinished == ""
    assert sorted(os.listdir(root)) == ["other", "src"]
    assert not journal_of(ws).exists()


@pytest.mark.parametrize("track", [False, True])
def test_directory_at_the_temporary_path_is_removed(ws: Workspace, root: Path, track: bool) -> None:
    first = ws.snapshot("first")
    (root / "other").write_text("two")
    ws.snapshot("second")
    journal = registry.Rollback(first.id, first.id, TEMPORARY_PREFIX + "1")
    registry.write(journal_of(ws), journal)
    (root / journal.temporary / "below").mkdir(parents=True)
    (root / journal.temporary / "below/file").write_text("in the way")
    with Workspace.open(root, track=track) as again:
        assert again.unfinished == ""
    assert sorted(os.listdir(root)) == ["other", "src"]
    assert (root / "other").read_text() == "one"


def test_rollback_without_tracking_scans_changed_directories_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two/below"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("before")
    os.mkfifo(root / "two/fifo")
    scans = []
    scan = scanner.Scanner.all

    def recording(self: scanner.Scanner, *args: Any, **options: Any) -> None:
        scans.append(options["within"])
        scan(self, *args, **options)

    with Workspace.init(root, track=False) as ws:
        first = ws.snapshot("first")
        (root / "one/file").write_text("after")
        (root / "one/new").mkdir()
        (root / "one").chmod(0o700)
        monkeypatch.setattr(scanner.Scanner, "all", recording)
        result = ws.rollback(first.id)
        assert {change.path for change in result.restored} == {"one", "one/file", "one/new"}
        assert [within and sorted(within) for within in scans] == [None, ["", "one"]]
        head = ws.head
        assert head is not None
        assert (head.id, head.kind) == (first.id, "rollback")
        assert [each.path for each in head.skipped] == ["two/fifo"]
        assert ws.status().changes == ()
