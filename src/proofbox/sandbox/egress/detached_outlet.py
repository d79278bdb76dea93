"""The way out of a box that outlives its client: the same proxy, in a process of its own that ends with the box.

The process holds a connection to the session's agent on which it never says anything (the agent does not count that as
use): when it breaks, the box is gone. If the process is killed first, the box has no way out any more. Decisions are
written to `network.jsonl` beside the session's record, since there is no caller to be told.

The process runs this module (`core.interpreter`). It reads its task from stdin and prints the box's settings to stdout.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from proofbox.core.interpreter import module_child
from proofbox.errors import ProofboxError, StartFailed
from proofbox.sandbox.contract import Event, Forward
from proofbox.sandbox.egress.outlet import Outlet, usable_rules
from proofbox.sandbox.host.released import let_go
from proofbox.sandbox.host.unix_sockets import connect_at

UP_PATIENCE = 30.0
LOG_LIMIT = 16 << 20


class _Wish(msgspec.Struct, frozen=True):
    rules: tuple[str, ...]
    name: str
    session: str
    """The directory its agent listens in."""
    log: str


class _Answer(msgspec.Struct, frozen=True):
    directory: str
    forwards: tuple[Forward, ...]
    environment: dict[str, str]


class DetachedOutlet:
    """What `Outlet` is to a box that ends with its client. `close` ends the process; `release` lets it go on."""

    def __init__(self, rules: tuple[str, ...], *, name: str, session: Path, log: Path) -> None:
        usable_rules(rules)  # what is wrong with them is said here, not by a process that ends
        child = module_child("proofbox.sandbox.egress.detached_outlet")
        self._process = subprocess.Popen(
            child.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=child.cwd,
            env=child.env,
            start_new_session=True,
        )
        wish = msgspec.json.encode(_Wish(rules, name, str(session), str(log)))
        try:
            answer = msgspec.json.decode(self._say(wish), type=_Answer)
        except (OSError, msgspec.MsgspecError) as error:
            self.close()
            raise StartFailed(f"the allowlist's proxy did not start: {error}", op="start") from None
        self.directory = Path(answer.directory)
        self.forwards = answer.forwards
        self.environment = answer.environment

    def release(self) -> None:
        """The box is up: from now on the process watches it, and nobody else the process."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is not None and stdout is not None:
            stdin.write(b"go\n")
            stdin.close()
            stdout.close()
        let_go(self._process)

    def close(self) -> None:
        """End it, unless it was released. May be repeated."""
        if self._process.returncode is None:
            self._process.terminate()
            self._process.communicate()

    def _say(self, wish: bytes) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return b""
        stdin.write(wish + b"\n")
        stdin.flush()
        return stdout.readline()


def main() -> int:
    wish = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Wish)
    log = Path(wish.log)

    def note(event: Event) -> None:
        line = msgspec.json.encode({"phase": event.phase, **event.detail}) + b"\n"
        try:
            if not log.exists() or log.stat().st_size < LOG_LIMIT:
                with log.open("ab") as file:
                    file.write(line)
        except OSError:  # the session was forgotten, or the disk is full: not this box's fault
            pass

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    outlet = Outlet(wish.rules, name=wish.name, on_event=note)
    try:
        answer = _Answer(str(outlet.directory), outlet.forwards, dict(outlet.environment))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
        if sys.stdin.buffer.readline():  # empty: the client died before the box was up
            _watch(Path(wish.session))
    finally:
        outlet.close()
    return 0


def _watch(session: Path) -> None:
    """Return when the box is gone."""
    deadline = time.monotonic() + UP_PATIENCE
    while True:
        try:
            stream = connect_at(session)
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
            continue
        with stream:
            stream.recv(1)
        return


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ProofboxError, msgspec.MsgspecError) as error:
        sys.exit(str(error))
