"""Forward the client's signals to the command that it runs.

A signal handler may interrupt the sending of a frame, and must not send another: it only queues the signal's number,
and a thread forwards it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
MAX_REQUESTS = 3
WAKE_SIGNAL = signal.SIGURG
WAKE_DELAYS = (0.01, 0.05, 0.2, 1.0)
"""A signal without effect, and the delays before it is sent. It is repeated in case the call was not yet entered."""


@contextlib.contextmanager
def forwarding_signals(send: Callable[[int], None]) -> Iterator[None]:
    """Pass signals on to a command with `send`. The third SIGINT or SIGTERM also raises KeyboardInterrupt here."""
    requests = 0

    def count(number: int) -> None:
        nonlocal requests
        requests += number in (signal.SIGINT, signal.SIGTERM)
        if requests >= MAX_REQUESTS:
            raise KeyboardInterrupt

    with handling_signals(FORWARDED, send, count):
        yield


@contextlib.contextmanager
def handling_signals(
    signals: Sequence[signal.Signals], act: Callable[[int], None], at_once: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Call `act` with each of these signals, from a thread; before that, call `at_once` in the handler itself.

    A signal that is ignored (as by nohup) stays ignored. Without effect outside the main thread, which alone receives
    signals.
    """
    received: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put may be called from a signal handler

    def note(number: int, _frame: FrameType | None) -> None:
        received.put(number)
        if at_once is not None:
            at_once(number)

    def pass_on() -> None:
        while number := received.get():
            act(number)

    thread = threading.Thread(target=pass_on, name="proofbox-signals", daemon=True)
    thread.start()
    try:
        with _handled(signals, note):
            yield
    finally:
        received.put(0)
        thread.join()


@contextlib.contextmanager
def exiting_on(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Leave the block with SystemExit on one of these signals, so that its cleanup runs."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handled(signals, end):
        yield


@contextlib.contextmanager
def _handled(signals: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    in_main_thread = threading.current_thread() is threading.main_thread()
    handled = [number for number in signals if in_main_thread and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        with interrupting_waits() if handled else contextlib.nullcontext():
            yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextlib.contextmanager
def interrupting_waits() -> Iterator[None]:
    """Make every signal interrupt the call that the main thread waits in. Without effect in another thread.

    Python runs a handler when its main thread returns from a call. A signal that arrives right before the call, or in
    another thread, interrupts nothing: its handler would run when the call ends, which may be never.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inbound, outbound = os.pipe()
    os.set_blocking(outbound, False)
    outer = signal.set_wakeup_fd(outbound, warn_on_full_buffer=False)
    if outer != -1:  # an outer block or an event loop already does this
        signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
        os.close(inbound)
        os.close(outbound)
        yield
        return
    main = threading.main_thread().ident
    over = threading.Event()

    def wake() -> None:
        while number := os.read(inbound, 1)[0]:
            for pause in WAKE_DELAYS if number != WAKE_SIGNAL else ():
                if over.wait(pause):
                    break
                signal.pthread_kill(main or 0, WAKE_SIGNAL)

    own = signal.signal(WAKE_SIGNAL, lambda _number, _frame: None)  # an ignored signal would not interrupt a call
    thread = threading.Thread(target=wake, name="proofbox-waking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(-1)
        os.set_blocking(outbound, True)
        os.write(outbound, b"\0")
        thread.join()
        signal.signal(WAKE_SIGNAL, own)
        os.close(inbound)
        os.close(outbound)
