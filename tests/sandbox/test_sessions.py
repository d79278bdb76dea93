"""Detached and attached sessions: records, hostile ids, crashes, and cleanup."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pacing import SOON
from raw_agent import alive, survivors, tree, wait_until

from proofbox import Sandboxes
from proofbox.core.clock import ManualClock
from proofbox.core.dirs import state_dir
from proofbox.errors import PathRefused, ProofboxError, SandboxLost, SessionUnknown, VersionUnknown
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.service import Session

PROVIDERS = ["off", pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary state directory, in which every session is stopped at the end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield state_dir() / "sessions"
    with Sandboxes(project_root=tmp_path) as boxes:
        for info in boxes.list_sessions():
            boxes.stop_session(info.id)
        boxes.prune_sessions()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def boxes(state: Path, project: Path) -> Iterator[Sandboxes]:
    with Watched(project_root=project) as opened:
        yield opened
    for session in opened.made:
        session._core.connection.close()


class Watched(Sandboxes):
    """Keeps the sessions that it starts: a detached session that was stopped by its id still holds its stream."""

    def __init__(self, project_root: Path) -> None:
        super().__init__(project_root)
        self.made: list[Session] = []

    def start_session(self, **options: Any) -> Session:
        self.made.append(super().start_session(**options))
        return self.made[-1]


@contextlib.contextmanager
def another_process(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another client: a Python process with the same environment; callers that need its first line wait for it."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def groups_of(pid: int) -> list[Path]:
    found = cgroups.tree()
    homes = [*found.v1.values(), *([found.unified] if found.unified else [])]
    return [group for home in homes if home.exists() for group in home.iterdir() if group.name.endswith(f".{pid}")]


def members(group: Path) -> list[str]:
    with contextlib.suppress(OSError):  # the group was removed in the meantime
        return [pid for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]
    return []


# ---- between processes


@pytest.mark.parametrize("provider", PROVIDERS)
def test_another_process_finds_uses_and_stops_a_session(
    boxes: Sandboxes, project: Path, state: Path, provider: str
) -> None:
    made = boxes.start_session(provider=provider, detached=True, ttl=60)
    made.exec(["sh", "-c", "echo kept > /tmp/proofbox-kept-$$; ls /tmp | grep kept; rm -f /tmp/proofbox-kept-$$"])
    script = """
import json, sys
import proofbox
with proofbox.Sandboxes(project_root="/nonexistent") as boxes:
    id = sys.argv[1]
    seen = boxes.get_session(id)
    listed = [info.id for info in boxes.list_sessions()]
    out = boxes.exec_in_session(id, ["sh", "-c", "pwd; cat"], stdin=b"from afar").stdout
    stopped = boxes.stop_session(id).state
    print(json.dumps([seen.provider, seen.state, seen.project, listed, out, stopped]))
"""
    with another_process(script, made.id) as process:
        output, _ = process.communicate(timeout=90)
    other_provider, running, root, listed, out, stopped = json.loads(output)
    assert (other_provider, running, stopped) == (provider, "running", "stopped")
    assert root == str(project)
    assert listed == [made.id]
    assert out == f"{project}\nfrom afar"
    with pytest.raises(SandboxLost) as caught:
        made.exec(["true"])
    assert caught.value.details["provider"] == provider
    with pytest.raises(SandboxLost) as caught:
        boxes.exec_in_session(made.id, ["true"])
    assert caught.value.fix_hints
    made.stop()


def test_two_processes_exec_concurrently_in_one_session(boxes: Sandboxes, tmp_path: Path) -> None:
    made = boxes.start_session(provider="off", detached=True, ttl=60)
    script = """
import sys
import proofbox
with proofbox.Sandboxes(project_root=".") as boxes:
    me, there = sys.argv[2], sys.argv[3]
    # Each waits for the other inside the session: they run concurrently, or time out.
    wait = f"echo {me} > {there}/{me}; while [ $(ls {there} | wc -l) -lt 2 ]; do sleep 0.01; done; echo {me}"
    print(boxes.exec_in_session(sys.argv[1], ["sh", "-c", wait], timeout=60).stdout, end="")
    for n in range(20):
        assert boxes.exec_in_session(sys.argv[1], ["echo", f"{me} {n}"]).stdout == f"{me} {n}\\n"
