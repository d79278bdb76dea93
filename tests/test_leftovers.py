"""`scripts/leftovers` and the end of a test run report leftovers."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
from capabilities import ROOT

SCRIPT = ROOT / "scripts/leftovers"
LISTENER = (
    "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX);"
    "s.bind(os.environ['TMPDIR'] + '/proofbox-socket'); s.listen(); time.sleep(600)"
)


class Watched:
    """Run commands under `scripts/leftovers`; their leftovers are removed after the test."""

    def __init__(self, temporary: Path) -> None:
        self.env = {**os.environ, "TMPDIR": str(temporary), "LEFTOVERS_GRACE": "3"}
        self.output = ""

    def run(self, *words: str) -> int:
        done = subprocess.run([SCRIPT, *words], env=self.env, capture_output=True, text=True, timeout=100)
        self.output = done.stderr
        return done.returncode

    def left(self, kind: str) -> list[str]:
        return re.findall(rf"^left: {kind} (.*)$", self.output, re.MULTILINE)

    def end(self) -> None:
        for words in self.left("process"):
            os.kill(int(words.partition(":")[0]), signal.SIGKILL)
        for point in self.left("mount"):
            subprocess.run(["umount", "-l", point], check=True)


@pytest.fixture
def watched() -> Iterator[Watched]:
    # Short: a socket's path may have 107 bytes.
    place = Path(os.environ["TMPDIR"]) / f"w{os.getpid()}"
    place.mkdir()
    found = Watched(place)
    yield found
    found.end()
    shutil.rmtree(place)


def test_command_without_leftovers_keeps_its_exit_code(watched: Watched) -> None:
    assert watched.run("--", "sh", "-c", 'mkdir "$TMPDIR/x" && rmdir "$TMPDIR/x"; sleep 0 & wait; exit 7') == 7
    assert watched.output == ""
    assert list(Path(watched.env["TMPDIR"]).iterdir()) == []


def test_hidden_process_is_found(watched: Watched) -> None:
    hide = "import os, sys; os.fork() and sys.exit(); os.setsid(); os.fork() and sys.exit(); os.environ.clear();"
    program = hide + "os.chdir('/'); os.closerange(0, 100); os.execv('/bin/sleep', ['sleep', '601'])"
    assert watched.run("--", sys.executable, "-c", program) == 1
    assert [words.partition(": ")[2] for words in watched.left("process")] == ["sleep 601"]


def test_directory_file_and_socket_are_found(watched: Watched) -> None:
    script = """
    mkdir "$TMPDIR/some"; touch "$TMPDIR/file"
    "$1" -c "$2" >/dev/null 2>&1 &
    while [ ! -S "$TMPDIR/proofbox-socket" ]; do sleep 0.01; done
    """
    assert watched.run("--", "sh", "-c", script, "sh", sys.executable, LISTENER) == 1
    assert [Path(path).name for path in watched.left("directory")] == ["some"]
    assert [Path(path).name for path in watched.left("file")] == ["file", "proofbox-socket"]
    assert [Path(path).name for path in watched.left("socket")] == ["proofbox-socket"]
    assert len(watched.left("process")) == 1


@pytest.mark.needs("root")
def test_mount_is_found(watched: Watched) -> None:
    mounted = 'mkdir "$TMPDIR/m" && mount -t tmpfs none "$TMPDIR/m"'
    if subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode:
        pytest.skip("nothing may be mounted here")
    assert watched.run("--", "sh", "-c", mounted) == 1
    assert len(watched.left("mount")) == 1


def test_network_namespace_and_control_group_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use directories of the test, because another proofbox on this machine removes groups of dead processes."""
    monkeypatch.setattr(leftovers, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(leftovers, "NAMESPACES", (tmp_path / "netns",))
    (tmp_path / "memory/proofbox").mkdir(parents=True)
    (tmp_path / "netns").mkdir()
    assert [each for each in leftovers.nameless() if "container" not in each] == []
    dead = 2**22 + 1  # more than a pid can be
    for name in (f"a.{dead}", f"b.{os.getpid()}"):
        (tmp_path / "memory/proofbox" / name).mkdir()
    (tmp_path / "netns/planted").touch()
    assert [each for each in leftovers.nameless() if "container" not in each] == [
        f"network namespace {tmp_path}/netns/planted",
        f"control group {tmp_path}/memory/proofbox/a.{dead}",
    ]


def test_container_is_found(watched: Watched, tmp_path: Path) -> None:
    """The engine's command lists the containers; here it is replaced by one that lists one more each time."""
    engine = tmp_path / "docker"
    engine.write_text(f'#!/bin/sh\ncat "{tmp_path}/list"\nprintf "%s\\n" "abc /project" >>"{tmp_path}/list"\n')
    engine.chmod(0o755)
    (tmp_path / "list").touch()
    (tmp_path / "podman").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "podman").chmod(0o755)
    watched.env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    assert watched.run("--", "true") == 1
    assert set(watched.left("container")) == {"docker abc /project"}


