"""The process that measures: one made for it, or this one.

A clean process has a scrubbed environment, its own session, default signals and no inherited descriptors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from proofbox.config.settings import load
from proofbox.core.interpreter import module_child
from proofbox.errors import ProbeDriverFailed, ProofboxError
from proofbox.probes.channel import KEPT, ChannelCheck, observe_channel
from proofbox.probes.measuring import MeasuredPlan, Progress, measure
from proofbox.sandbox.probing.plan import ProbePlan

MEASURE_SECONDS: Final = 600.0
END_SECONDS: Final = 20.0


class MeasureRequest(msgspec.Struct, frozen=True):
    """What to measure."""

    plan: ProbePlan
    provider: str | None
    adapter: str | None


class LaneBegun(msgspec.Struct, frozen=True, tag=True):
    """A line of the clean process: a lane begins."""

    name: str
    number: int
    total: int


class AllMeasured(msgspec.Struct, frozen=True, tag=True):
    """The last line of the clean process."""

    measured: MeasuredPlan


def measure_here(request: MeasureRequest, progress: Progress) -> MeasuredPlan:
    return _measure(request, observe_channel(), progress)


def measure_clean(request: MeasureRequest, progress: Progress) -> MeasuredPlan:
    """Measure from a process made for it."""
    child = module_child(
        "proofbox.probes.measuring_process", env={name: os.environ[name] for name in KEPT if name in os.environ}
    )
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            child.argv,
            cwd=child.cwd,
            env=child.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            restore_signals=True,
            close_fds=True,
        )
        with process, _time_limit(process) as late:
            measured = _exchange(process, msgspec.json.encode(request), progress)
        if late.is_set():
            raise ProbeDriverFailed(f"the measurement did not end within {MEASURE_SECONDS:g} s", op="plan run")
        if process.returncode or measured is None:
            errors.seek(0)
            shown = errors.read().decode("utf-8", "replace").strip()[-1000:]
            raise ProbeDriverFailed(f"the measuring process failed: {shown}", op="plan run")
    return measured


def _exchange(process: subprocess.Popen[bytes], request: bytes, progress: Progress) -> MeasuredPlan | None:
    """Send the request, report progress, and return the result; None if the process ended without one."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 (both are pipes)
    with contextlib.suppress(BrokenPipeError), process.stdin as requests:
        requests.write(request)
    for line in process.stdout:
        message = msgspec.json.decode(line, type=LaneBegun | AllMeasured)
        if isinstance(message, AllMeasured):
            return message.measured
        progress(message.name, message.number, message.total)
    return None


@contextlib.contextmanager
def _time_limit(process: subprocess.Popen[bytes]) -> Iterator[threading.Event]:
    """End the process when the block raises or takes too long; the event is set if it took too long."""
    late = threading.Event()

    def end_late() -> None:
        late.set()
        _end(process)

    timer = threading.Timer(MEASURE_SECONDS, end_late)
    timer.start()
    try:
        yield late
        process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        timer.cancel()
        timer.join()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate the measuring process, which removes its decoys and boxes; kill it if that takes too long."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _measure(request: MeasureRequest, channel: ChannelCheck, progress: Progress) -> MeasuredPlan:
    return measure(
        request.plan,
        provider=request.provider,
        adapter=request.adapter,
        settings=load(Path("/")),
        channel=channel,
        progress=progress,
    )


def _main() -> int:
    """Measure what the parent asks for on stdin, and write progress and the result to stdout."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # the interpreter's own
        signal.signal(number, signal.SIG_DFL)
    channel = observe_channel()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a sandbox that ends early must not end this process
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=MeasureRequest)
    try:
        measured = _measure(request, channel, lambda *lane: _say(LaneBegun(*lane)))
    except ProofboxError as error:
        print(error.message, file=sys.stderr)
        return 1
    _say(AllMeasured(measured))
    return 0


def _say(message: LaneBegun | AllMeasured) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    raise SystemExit(_main())
