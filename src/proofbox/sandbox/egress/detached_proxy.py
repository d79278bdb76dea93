"""The network access of a box that outlives its client: the proxy in a separate process that ends with the box.

The process holds an idle connection to the session's agent (the agent does not count it as use). When the connection
breaks, the box has ended. If the process is killed first, the box loses its network. Decisions are written to
`network.jsonl` in the session's directory, since no client is there to receive them.

The process runs this module (`core.interpreter`). It reads its configuration from stdin and prints the box's settings
to stdout.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from proofbox.errors import ProofboxError, StartFailed
from proofbox.sandbox.contract import Event, Forward
from proofbox.sandbox.egress.box_proxy import BoxProxy, usable_rules
from proofbox.sandbox.host.reaping import reap_later
from proofbox.sandbox.host.unix_sockets import connect_at

UP_TIMEOUT = 30.0
LOG_LIMIT = 16 << 20


class _ProxyConfig(msgspec.Struct, frozen=True):
    rules: tuple[str, ...]
    name: str
    session: str
    """The directory of its agent's socket."""
    log: str


class _BoxSettings(msgspec.Struct, frozen=True):
    directory: str
    forwards: tuple[Forward, ...]
    environment: dict[str, str]


class DetachedProxy:
    """A `BoxProxy` in another process. `close` ends the process; `release` leaves it running."""

    def __init__(self, rules: tuple[str, ...], *, name: str, session: Path, log: Path) -> None:
        from proofbox.core.interpreter import module_child

        usable_rules(rules)  # report invalid rules here, since the process can't
        child = module_child("proofbox.sandbox.egress.detached_proxy")
        self._process = subprocess.Popen(
            child.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=child.cwd,
            env=child.env,
            start_new_session=True,
        )
        config = msgspec.json.encode(_ProxyConfig(rules, name, str(session), str(log)))
        try:
            settings = msgspec.json.decode(self._configure(config), type=_BoxSettings)
        except (OSError, msgspec.MsgspecError) as error:
            self.close()
            raise StartFailed(f"the allowlist's proxy did not start: {error}", op="start") from None
        self.directory = Path(settings.directory)
        self.forwards = settings.forwards
        self.environment = settings.environment

    def release(self) -> None:
        """Leave the process running: the box is up, and the process now watches it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is not None and stdout is not None:
            stdin.write(b"go\n")
            stdin.close()
            stdout.close()
        reap_later(self._process)

    def close(self) -> None:
        """End the process, unless it was released. Idempotent."""
        if self._process.returncode is None:
            self._process.terminate()
            self._process.communicate()

    def _configure(self, config: bytes) -> bytes:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return b""
        stdin.write(config + b"\n")
        stdin.flush()
        return stdout.readline()


def main() -> int:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=_ProxyConfig)
    log = Path(config.log)

    def note(event: Event) -> None:
        line = msgspec.json.encode({"phase": event.phase, **event.detail}) + b"\n"
        try:
            if not log.exists() or log.stat().st_size < LOG_LIMIT:
                with log.open("ab") as file:
                    file.write(line)
        except OSError:  # the session was pruned, or the disk is full
            pass

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    proxy = BoxProxy(config.rules, name=config.name, on_event=note)
    try:
        settings = _BoxSettings(str(proxy.directory), proxy.forwards, dict(proxy.environment))
        sys.stdout.buffer.write(msgspec.json.encode(settings) + b"\n")
        sys.stdout.buffer.flush()
        if sys.stdin.buffer.readline():  # empty: the client died before the box was up
            _watch(Path(config.session))
    finally:
        proxy.close()
    return 0


def _watch(session: Path) -> None:
    """Return when the box has ended."""
    deadline = time.monotonic() + UP_TIMEOUT
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
