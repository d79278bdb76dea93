"""A box over a snapshot: its files, its changes, and its cleanup."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from capabilities import OrdinaryUser

from proofbox import Sandboxes, Workspace
from proofbox.core.dirs import state_dir
from proofbox.core.files.atomic import TEMPORARY_PREFIX
from proofbox.core.files.removal import LeftoverPath
from proofbox.errors import PolicyRefused
from proofbox.workspace.scanning.scanner import MAX_DEPTH, MAX_FILE_SIZE, MAX_PATH
from proofbox.workspace.timeline import overlay

pytestmark = pytest.mark.needs("bubblewrap")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a, b:c"  # characters that the kernel treats as separators in mount options
    (root / "kept/below").mkdir(parents=True)
    (root / "gone/below").mkdir(parents=True)
    for name in ("kept/below/one", "kept/two", "gone/below/three", "gone/four", "five"):
        (root / name).write_text(f"this is {name}")
    (root / "link").symlink_to("five")
    return root


@pytest.fixture
def ws(project: Path) -> Iterator[Workspace]:
    with Workspace.init(project) as made:
        yield made


def store_of(ws: Workspace) -> Path:
    return state_dir() / "workspaces/stores" / ws._registration.store


def listing(session_output: str) -> list[str]:
    return sorted(line for line in session_output.splitlines() if line)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@contextmanager
def deep_folder(top: Path, levels: int, name: str, *, make: bool = False) -> Iterator[int]:
    """Open the innermost of nested directories, whose path may be too long for one system call."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        if make:
            os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    yield fd
    os.close(fd)


def deep_tree(top: Path, levels: int, name: str) -> None:
    with deep_folder(top, levels, name, make=True):
        pass


def test_box_sees_the_snapshot_and_its_changes_are_listed(ws: Workspace) -> None:
    first = ws.snapshot("first")
    before = files(ws.path)
    (ws.path / "five").write_text("changed since")
    (ws.path / "later").write_text("not in the snapshot")
    script = """
        cat five; find . -mindepth 1 -printf '\\n%P'
        echo more >> kept/two; rm five; rm -r gone; mkdir gone; echo new > gone/new
        chmod 700 kept/below; mv kept/below/one moved; ln -s x fresh; mkfifo pipe
    """
    with ws.overlay(first.id) as layers:
        with Sandboxes(ws.path) as boxes, boxes.start_session(provider="bubblewrap", **layers.options()) as session:
            done = session.exec(["sh", "-c", script])
            assert done.exit_code == 0, done.stderr
        output, _, found = done.stdout.partition("\n")
        assert output == "this is five"
        assert listing(found) == before
        listed = {(change.path, change.kind, change.old_path) for change in layers.changes()}
    assert listed == {
        ("kept/two", "modified", None),
        ("five", "deleted", None),
        ("gone/four", "deleted", None),
        ("gone/below", "deleted", None),
        ("gone/below/three", "deleted", None),
        ("gone/new", "added", None),
        ("kept/below", "mode", None),
        ("moved", "renamed", "kept/below/one"),
        ("fresh", "added", None),
    }
    assert (ws.path / "five").read_text() == "changed since"
    assert os.listdir(store_of(ws) / "boxes") == []


def test_similar_snapshot_writes_only_differences(ws: Workspace, project: Path) -> None:
    first = ws.snapshot("first")
    subprocess.run(["rm", "-r", project / "gone", project / "kept/two"], check=True)
    (project / "gone").write_text("a file now")
    (project / "five").unlink()
    (project / "five/deep").mkdir(parents=True)
    (project / "five/deep/file").write_text("deep")
    (project / "five").chmod(0o750)
    second, there = ws.snapshot("second"), files(project)
    for name, expected in ((first.id, None), (second.id, there), (first.id, None)):
        with ws.overlay(name) as layers:
            with Sandboxes(project) as boxes:
                done = boxes.exec(
                    ["find", ".", "-mindepth", "1", "-printf", "%P\n"], provider="bubblewrap", **layers.options()
                )
                assert done.exit_code == 0, done.stderr
                if expected is not None:
                    assert listing(done.stdout) == expected
                    mode = boxes.exec(["stat", "-c", "%a", "five"], provider="bubblewrap", **layers.options())
                    assert mode.stdout == "750\n"
            assert layers.changes() == []
    assert [path.name for path in (store_of(ws) / "lower").iterdir() if path.is_dir()] == [first.id]


