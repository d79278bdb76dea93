"""The lanes of a measurement: the driver in the sandbox, the driver without one, and what is seen from outside."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from proofbox.config.settings import Settings
from proofbox.errors import ProbeDriverFailed, ProofboxError, SandboxLost
from proofbox.probes.channel import ChannelCheck
from proofbox.probes.decoys import DRIVER, ENVIRONMENT_VARIABLE, Decoys
from proofbox.probes.leftovers import PREFIX, decoy_directory
from proofbox.probes.operations import LOST, SELF_STATUS, Answer, Oracle, skipped
from proofbox.probes.plan import Plan, Probe, Profile
from proofbox.sandbox.contract import Mount, Output
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.options import PolicyOptions
from proofbox.sandbox.service import Sandboxes, Session

PROBE_SECONDS: Final = 5.0
START_SECONDS: Final = 60.0
MAX_OUTPUT: Final = 8 << 20
MAX_FAILURES: Final = 3
"""Runs of the driver without any answer after which the rest is given up."""

Progress = Callable[[str, int, int], None]
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


class Measured(msgspec.Struct, frozen=True):
    """All lanes of a run."""

    driver_sha256: str
    channel: ChannelCheck
    """How the measuring process was started."""
    self_status: str
    """What the driver measured of its process outside any sandbox."""
    scenario: tuple[LaneResult, ...]
    baseline: LaneResult


def measure(
    plan: Plan,
    *,
    provider: str | None,
    adapter: str | None,
    settings: Settings,
    channel: ChannelCheck,
    progress: Progress | None = None,
) -> Measured:
    """Run every probe of the plan in its profiles, and once without a sandbox."""
    driver = program("boxprobe")
    sha256 = hashlib.sha256(driver.read_bytes()).hexdigest()
    lanes = []
    for number, profile in enumerate(plan.profile):
        if progress is not None:
            progress(profile.id, number, len(plan.profile) + 1)
        with _decoys(driver) as decoys, _variable(decoys):
            lanes.append(_scenario(plan, profile, decoys, provider or profile.provider, adapter, settings, sha256))
    if progress is not None:
        progress("baseline", len(plan.profile), len(plan.profile) + 1)
    with _decoys(driver) as decoys, _variable(decoys):
        wanted = [probe for probe in plan.probe if not skipped(probe)]
        baseline = _observe(
            wanted, decoys, partial(_run, [str(decoys.driver), str(PROBE_SECONDS)], decoys), "baseline", sha256
        )
    return Measured(sha256, channel, baseline.status, tuple(lanes), baseline)


def _scenario(
    plan: Plan,
    profile: Profile,
    decoys: Decoys,
    provider: str | None,
    adapter: str | None,
    settings: Settings,
    sha256: str,
) -> LaneResult:
    probes = plan.probes_of(profile.id)
    if adapter is not None:
        found = _observe(probes, decoys, partial(_run, adapted(adapter, decoys), decoys), profile.id, sha256)
        return msgspec.structs.replace(found, provider=adapter, isolation="foreign")
    shared = Mount(decoys.mounted, str(decoys.mounted), writable=profile.mount == "rw")
    with Sandboxes(decoys.project, settings=settings) as boxes:
        policy: PolicyOptions = {
            "network": profile.network,
            "access": profile.access,
            "memory": profile.memory,
            "pids": profile.pids,
            "cpus": profile.cpus,
            "disk": profile.disk_mb,
            "mounts": [] if profile.mount == "none" else [shared],
            "image": profile.image,
            "runtime": profile.runtime,
        }
        box = _BoxedDriver(lambda: boxes.start_session(provider=provider, **policy))
        try:
            lane = _observe(probes, decoys, box.run, profile.id, sha256)
        except ProofboxError as error:
            nothing = tuple(Observation(p.id, p.args, None, None, problem=error.message) for p in probes)
            return LaneResult(profile.id, nothing, problem=f"{error.code}: {error.message}")
        return msgspec.structs.replace(lane, provider=box.provider, isolation=box.isolation, policy=box.policy)


class _BoxedDriver:
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


def _observe(probes: Sequence[Probe], decoys: Decoys, run: Run, profile: str, sha256: str) -> LaneResult:
    """Run the driver with all probes. If it is lost on the way, go on after the probe that it was lost at."""
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
    intact = hashlib.sha256(decoys.driver.read_bytes()).hexdigest() == sha256
    observations = tuple(
        Observation(
            probe=probe.id,
            args=tuple(arguments[probe.id]),
            answer=_without_content(probe, answers.get(probe.id), decoys),
            oracle=decoys.seen(probe),
            secret=decoys.knows(probe),
            problem=lost.get(probe.id, ""),
        )
        for probe in probes
    )
    status = answers.get(SELF_STATUS)
    return LaneResult(profile, observations, status.value if status else "", driver_intact=intact)


def _without_content(probe: Probe, answer: Answer | None, decoys: Decoys) -> Answer | None:
    """Drop what was read of files and variables that are not decoys: the host's own content is not evidence."""
    if answer is None or probe.operation not in ("file-read", "env-read") or decoys.knows(probe):
        return answer
    return msgspec.structs.replace(answer, value="")


def parse_answers(output: bytes, asked: set[str]) -> dict[str, Answer]:
    """Return the answers in a driver's output. A line that is no answer to a request, or a second one, is ignored."""
    found: dict[str, Answer] = {}
    for line in output.splitlines():
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError:
            continue
        if answer.id in asked:
            found.setdefault(answer.id, answer)
    return found


def _line(id: str, operation: str, args: Sequence[str]) -> str:
    return "\t".join((id, operation, *args)) + "\n"


def adapted(template: str, decoys: Decoys) -> list[str]:
    """Return the command line that runs the driver in a foreign sandbox."""
    driver = [str(decoys.driver), str(PROBE_SECONDS)]
    values = {"project": str(decoys.project), "mounted": str(decoys.mounted), "command": shlex.join(driver)}
    argv: list[str] = []
    for word in shlex.split(template):
        argv += driver if word == "{command}" else [_filled(word, values)]
    return argv


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _run(argv: Sequence[str], decoys: Decoys, requests: bytes, seconds: float) -> tuple[bytes, str]:
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
    shown = errors.decode("utf-8", "replace").strip()[-300:]
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


def _decoys(driver: Path) -> Decoys:
    return Decoys(decoy_directory() / f"{PREFIX}{secrets.token_hex(8)}", driver)


class _variable:
    """Sets the decoy variable in this process's environment. A box must not receive it."""

    def __init__(self, decoys: Decoys) -> None:
        self._value = decoys.secret

    def __enter__(self) -> None:
        os.environ[ENVIRONMENT_VARIABLE] = self._value

    def __exit__(self, *_: object) -> None:
        os.environ.pop(ENVIRONMENT_VARIABLE, None)
