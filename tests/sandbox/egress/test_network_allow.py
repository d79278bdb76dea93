"""`--network allow:…` in a real box: only the listed endpoints are reachable."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from proofbox import Sandboxes
from proofbox.core.dirs import state_dir
from proofbox.errors import PolicyRefused
from proofbox.sandbox.contract import Door, Event

# Sends HTTP requests without curl or any proxy-aware program, which a box may lack: with bash if the box has it, else
# with python3.
FETCH = """
import socket, sys
host, port, line = sys.argv[1], int(sys.argv[2]), sys.argv[3]
try:
    with socket.create_connection((host, port), 60) as s:
        s.sendall(line.encode().decode("unicode_escape").encode())
        data = b""
        while piece := s.recv(65536):
            data += piece
    print(data.decode())
except OSError as error:
    print("failed", error)
"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"found")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.needs("bubblewrap")
def test_box_reaches_only_listed_endpoints(tmp_path: Path, port: int) -> None:
    events: list[Event] = []
    request = r"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with Sandboxes(tmp_path, on_event=events.append) as boxes:
        with boxes.start_session(provider="bubblewrap", network=f"allow:127.0.0.1:{port},example.org") as session:

            def fetch(host: str, at: int, line: str) -> str:
                return session.exec(["python3", "-c", FETCH, host, str(at), line], timeout=60).stdout

            if session.exec(["sh", "-c", "command -v python3"]).exit_code:
                pytest.skip("the box has no python3")
            assert "found" in fetch("127.0.0.1", port, request)
            assert "found" in fetch("127.0.0.1", 3128, request.replace("GET /", f"GET http://127.0.0.1:{port}/"))
            denied = fetch("127.0.0.1", 3128, request.replace("GET /", "GET http://other.example/"))
            assert "403 Forbidden" in denied
            assert "failed" in fetch("127.0.0.1", 1 if port != 1 else 2, request)
            assert "3128" in session.exec(["sh", "-c", "echo $HTTPS_PROXY"]).stdout
            assert session.exec(["true"]).policy.allow == (f"127.0.0.1:{port}", "example.org")
        seen = [(event.phase, event.detail["host"]) for event in events if event.kind == "network"]
        assert ("denied", "other.example") in seen
        assert ("allowed", "127.0.0.1") in seen
        finished = [event.detail for event in events if event.kind == "network" and event.phase == "finished"]
        assert finished
        assert all(isinstance(each["bytes_in"], int) for each in finished)
    assert not list(state_dir().glob("scratch-*"))


@pytest.mark.parametrize("network", [f"allow:localhost:{port}" for port in (80, 3128)])
@pytest.mark.needs("bubblewrap")
def test_endpoints_that_cannot_appear_in_a_box_are_refused(tmp_path: Path, network: str) -> None:
    with Sandboxes(tmp_path) as boxes, pytest.raises(PolicyRefused, match="can't be used in a box"):
        boxes.exec(["true"], provider="bubblewrap", network=network)
    with Sandboxes(tmp_path) as boxes, pytest.raises(PolicyRefused, match="can't be used in a box"):
        boxes.start_session(provider="bubblewrap", network=network, detached=True)


HOARD = """
import socket, time
held = [socket.create_connection(("127.0.0.1", 4000), 60) for _ in range(40)]
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.needs("bubblewrap")
def test_command_that_uses_every_connection_does_not_block_others(tmp_path: Path) -> None:
    """If the listener behind a door accepts no connections, like an overloaded proxy, the agent does not block."""
    (tmp_path / "project").mkdir()
    with Sandboxes(tmp_path / "project") as boxes, socket.socket(socket.AF_UNIX) as full, ThreadPoolExecutor(1) as pool:
        full.bind(str(tmp_path / "door"))
        (tmp_path / "door").chmod(0o666)
        full.listen(1)
        with boxes.start_session(provider="bubblewrap", doors=[Door(4000, tmp_path / "door")]) as session:
            if session.exec(["sh", "-c", "command -v python3"]).exit_code:
                pytest.skip("the box has no python3")
            up = threading.Event()
            pool.submit(session.exec, ["python3", "-c", HOARD], on_output=lambda _: up.set())
            for _ in range(100):
                assert session.exec(["true"], timeout=20).exit_code == 0
                if up.is_set():
                    break
                up.wait(1)
            assert up.is_set()
            assert session.exec(["true"], timeout=20).exit_code == 0


START = """
import sys; from proofbox import Sandboxes
project, network = sys.argv[1:]
session = Sandboxes(project).start_session(provider="bubblewrap", network=network, detached=True)
print(session.id); session.detach()
"""


def proxies() -> list[int]:
    """Return the proxies of this test run's detached sessions."""
    mine = os.environ["XDG_STATE_HOME"].encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"detached_proxy" in (entry / "cmdline").read_bytes() and mine in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def wait_until_no_proxies() -> None:
    deadline = time.monotonic() + 60
    while proxies() or any(state_dir().glob("scratch-*")):
        assert time.monotonic() < deadline, proxies()
        time.sleep(0.02)


@pytest.mark.needs("bubblewrap")
def test_detached_session_keeps_only_its_allowed_endpoints(tmp_path: Path, port: int) -> None:
    words = [sys.executable, "-c", START, str(tmp_path), f"allow:127.0.0.1:{port}"]
    id = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    request = r"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with Sandboxes(tmp_path) as boxes:

        def fetch(line: str, at: int = 3128) -> str:
            return boxes.exec_in_session(id, ["python3", "-c", FETCH, "127.0.0.1", str(at), line], timeout=60).stdout

        assert "found" in fetch(request, port)
        assert "found" in fetch(request.replace("GET /", f"GET http://127.0.0.1:{port}/"))
        assert "403 Forbidden" in fetch(request.replace("GET /", "GET http://other.example/"))
        log = (state_dir() / "sessions" / id / "network.jsonl").read_text()
        assert '"denied"' in log
        assert "other.example" in log
        boxes.stop_session(id)
        wait_until_no_proxies()
        assert id in boxes.prune_sessions()


@pytest.mark.needs("bubblewrap")
def test_killed_proxy_closes_the_network_and_proxy_ends_with_its_box(tmp_path: Path, port: int) -> None:
    with Sandboxes(tmp_path) as boxes:
        session = boxes.start_session(provider="bubblewrap", network=f"allow:127.0.0.1:{port}", detached=True, ttl=1)
        [proxy] = proxies()
        os.kill(proxy, signal.SIGKILL)
        request = r"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        result = session.exec(["python3", "-c", FETCH, "127.0.0.1", str(port), request], timeout=60)
        assert "found" not in result.stdout
        session.stop()
        boxes.prune_sessions()
        wait_until_no_proxies()
        boxes.start_session(provider="bubblewrap", network=f"allow:127.0.0.1:{port}", detached=True, ttl=1).detach()
        wait_until_no_proxies()  # when its TTL expires
        boxes.prune_sessions()


def test_allowlist_without_a_box_is_refused(tmp_path: Path) -> None:
    with Sandboxes(tmp_path) as boxes:
        with pytest.raises(PolicyRefused, match="network allow"):
            boxes.exec(["true"], provider="off", network="allow:example.org")
        with pytest.raises(PolicyRefused, match="network allow"):
            boxes.start_session(provider="off", network="allow:example.org", detached=True)
    assert not list(state_dir().glob("scratch-*"))