"""
    there = tmp_path / "meeting"
    there.mkdir()
    with (
        another_process(script, made.id, "a", str(there)) as one,
        another_process(script, made.id, "b", str(there)) as two,
    ):
        assert one.communicate(timeout=90)[0] == "a\n"
        assert two.communicate(timeout=90)[0] == "b\n"
        assert one.returncode == two.returncode == 0
    made.stop()


CLIENT = """
import sys
import proofbox
boxes = proofbox.Sandboxes(project_root=sys.argv[1])
if sys.argv[2] == "own":
    session = boxes.start_session(provider=sys.argv[3])
    session.exec(sys.argv[4:], on_output=lambda output: print("up", flush=True))
else:
    boxes.exec_in_session(sys.argv[2], sys.argv[4:], on_output=lambda output: print("up", flush=True))
"""


@pytest.mark.parametrize("provider", PROVIDERS)
def test_killing_a_client_ends_only_its_own_command(boxes: Sandboxes, project: Path, provider: str) -> None:
    made = boxes.start_session(provider=provider, detached=True, ttl=60)
    theirs, mine = project / "theirs", project / "mine"
    theirs.mkdir()
    mine.mkdir()
    python = ["/usr/bin/python3", *tree(theirs, ("setsid", "daemon"))[1:]]
    made.exec(["/usr/bin/python3", *tree(mine, ("setsid", "daemon"), stay=False)[1:]])
    with another_process(CLIENT, str(project), made.id, "-", *python) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        assert survivors(theirs) == ["daemon", "setsid"]
        client.kill()
        client.wait()
    wait_until(lambda: not survivors(theirs), "the end of the dead client's command")
    assert survivors(mine) == ["daemon", "setsid"], "background processes of other commands survive"
    assert made.exec(["echo", "on"]).stdout == "on\n"
    made.stop()
    wait_until(lambda: not survivors(mine), "the end of everything in the session")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_killing_a_client_ends_its_own_session(state: Path, project: Path, provider: str) -> None:
    python = ["/usr/bin/python3", *tree(project)[1:]]
    with another_process(CLIENT, str(project), "own", provider, *python) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "up\n"
        assert len(survivors(project)) == 5
        client.kill()
        client.wait()
        if not cgroups.tree().can_kill and provider == "off":
            pytest.skip("without cgroups, a forking process may escape, as documented")
        wait_until(lambda: not survivors(project), "the end of the dead client's session")
    # Its group may remain; the next client removes it once its last process has ended.
    wait_until(lambda: not any(members(group) for group in groups_of(client.pid)), "the end of the box itself")
    with another_process(
        "import proofbox; print(proofbox.Sandboxes('.').exec(['true'], provider='off').exit_code)"
    ) as next:
        assert next.communicate(timeout=90)[0] == "0\n"
    assert groups_of(client.pid) == []


def test_sweep_leaves_sessions_of_dead_clients_running(state: Path, project: Path) -> None:
    script = """
