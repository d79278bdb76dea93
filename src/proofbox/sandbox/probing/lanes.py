"""The lanes of a measurement: the driver in a box, the driver without one, and what is seen from outside."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from proofbox.errors import ProbeDriverFailed, SandboxLost
from proofbox.sandbox.contract import Output
from proofbox.sandbox.probing.decoys import DRIVER, Decoys, new_decoys
from proofbox.sandbox.probing.operations import LOST, READS, SELF_STATUS, Answer, Oracle, skipped
from proofbox.sandbox.probing.plan import Probe
from proofbox.sandbox.service import Session

PROBE_SECONDS: Final = 15.0  # a walk through /sys takes a second on an idle machine
START_SECONDS: Final = 60.0
MAX_OUTPUT: Final = 8 << 20
MAX_FAILURES: Final = 3
"""Runs of the driver without any answer after which the rest is given up."""

Run = Callable[[bytes, float], tuple[bytes, str]]
"""Runs the driver with requests as its input, within some seconds; returns its output, and why there is no more."""


class Observation(msgspec.Struct, frozen=True):
    """One probe in one lane: the driver's answer and what was seen from outside."""

    probe: str
    args: tuple[str, ...]
    answer: Answer | None
    oracle: Oracle | None
    secret: str = ""
    problem: str = ""
    """Why there is no answer."""


class LaneResult(msgspec.Struct, frozen=True):
    """One profile in one lane."""

    profile: str
    observations: tuple[Observation, ...]
    status: str = ""
    """The driver's own status lines: seccomp mode, capabilities and the like."""
    provider: str = ""
    isolation: str = ""
    policy: Mapping[str, object] = {}
    problem: str = ""
    """Why the profile could not be applied."""
    driver_intact: bool = True


class BoxedDriver:
    """Runs the driver in a box, and in a new one after a box was lost."""

    def __init__(self, start: Callable[[], Session]) -> None:
        self._start = start
        self._session: Session | None = None
        self.provider = self.isolation = ""
        self.policy: Mapping[str, object] = {}

    def run(self, requests: bytes, seconds: float) -> tuple[bytes, str]:
        if self._session is None:
            self._session = self._start()
        inside = self._session.inside
        self.provider, self.isolation = inside.provider, inside.isolation.value
        self.policy = msgspec.to_builtins(inside.policy, enc_hook=str)
        driver = [f"{inside.guest_project}/{DRIVER}", str(PROBE_SECONDS)]
        output: list[bytes] = []

        def keep(piece: Output) -> None:
            if piece.stream == "stdout":
                output.append(piece.data)

        try:
            self._session.exec(driver, stdin=requests, timeout=seconds, max_output=MAX_OUTPUT, on_output=keep)
        except SandboxLost as error:
            self._session = None
            return b"".join(output), f"{LOST}: {error.message}"
        return b"".join(output), "the driver ended before it answered"


def observe(probes: Sequence[Probe], decoys: Decoys, run: Run, profile: str) -> LaneResult:
    """Run the driver with all probes. If it is lost on the way, continue after the probe at which it was lost."""
    arguments = {probe.id: decoys.arguments(probe) for probe in probes}
    answers: dict[str, Answer] = {}
    lost: dict[str, str] = {}
    lines = {SELF_STATUS: _line(SELF_STATUS, SELF_STATUS, ())}
    lines |= {probe.id: _line(probe.id, probe.operation, arguments[probe.id]) for probe in probes}
    waiting, failures, problem = list(lines), 0, ""
    while waiting and failures < MAX_FAILURES:
        requests = "".join(lines[each] for each in waiting).encode()
        output, problem = run(requests, START_SECONDS + PROBE_SECONDS * len(waiting))
        found = parse_answers(output, set(waiting))
        answers |= found
        waiting = [each for each in waiting if each not in found]
        failures = 0 if found else failures + 1
        if waiting:
            lost[waiting.pop(0)] = problem  # the driver was at this one
    lost |= dict.fromkeys(waiting, f"the driver gave no answers: {problem}")
    observations = tuple(
        Observation(
            probe=probe.id,
            args=tuple(arguments[probe.id]),
            answer=_without_content(probe, answers.get(probe.id), decoys),
            oracle=decoys.seen(probe, answers.get(probe.id)),
            secret=decoys.knows(probe),
            problem=lost.get(probe.id, ""),
        )
        for probe in probes
    )
    status = answers.get(SELF_STATUS)
    return LaneResult(profile, observations, status.value if status else "", driver_intact=decoys.driver_intact())


