"""A box over a snapshot: its files, its changes, and nothing left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox import Sandboxes, Workspace
from proofbox.core.dirs import state_dir
from proofbox.errors import PolicyRefused

pytestmark = pytest.mark.needs("bubblewrap")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a, b:c"  # what the kernel takes for a list
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


def test_a_box_sees_the_snapshot_and_its_changes_are_told(ws: Workspace) -> None:
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
        said, _, found = done.stdout.partition("\n")
        assert said == "this is five"
        assert listing(found) == before
        told = {(change.path, change.kind, change.old_path) for change in layers.changes()}
    assert told == {
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


def test_another_snapshot_costs_what_differs(ws: Workspace, project: Path) -> None:
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


def test_a_killed_owner_leaves_nothing_mounted_and_is_swept(ws: Workspace) -> None:
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


def test_a_provider_that_has_no_layers_refuses_them(ws: Workspace) -> None:
    ws.snapshot("first")
    with ws.overlay("HEAD") as layers, Sandboxes(ws.path) as boxes, pytest.raises(PolicyRefused):
        boxes.exec(["true"], provider="off", **layers.options())


@pytest.mark.parametrize(("name", "levels", "told"), [("a", 1500, 200), ("n" * 200, 40, 19)])
def test_a_box_that_nests_directories_without_end_is_told_of_as_far_as_a_snapshot_goes(
    ws: Workspace, name: str, levels: int, told: int
) -> None:
    nest = f"import os\nfor _ in range({levels}): os.mkdir('{name}'); os.chdir('{name}')"
    first = ws.snapshot("first")
    with ws.overlay(first.id) as layers, Sandboxes(ws.path) as boxes:
        done = boxes.exec(["python3", "-c", nest], provider="bubblewrap", **layers.options())
        assert done.exit_code == 0, done.stderr
        assert len(layers.changes()) == told
    assert not list((store_of(ws) / "boxes").iterdir())


def test_the_longest_path_of_a_snapshot_is_laid_over_another(ws: Workspace) -> None:
    first = ws.snapshot("first")
    names = ["n" * 200] * 19 + ["f" * 200]
    fd = os.open(ws.path, os.O_RDONLY)
    for name in names[:-1]:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open(names[-1], os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    second = ws.snapshot("second")
    assert second.skipped == ()
    with ws.overlay(first.id), ws.overlay(second.id) as layers, Sandboxes(ws.path) as boxes:
        look = ["find", ".", "-name", names[-1]]
        done = boxes.exec(look, provider="bubblewrap", **layers.options())
        assert done.stdout.strip() == "/".join([".", *names])
        assert layers.changes() == []
