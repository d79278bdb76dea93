"""Live progress of a run on a terminal: the running attempts, their activity, and how many are done."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Self

from proofbox.cli import redirect_to_null
from proofbox.cli.output import write_json
from proofbox.cli.progress import watched
from proofbox.core.text import preview, printable
from proofbox.errors import RunInterrupted
from proofbox.lab.run.events import OnSuiteEvent, RunStarted, SuiteEvent
from proofbox.sandbox.client.signals import exiting_on

MAX_LINES = 12
MAX_ID_LENGTH = 32
MAX_NODE_LENGTH = 20


class Progress:
    """A live progress display on stderr. It accepts events from any thread and erases itself at the end."""

    def __init__(self, *, shown: bool) -> None:
        self.started: RunStarted | None = None
        self._total = self._done = self._done_before = 0
        self._passed = 0
        self._running: dict[str, tuple[float, str, str]] = {}
        self._tokens: dict[str, int] = {}
        self._waiting = ""
        self._nodes: dict[str, str] = {}
        self._placed: dict[str, str] = {}
        """The node of each running attempt, on a cluster."""
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._live: Any = None
        if shown:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=sys.stderr), refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def shown(self) -> bool:
        return self._live is not None

    def update(self, event: RunStarted | SuiteEvent) -> None:
        with self._lock:
            if isinstance(event, RunStarted):
                self.started, self._began = event, time.monotonic()
                self._total, self._done, self._done_before = event.attempts, event.ended, event.ended
            else:
                self._change(event)
            if self._live is not None:
                self._live.update(self._render())

    def _change(self, event: SuiteEvent) -> None:
        id = event.attempt_id
        since, state, _ = self._running.get(id, (time.monotonic(), "", ""))
        if event.event in ("ended", "lost"):
            self._running.pop(id, None)
            self._placed.pop(id, None)
            self._done += event.event == "ended"
            self._total = max(self._total, self._done + len(self._running))
            self._passed += event.verified == "passed"
        elif event.event == "waiting":
            self._waiting = str(event.message or "")
        elif event.event == "node":
            self._nodes[str(event.node)] = str(event.message or "").partition(":")[0]
        elif event.event == "placed":
            self._placed[id] = printable(str(event.node))
            self._running[id] = (since, event.event, "")
        elif event.event == "tokens":
            self._tokens[id] = event.tokens or 0
        elif event.event == "activity":
            self._running[id] = (since, state, event.activity or "")
        else:
            if event.event == "preparing":  # an attempt was started, so the run no longer waits
                self._waiting = ""
            self._running[id] = (since, event.event, "")  # clears the activity of the previous state

    def _render(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        elapsed = time.monotonic() - self._began
        done_now = self._done - self._done_before
        left = f", about {elapsed / done_now * (self._total - self._done):.0f} s left" if done_now else ""
        table = Table.grid(padding=(0, 2))
        spent = f", {sum(self._tokens.values())} tokens" if self._tokens else ""
        head = f"{self._done}/{self._total} done, {self._passed} passed, {elapsed:.0f} s{spent}{left}"
        table.add_row(Text(head, "bold"))
        if self._nodes:
            counts = Counter(self._nodes.values())
            table.add_row(Text("nodes: " + ", ".join(f"{count} {what}" for what, count in counts.items())))
        if self._waiting:
            table.add_row(Text(f"waiting: {printable(self._waiting)}", "yellow"))
        rows = Table.grid(padding=(0, 2))
        for no_wrap in (True, True, True, True, False):  # only the activity may be shortened
            rows.add_column(no_wrap=no_wrap)
        for id, (since, state, activity) in list(self._running.items())[:MAX_LINES]:
            shown = preview(printable(activity), 60)[0]
            took = f"{time.monotonic() - since:.0f} s"
            spent = f"{self._tokens[id]} tokens" if id in self._tokens else ""
            state += f" on {shortened(self._placed[id], MAX_NODE_LENGTH)}" if id in self._placed else ""
            doing = Text(shown, "dim", no_wrap=True, overflow="ellipsis")
            rows.add_row(Text(shortened(id)), Text(state, "cyan"), Text(took), Text(spent), doing)
        if len(self._running) > MAX_LINES:
            rows.add_row(Text(f"and {len(self._running) - MAX_LINES} more", "dim"))
        table.add_row(rows)
        return table


def shortened(id: str, length: int = MAX_ID_LENGTH) -> str:
    """Shorten an id in the middle: replicates, retries and nodes differ at the end."""
    if len(id) <= length:
        return id
    end = length // 2 - 2
    return f"{id[: length - end - 3]}...{id[-end:]}"


@contextlib.contextmanager
def following(resume_hint: Callable[[RunStarted], str], op: str, *, json: bool, jsonl: bool) -> Generator[OnSuiteEvent]:
    """Show the progress of a run or a campaign that the body conducts, or print its events with `jsonl`.

    Yields the function for its events. If their reader exits, the body ends early. Unlike for a list, the work is not
    done then, but it can be resumed, so this is not an error here.
    """
    with Progress(shown=watched(as_json=json or jsonl)) as progress:

        def handle_event(event: RunStarted | SuiteEvent) -> None:
            if jsonl and isinstance(event, SuiteEvent):
                write_json(event)
            progress.update(event)
            if not isinstance(event, SuiteEvent) or jsonl or progress.shown:
                return
            if event.event in ("waiting", "node"):
                what = f"node {event.node}" if event.event == "node" else "waiting"
                print(printable(f"{what}: {event.message}"), file=sys.stderr)

        try:
            with exiting_on((signal.SIGTERM, signal.SIGHUP)):  # so that no workers or files are left behind
                yield handle_event
        except (KeyboardInterrupt, SystemExit, OSError) as error:  # OSError: the events cannot be written
            progress.close()
            if progress.started is None:
                raise
            hint = resume_hint(progress.started)
            with contextlib.suppress(OSError):
                print(f"interrupted; {hint}", file=sys.stderr)
            if json and isinstance(error, KeyboardInterrupt):
                raise RunInterrupted(f"the {op} was interrupted", op=op, fix_hints=[hint]) from None
            if not isinstance(error, BrokenPipeError):
                raise
            redirect_to_null(1)