def _without_content(probe: Probe, answer: Answer | None, decoys: Decoys) -> Answer | None:
    """Drop what was read of files and variables that are not decoys: the host's own content is not evidence."""
    if answer is None or probe.operation not in (*READS, "env-read") or decoys.knows(probe):
        return answer
    return msgspec.structs.replace(answer, value="")


def parse_answers(output: bytes, asked: set[str]) -> dict[str, Answer]:
    """Return the answers in a driver's output. Lines that answer no request, or answer one again, are ignored."""
    found: dict[str, Answer] = {}
    for line in output.splitlines():
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if answer.id in asked:
            found.setdefault(answer.id, answer)
    return found


def _line(id: str, operation: str, args: Sequence[str]) -> str:
    return "\t".join((id, operation, *args)) + "\n"


def run_on_host(argv: Sequence[str], decoys: Decoys, requests: bytes, seconds: float) -> tuple[bytes, str]:
    """Run the driver on this host, or in a foreign sandbox, and kill all of its processes if it takes too long."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=decoys.project,
            start_new_session=True,
        )
    except OSError as error:
        raise ProbeDriverFailed(f"{argv[0]} did not start: {error.strerror}", op="plan run") from None
    with process:
        try:
            output, errors, problem = _exchange(process, requests, time.monotonic() + seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    shown = " ".join(errors.decode("utf-8", "replace").split())[-300:]
    return output, problem or f"{argv[0]} exited {process.returncode}" + (f": {shown}" if shown else "")


def _exchange(process: subprocess.Popen[bytes], requests: bytes, deadline: float) -> tuple[bytes, bytes, str]:
    """Give the process its input and return its output and errors, and why they are not complete."""
    kept = {process.stdout: b"", process.stderr: b""}
    with selectors.DefaultSelector() as ready:
        for stream, event in ((process.stdin, selectors.EVENT_WRITE), *((each, selectors.EVENT_READ) for each in kept)):
            assert stream is not None  # noqa: S101 (all three are pipes)
            os.set_blocking(stream.fileno(), False)
            ready.register(stream, event)
        problem = ""
        while ready.get_map() and not problem:
            found = ready.select(deadline - time.monotonic())
            if not found:
                problem = "the driver did not end in time"
            for key, _ in found:
                if key.fileobj is process.stdin:
                    with contextlib.suppress(BrokenPipeError):
                        requests = requests[os.write(key.fd, requests[:4096]) :]
                        if requests:
                            continue
                    data = b""
                else:
                    data = os.read(key.fd, 1 << 16)
                if data:
                    kept[key.fileobj] += data  # type: ignore[index]
                    if len(kept[key.fileobj]) > MAX_OUTPUT:  # type: ignore[index]
                        problem = "too much output"
                else:
                    ready.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
        if not problem:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    return kept[process.stdout][:MAX_OUTPUT], kept[process.stderr][:MAX_OUTPUT], problem


def baseline(probes: Sequence[Probe]) -> LaneResult:
    """Run the probes that have a baseline on this host, without a sandbox."""
    with new_decoys() as decoys:
        wanted = [probe for probe in probes if not skipped(probe)]
        return observe(wanted, decoys, partial(run_on_host, driver_command(decoys), decoys), "baseline")


def driver_command(decoys: Decoys) -> list[str]:
    """Return the command line that runs the driver on this host."""
    return [str(decoys.driver), str(PROBE_SECONDS)]
