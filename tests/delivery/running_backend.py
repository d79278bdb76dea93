"""A backend in a separate process, and command lines that use it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from proofbox.cli import main
from proofbox.delivery.client.settings import BackendSettings, Retries, Timeouts

DYING = Path(__file__).with_name("dying_backend.py")
KEY = "k3y-Zq7+never/shown=9f1b"


class Backend:
    """A backend process for one data directory; it can be killed and restarted at the same URL."""

    def __init__(self, data: Path, **faults: Any) -> None:
        self.data = data
        self.port = 0
        self.faults = faults
        """Options for dying_backend.py; without any, an ordinary backend."""
        self.url = ""
        self.deaths = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        program = [str(DYING), json.dumps(self.faults)] if self.faults else ["-m", "proofbox"]
        words = ["backend", "serve", "--json", "--data", str(self.data), "--port", str(self.port)]
        self._process = subprocess.Popen(
            [sys.executable, *program, *words],
            env={**os.environ, "INTERNAL_API_KEY": KEY},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line and "die_at" in self.faults:
            self.revive()
            return
        assert line, "the backend did not start"
        self.url = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            if self._process.stdout:
                self._process.stdout.close()
            self._process = None

    def keep_alive(self, until: threading.Event) -> None:
        """Restart the backend whenever it dies, without the fault that killed it."""
        while not until.wait(0.01):
            if not self.alive:
                self.revive()

    def revive(self) -> None:
        self.kill()
        self.faults = {name: value for name, value in self.faults.items() if name != "die_at"}
        self.deaths += 1
        self.start()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None


@contextmanager
def backend(data: Path, **options: Any) -> Iterator[Backend]:
    running = Backend(data, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()


def settings(url: str, *, total: float = 200.0) -> BackendSettings:
    retries = Retries(attempts=400, wait_initial=0.02, wait_max=0.2, wait_jitter=0.01)
    return BackendSettings.of(KEY, url, timeouts=Timeouts(connect=30, read=60, total=total), retries=retries)


def deliver(url: str, *words: object, expect: int = 0) -> dict[str, Any]:
    """Run `proofbox deliver … --json` and return its document."""
    code, stdout, stderr = here("deliver", *words, "--json", url=url)
    assert code == expect, (code, stdout, stderr)
    assert KEY not in stdout + stderr
    document: dict[str, Any] = json.loads(stdout)
    assert document["ok"] is (expect == 0)
    return document


def here(*words: object, url: str) -> tuple[int, str, str]:
    """Run a command line in this process, for speed, and return exit code, stdout and stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    environment = {"INTERNAL_API_KEY": KEY, "MOZAIKS_BACKEND_URL": url}
    with patch.dict(os.environ, environment), redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, words)])
        out.flush()
        err.flush()
    stdout, stderr = (stream.buffer.getvalue().decode() for stream in (out, err))
    return code, stdout, stderr


def run(*words: object, url: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a new process."""
    argv = [sys.executable, "-m", "proofbox", *map(str, words)]
    env = {**os.environ, "INTERNAL_API_KEY": KEY, "MOZAIKS_BACKEND_URL": url}
    return subprocess.run(argv, env=env, capture_output=True, text=True)


def clone(repo_url: str, place: Path, branch: str = "main") -> Path:
    """Clone over HTTP. The key is passed in the environment and sent as a header."""
    env = {
        **os.environ,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.extraHeader",
        "GIT_CONFIG_VALUE_0": f"X-Internal-Api-Key: {KEY}",
        "GIT_TERMINAL_PROMPT": "0",
    }
    done = subprocess.run(
        ["git", "clone", "--quiet", "--branch", branch, repo_url, str(place)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return place


def git(place: Path, *words: str) -> str:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.com"]
    done = subprocess.run(["git", *identity, *words], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bare(data: Path) -> list[Path]:
    return sorted((data / "repos").glob("*.git"))


def tree_of(place: Path) -> dict[str, tuple[str, bytes]]:
    """Return every file of a working directory with its Git mode and content."""
    found = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if name.split("/")[0] == ".git" or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            found[name] = ("120000", os.readlink(path).encode())
        else:
            found[name] = ("100755" if path.stat().st_mode & 0o100 else "100644", path.read_bytes())
    return found