import sys
import proofbox
session = proofbox.Sandboxes(project_root=sys.argv[1]).start_session(provider="off", detached=True, ttl=60)
session.exec(["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $! > pid"])
session.exec(["true"])
session.exec(["true"])
print(session.id)
"""
    with another_process(script, str(project)) as maker:
        id = maker.communicate(timeout=90)[0].strip()
    sweeper = (
        "import proofbox; boxes = proofbox.Sandboxes('.'); boxes.exec(['true'], provider='off'); boxes.prune_sessions()"
    )
    with another_process(sweeper) as other:
        other.communicate(timeout=90)
        assert other.returncode == 0
    (pid,) = [int(word) for word in (project / "pid").read_text().split()]
    with Sandboxes(project_root=project) as boxes:
        for _ in range(3):
            assert boxes.exec_in_session(id, ["echo", "on"]).stdout == "on\n"
        assert alive(pid)
        began = time.monotonic()
        assert boxes.stop_session(id).state == "stopped"
        assert time.monotonic() - began < SOON
        wait_until(lambda: not alive(pid), "the end of the session's processes")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_running_client_leaves_no_zombies_of_ended_boxes(boxes: Sandboxes, provider: str) -> None:
    def dead() -> set[str]:
        children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
        return {pid for pid in children if not alive(int(pid))}

    before = dead()
    for _ in range(3):
        boxes.start_session(provider=provider, detached=True, ttl=60).stop()

    def no_zombies() -> bool:
        boxes.exec(["true"], provider="off")
        return dead() <= before

    wait_until(no_zombies, "the next box to reap the ended ones")


# ---- records


def test_session_records_and_states(boxes: Sandboxes, state: Path, project: Path) -> None:
    made = boxes.start_session(provider="off", detached=True, ttl=77)
    info = boxes.get_session(made.id)
    assert info == made.info
    assert (info.provider, info.state, info.detached, info.ttl) == ("off", "running", True, 77)
    assert info.project == str(project)
    for path, mode in ((state.parent, 0o700), (state / made.id, 0o700), (state / made.id / "session.json", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode, path
    assert boxes.stop_session(made.id).state == "stopped"
    for _ in range(3):
        assert boxes.stop_session(made.id).state == "stopped", "stopping twice is allowed"
    assert boxes.get_session(made.id).state == "stopped"
    assert boxes.prune_sessions() == [made.id]
    assert boxes.prune_sessions() == []
    assert not (state / made.id).exists()
    with pytest.raises(SessionUnknown):
        boxes.stop_session(made.id)


def test_prune_keeps_running_sessions(boxes: Sandboxes) -> None:
    runs, ends = (boxes.start_session(provider="off", detached=True, ttl=60) for _ in range(2))
    ends.stop()
    assert boxes.prune_sessions() == [ends.id]
    assert [info.id for info in boxes.list_sessions()] == [runs.id]
    assert runs.exec(["echo", "on"]).stdout == "on\n"
    runs.stop()


def test_dead_box_is_lost_not_stopped(boxes: Sandboxes) -> None:
    made = boxes.start_session(provider="off", detached=True, ttl=60)
    agent = made._core.connection.hello
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(SandboxLost):
        made.exec(["true"])
    assert time.monotonic() - began < SOON
    made._core.connection.close()
    wait_until(lambda: boxes.get_session(made.id).state == "lost", "the state to become lost")
    with pytest.raises(SandboxLost) as caught:
        boxes.exec_in_session(made.id, ["true"])
    assert caught.value.fix_hints
    assert boxes.stop_session(made.id).state == "stopped"
    assert boxes.prune_sessions() == [made.id]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_idle_session_ends_after_its_ttl(boxes: Sandboxes, provider: str) -> None:
    made = boxes.start_session(provider=provider, detached=True, ttl=1)
    made._core.connection.close()
    wait_until(
        lambda: boxes.get_session(made.id).state == "lost", "the end of the session, although its state is queried"
    )
    assert boxes.prune_sessions() == [made.id]


def test_sessions_are_listed_and_end_with_their_service(project: Path, state: Path) -> None:
    with Sandboxes(project_root=project, clock=ManualClock()) as boxes:
        session = boxes.start_session(provider="off")
        assert session.info.created_at == "2026-01-01T00:00:00.000000Z"
        assert [(info.id, info.detached, info.ttl) for info in boxes.list_sessions()] == [(session.id, False, None)]
        pid = int(session.exec(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"]).stdout)
        assert boxes.exec_in_session(session.id, ["echo", "by id"]).stdout == "by id\n"
    assert not alive(pid)
    assert session.info.state == "stopped"
    assert not list(state.glob("*")), "no record of it is ever on disk"
    session.stop()


hostile: list[Any] = [
    "",
    ".",
    "../x",
    "../../etc",
    "ses-../../../../x",
    "ses-" + "0" * 25,
    "ses-" + "0" * 27,
    "ses-" + "0" * 25 + "/",
    "ses-" + "0" * 25 + "\n",
    "SES-" + "0" * 26,
    "ses-" + "0" * 26,
    "x\0y",
    "ses-" + "0" * 10 + "\0" + "0" * 15,
    "\ud800",
    "x" * 10_000_000,
]


@pytest.mark.parametrize("id", hostile, ids=range(len(hostile)))
def test_invalid_id_is_unknown(boxes: Sandboxes, state: Path, id: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: boxes.get_session(id),
        lambda: boxes.stop_session(id),
        lambda: boxes.exec_in_session(id, ["true"]),
    ]
    for call in calls:
        with pytest.raises(SessionUnknown) as caught:
            call()
        assert caught.value.fix_hints
        assert len(caught.value.message) < 1000
        assert caught.value.exit_code == 2


def test_id_of_a_record_outside_the_state_directory_is_unknown(boxes: Sandboxes, state: Path, tmp_path: Path) -> None:
    made = boxes.start_session(provider="off", detached=True, ttl=60)
    other = "ses-" + "0" * 26
    (state / other).mkdir()
    (state / other / "session.json").write_bytes((state / made.id / "session.json").read_bytes())
    with pytest.raises(SessionUnknown):
        boxes.get_session(other)
    made.stop()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x00\xff garbage",
        b"null",
        b"{}",
        b'{"id": ',
        b'{"x":' + b"[" * 100_000,
        b'{"x":' + b'{"a":' * 100_000,
        "other schema",
        "no schema",
        "wrong types",
        "directory",
    ],
    ids=range(11),
)
def test_damaged_record_is_ignored(boxes: Sandboxes, state: Path, damage: bytes | str) -> None:
    good = boxes.start_session(provider="off", detached=True, ttl=60)
    bad = "ses-" + "0" * 26
    place = state / bad / "session.json"
    (state / bad).mkdir()
    document = json.loads((state / good.id / "session.json").read_bytes()) | {"id": bad}
    if isinstance(damage, bytes):
        place.write_bytes(damage)
    elif damage == "other schema":
        place.write_text(json.dumps(document | {"schema_version": "proofbox.session/99"}))
    elif damage == "no schema":
        place.write_text(json.dumps({k: v for k, v in document.items() if k != "schema_version"} | {"ttl": "x"}))
    elif damage == "wrong types":
        place.write_text(json.dumps(document | {"inside": 5}))
    else:
        place.mkdir()
    (state / "not-an-id").write_text("a stranger's file")
    assert [info.id for info in boxes.list_sessions()] == [good.id]
    with pytest.raises(VersionUnknown if damage == "other schema" else SessionUnknown):
        boxes.get_session(bad)
    assert boxes.prune_sessions() == [bad], "an unreadable record without a box is stale"
    good.stop()


def test_state_directory_with_a_long_name_works(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("long" * 30) / ("name" * 30)))
    with Sandboxes(project_root=project) as boxes:
        made = boxes.start_session(provider="off", detached=True, ttl=60)
        assert len(str(state_dir())) > 200
        assert boxes.exec_in_session(made.id, ["echo", "far"]).stdout == "far\n"
        made.stop()
        assert boxes.prune_sessions() == [made.id]


def test_state_directory_writable_by_others_is_refused(boxes: Sandboxes, state: Path) -> None:
    state.parent.chmod(0o777)
    try:
        with pytest.raises(ProofboxError) as caught:
            boxes.start_session(provider="off", detached=True, ttl=60)
        assert caught.value.fix_hints
    finally:
        state.parent.chmod(0o700)


def test_project_with_an_undecodable_name_is_refused_and_leaves_nothing(state: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(odd)
    with Sandboxes(project_root=odd) as boxes:
        began = time.monotonic()
        with pytest.raises(PathRefused) as caught:
            boxes.start_session(provider="off", detached=True, ttl=60)
        assert caught.value.fix_hints
        assert time.monotonic() - began < SOON
        assert boxes.list_sessions() == []
        assert boxes.exec(["echo", "works"], provider="off").stdout == "works\n"
    assert not state.exists() or not list(state.iterdir())


def test_stopping_a_session_used_by_many_threads(boxes: Sandboxes) -> None:
    session = boxes.start_session(provider="off")

    def work(_: int) -> str:
        try:
            while True:
                session.exec(["true"])
        except SandboxLost as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(work, number) for number in range(8)]
        for _ in range(20):
            session.exec(["true"])
        session.stop()
        assert [one.result(60) for one in waiting] == ["SANDBOX_LOST"] * 8