def test_machine_is_compared_before_and_after(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(watched.env["TMPDIR"])
    found: list[str] = []
    monkeypatch.setattr(leftovers, "snapshot", lambda: ["process 1: boxagent", *found])
    before = tmp_path / "before.json"
    monkeypatch.setattr(sys, "argv", ["leftovers", "--before", str(before)])
    assert leftovers.main() == 0
    monkeypatch.setattr(sys, "argv", ["leftovers", "--after", str(before)])
    assert leftovers.main() == 0
    found.append(f"directory {place}/proofbox-x")
    monkeypatch.setattr(leftovers.wait_for_none, "__defaults__", (0.0,))
    assert leftovers.main() == 1


def test_snapshot_lists_resources_with_our_names(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: watched.env["TMPDIR"])
    place = Path(watched.env["TMPDIR"], "proofbox-planted")
    assert f"directory {place}" not in leftovers.snapshot()
    place.mkdir()
    assert f"directory {place}" in leftovers.snapshot()


PLANTS = f"""
import os, subprocess, sys, time
from pathlib import Path

def test_plants():
    Path(os.environ["TMPDIR"], "proofbox-planted").mkdir()
    subprocess.Popen([sys.executable, "-c", {LISTENER!r}], start_new_session=True)
    while not Path(os.environ["TMPDIR"], "proofbox-socket").exists():
        time.sleep(0.01)
"""


def test_test_run_with_leftovers_fails(tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_plants.py").write_text(PLANTS)
    (tmp_path / "test_clean.py").write_text("def test_clean():\n    pass\n")
    env = {
        **watched.env,
        "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tests/viewer'}:{ROOT / 'scripts'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    env["PYTEST_DEBUG_TEMPROOT"] = str(tmp_path)

    def session(name: str) -> subprocess.CompletedProcess[str]:
        plugins = ["-p", "xdist.plugin", "-p", "conftest", "-p", "no:cacheprovider"]
        words = ["-m", "pytest", *plugins, "-n", "1", "--rootdir", str(tmp_path), name]
        return subprocess.run([sys.executable, *words], env=env, cwd=tmp_path, capture_output=True, text=True)

    clean = session("test_clean.py")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    assert not list(tmp_path.glob("pytest-of-*"))
    planted = session("test_plants.py")
    pids = re.findall(r"^process (\d+): ", planted.stdout, re.MULTILINE)
    for pid in set(pids):
        os.kill(int(pid), signal.SIGKILL)
    assert planted.returncode == 1, planted.stdout + planted.stderr
    assert pids
    assert "left behind by this run" in planted.stdout
    assert "temporary proofbox-planted" in planted.stdout
    assert re.search(r"^socket .*/proofbox-socket$", planted.stdout, re.MULTILINE)
