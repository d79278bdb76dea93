"""Signals that reach a client and are meant for what it runs: heard here, passed on from a thread.

A handler may come in the middle of a frame that is being sent, and must not send another: it only notes the number.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
INSISTING = 3
WAKER = signal.SIGURG
WAKING = (0.01, 0.05, 0.2, 1.0)
"""A signal that means nothing, and when it is sent: once is enough, unless the call was not yet entered then either."""


@contextlib.contextmanager
def passing_on(send: Callable[[int], None]) -> Iterator[None]:
    """Pass them on to a command, by `send`. Who asks for its end the third time means us too: KeyboardInterrupt."""
    asked = 0

    def count(number: int) -> None:
        nonlocal asked
        asked += number in (signal.SIGINT, signal.SIGTERM)
        if asked >= INSISTING:
            raise KeyboardInterrupt

    with hearing(PASSED_ON, send, count):
        yield


@contextlib.contextmanager
def hearing(
    signals: Sequence[signal.Signals], act: Callable[[int], None], at_once: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Call `act` with each of these as it comes, from a thread; `at_once` before that, in the handler itself.

    One that is ignored (as by nohup) stays so. Without effect outside the main thread, which alone hears signals.
    """
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put may be called from a signal handler

    def note(number: int, _frame: FrameType | None) -> None:
        heard.put(number)
        if at_once is not None:
            at_once(number)

    def pass_on() -> None:
        while number := heard.get():
            act(number)

    thread = threading.Thread(target=pass_on, name="proofbox-signals", daemon=True)
    thread.start()
    try:
        with _handled(signals, note):
            yield
    finally:
        heard.put(0)
        thread.join()


@contextlib.contextmanager
def ending_on(signals: Sequence[signal.Signals]) -> Iterator[None]:
    """Leave the block by SystemExit when one of these comes, so that what it has changed is put back."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handled(signals, end):
        yield


@contextlib.contextmanager
def _handled(signals: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    here = threading.current_thread() is threading.main_thread()
    heard = [number for number in signals if here and signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        with _woken() if heard else contextlib.nullcontext():
            yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextlib.contextmanager
def _woken() -> Iterator[None]:
    """Every signal wakes the main thread from the call that it waits in.

    Python runs a handler when its main thread comes back from a call. One that comes right before the call is entered,
    or in another thread, interrupts nothing: it would be heard when the call ends, which may be never.
    """
    inbound, outbound = os.pipe()
    os.set_blocking(outbound, False)
    outer = signal.set_wakeup_fd(outbound, warn_on_full_buffer=False)
    if outer != -1:  # somebody sees to it already: a block around this one, or an event loop
        signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
        os.close(inbound)
        os.close(outbound)
        yield
        return
    main = threading.main_thread().ident
    over = threading.Event()

    def wake() -> None:
        while number := os.read(inbound, 1)[0]:
            for pause in WAKING if number != WAKER else ():
                if over.wait(pause):
                    break
                signal.pthread_kill(main or 0, WAKER)

    own = signal.signal(WAKER, lambda _number, _frame: None)  # one that is ignored would interrupt nothing
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
        signal.signal(WAKER, own)
        os.close(inbound)
        os.close(outbound)