def test_killed_owner_leaves_no_mount_and_is_swept(ws: Workspace) -> None:
    ws.snapshot("first")
    code = """if True:
        import os, signal, sys
        from proofbox import Sandboxes, Workspace
        ws = Workspace.open(sys.argv[1])
        session = Sandboxes(ws.path).start_session(provider="bubblewrap", **ws.overlay("HEAD").options())
        session.exec(["touch", "made"])
        os.kill(os.getpid(), signal.SIGKILL)"""
    done = subprocess.run([sys.executable, "-c", code, str(ws.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert str(state_dir()) not in Path("/proc/self/mounts").read_text()
    boxes = store_of(ws) / "boxes"
    assert len(os.listdir(boxes)) == 2
    with ws.overlay("HEAD"):
        assert len(os.listdir(boxes)) == 2
    assert os.listdir(boxes) == []
    ws.gc()
    assert not any(path.is_dir() for path in (store_of(ws) / "lower").iterdir())


def test_provider_without_layers_refuses_them(ws: Workspace) -> None:
    ws.snapshot("first")
    with ws.overlay("HEAD") as layers, Sandboxes(ws.path) as boxes, pytest.raises(PolicyRefused):
        boxes.exec(["true"], provider="off", **layers.options())


def test_changes_below_the_maximum_depth_are_not_listed(ws: Workspace) -> None:
    ws.snapshot("first")
    descriptors = len(os.listdir("/proc/self/fd"))
    with ws.overlay("HEAD") as layers:
        deep_tree(layers.upper, 1200, "d" * 40)
        (layers.upper / "kept").mkdir()
        (layers.upper / "kept/new").write_text("new")
        listed = [(change.path, change.kind) for change in layers.changes()]
    assert ("kept/new", "added") in listed
    assert len(listed) == (MAX_PATH + 1) // 41 + 1, "the directories whose path is not too long, and the file"
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert os.listdir(store_of(ws) / "boxes") == []
    with ws.overlay("HEAD") as layers:
        deep_tree(layers.upper, 1200, "d")
        assert len(layers.changes()) == MAX_DEPTH


@pytest.mark.needs("root")
def test_box_cannot_hide_snapshot_files_with_an_attribute(ws: Workspace) -> None:
    ws.snapshot("first")
    code = "import os; os.chmod('kept', 0o755); os.setxattr('kept', 'user.overlay.opaque', b'y')"
    with ws.overlay("HEAD") as layers:
        with Sandboxes(ws.path) as boxes:
            done = boxes.exec(["python3", "-c", code], provider="bubblewrap", **layers.options())
            assert done.exit_code == 0, done.stderr
        assert os.getxattr(layers.upper / "kept", "user.overlay.opaque") == b"y"
        assert layers.changes() == []


def test_unreadable_and_endless_files_of_a_box_are_not_read(ws: Workspace) -> None:
    ws.snapshot("first")
    with ws.overlay("HEAD") as layers:
        with (layers.upper / "hole").open("wb") as file:
            file.truncate(MAX_FILE_SIZE + 1)
        assert layers.changes() == []


def test_failed_sweep_does_not_prevent_an_overlay(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    ws.snapshot("first")
    with ws.overlay("HEAD"):
        boxes = store_of(ws) / "boxes"
    (boxes / "gone.lock").symlink_to("nowhere")  # like one that another process has just swept
    with monkeypatch.context() as patched:
        patched.setattr(overlay, "remove_tree", lambda path: [LeftoverPath("", "busy", errno.EBUSY)])
        with ws.overlay("HEAD"):
            pass
        assert len(os.listdir(boxes)) == 3, "a directory that could not be removed keeps its lock"
        ws.overlay("HEAD").close()
    with ws.overlay("HEAD"):
        assert len(os.listdir(boxes)) == 3, "the next overlay sweeps it"
    assert os.listdir(boxes) == ["gone.lock"]


def test_lower_tree_of_a_killed_process_is_swept(ws: Workspace) -> None:
    ws.snapshot("first")
    with ws.overlay("HEAD"):
        lower = store_of(ws) / "lower"
    for tree in ("0" * 64, ws.resolve("HEAD").id):
        (lower / f"{TEMPORARY_PREFIX}{tree}/below").mkdir(parents=True)
    ws.gc()
    assert not [path for path in lower.iterdir() if path.is_dir()]
    (lower / f"{TEMPORARY_PREFIX}{ws.resolve('HEAD').id}/below").mkdir(parents=True)
    with ws.overlay("HEAD"):
        assert [path.name for path in lower.iterdir() if path.is_dir()] == [ws.resolve("HEAD").id]


def test_overlay_supports_the_longest_path(ws: Workspace, project: Path, tmp_path: Path) -> None:
    first = ws.snapshot("first")
    with ws.overlay(first.id):
        pass
    deep_tree(project, MAX_PATH // 251, "d" * 250)
    with deep_folder(project, MAX_PATH // 251, "d" * 250) as fd:
        os.close(os.open("f" * 255, os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    second = ws.snapshot("second")
    assert second.skipped == ()
    with ws.overlay(second.id) as layers:
        assert len(layers.options()["layers"].lower) == 2  # type: ignore[union-attr]
        assert layers.changes() == []
    ws.export(second.id, tmp_path / "export")
    with ws.fork(second.id, tmp_path / "fork") as fork:
        assert fork.snapshot("the same", sealed=True).id == second.id
        shutil.rmtree(project / ("d" * 250))
        ws.rollback(second.id)
        assert ws.snapshot("the same", sealed=True).id == second.id


AS_ORDINARY_USER = """if True:
    import json, os, tempfile
    from pathlib import Path
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(HOME=scratch, XDG_STATE_HOME=scratch + "/state")
        from proofbox import Sandboxes, Workspace
        root = Path(scratch, "project")
        for name in ("gone/below/file", "kept/file"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text("one")
        code = "import os; os.setxattr('kept', '{}.overlay.opaque', b'y')"
        forge = "; ".join(f'python3 -c "{code.format(space)}"' for space in ("user", "trusted"))
        with Workspace.init(root) as ws:
            ws.snapshot("first")
            with ws.overlay("HEAD") as layers:
                with Sandboxes(root) as boxes:
                    script = f"rm -r gone; mkdir gone; touch gone/new; chmod 711 kept; {forge}; true"
                    boxes.exec(["sh", "-c", script], provider="bubblewrap", **layers.options())
                print(json.dumps([[change.path, change.kind] for change in layers.changes()]))"""


@pytest.mark.needs("unprivileged-user")
def test_directory_recreated_by_an_ordinary_users_box_hides_the_old_one(ordinary_user: OrdinaryUser) -> None:
    assert json.loads(ordinary_user.run_code(AS_ORDINARY_USER)) == [
        ["gone/below", "deleted"],
        ["gone/below/file", "deleted"],
        ["gone/new", "added"],
        ["kept", "mode"],
    ]
