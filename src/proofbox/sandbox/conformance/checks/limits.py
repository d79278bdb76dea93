"""Limits on memory, processes, CPU time and overlay size apply to the whole box, and a command can't lift them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from proofbox.errors import SandboxError, SandboxLost
from proofbox.sandbox.conformance.check import (
    CPUS,
    DISK,
    FILESYSTEM,
    MEMORY,
    PIDS,
    Failed,
    NotApplicable,
    NotChecked,
    ProviderChecks,
    expect,
)
from proofbox.sandbox.conformance.context import CheckContext, commands_of, settled
from proofbox.sandbox.conformance.probing import run_probes
from proofbox.sandbox.contract import Isolation
from proofbox.sandbox.service import Session

subject = ProviderChecks("limits")
check = subject.check

MEMORY_MB = 64
TOO_MUCH = 250_000_000
PROCESSES = 32


@check(MEMORY)
def memory(context: CheckContext) -> None:
    """A command over the limit is killed, with `oom_killed` set, and its session survives (or ends, if so declared)."""
    if context.enforcement.memory_kill == "box":
        _ends_the_box(context, 'dd if=/dev/zero of=/dev/null bs="$1" count=1 && echo allocated')
        return
    session = context.session(memory=MEMORY_MB)
    small = context.sh(session, "echo small")
    expect(small.exit_code == 0 and not small.usage.oom_killed, "a small command is reported as killed for memory")
    result = context.sh(session, 'head -c "$1" /dev/zero | tail -n 1 | wc -c', str(TOO_MUCH))  # keeps one long line
    expect(str(TOO_MUCH) not in result.stdout, f"{TOO_MUCH >> 20} MB were allocated under a limit of {MEMORY_MB} MB")
    expect(result.usage.oom_killed, f"oom_killed is not set (exit {result.exit_code}, {result.stderr!r})")
    after = context.sh(session, "echo after")
    expect(
        after.stdout == "after\n" and not after.usage.oom_killed,
        "the next command is reported as killed for memory as well",
    )
    expect(after.policy.memory_mb == MEMORY_MB, "the result does not state the limit")


@check(MEMORY)
def memory_by_files(context: CheckContext) -> None:
    """Files in the box's /tmp, a tmpfs, count towards its memory limit."""
    if context.isolation is Isolation.NONE:
        raise NotApplicable(f"{context.provider} uses the host's /tmp")
    if context.enforcement.memory_kill == "box":
        _ends_the_box(context, 'head -c "$1" /dev/zero > /tmp/big && echo allocated')
        return
    session = context.session(memory=MEMORY_MB)
    result = context.sh(session, 'head -c "$1" /dev/zero > /tmp/big && wc -c < /tmp/big; df -k /tmp', str(TOO_MUCH))
    if result.exit_code == 0 and "tmpfs" not in result.stdout:
        raise NotChecked("the box's /tmp is on a disk")
    expect(
        str(TOO_MUCH) not in result.stdout,
        f"{TOO_MUCH >> 20} MB were written to /tmp under a memory limit of {MEMORY_MB} MB",
    )


def _ends_the_box(context: CheckContext, script: str) -> None:
    session = context.session(memory=MEMORY_MB)
    context.alive(session)
    try:
        result = context.sh(session, script, str(TOO_MUCH))
    except SandboxLost:
        return
    expect("allocated" not in result.stdout, f"{TOO_MUCH >> 20} MB were allocated under a limit of {MEMORY_MB} MB")


@check(PIDS)
def processes(context: CheckContext) -> None:
    """A fork bomb stays within the process limit of its box, and the box can be used afterwards."""
    session = context.session(pids=PROCESSES)
    # The bomb is also bounded: at most 2^8 processes, each for three seconds.
    bomb = 'if [ "$1" -lt 8 ]; then sh -c "$2" "$0" $(($1+1)) "$2" & sh -c "$2" "$0" $(($1+1)) "$2" & fi; sleep 3; :'
    with ThreadPoolExecutor(1) as pool:
        # The first shell forks only once, before the limit is reached: a refused fork would end it.
        script = f"({bomb}) 2>/dev/null & wait; while :; do :; done"
        running = pool.submit(context.sh, session, script, "0", bomb, timeout=1)
        most = 0
        while not running.done():
            most = max(most, len(commands_of(context.marker)))
        result = running.result()
    expect(result.timed_out, f"the fork bomb ended before its timeout: exit {result.exit_code}")
    expect(most <= PROCESSES, f"{most} processes were alive under a limit of {PROCESSES}")
    context.alive(session)
    run_probes(context, "limit.pids", "limit.pids-below", pids=64)
    # The remaining processes fill the box to its limit: commands may be refused until they end, but not afterwards.
    settled(lambda: _error_codes(context, session))
    context.alive(session)


@check(PIDS)
def processes_of_later_commands(context: CheckContext) -> None:
    """The process limit allows a later command exactly as many processes as the first command of a box."""
    counts = []
    for earlier in (0, 3):
        session = context.session(pids=PROCESSES)
        for _ in range(earlier):
            context.alive(session)
        # A refused fork ends the shell.
        script = f"n=0; while [ $n -lt {4 * PROCESSES} ]; do n=$((n+1)); sleep 60 >/dev/null 2>&1 & echo $n; done"
        counts.append(len(context.sh(session, script).stdout.split()))
        session.stop()
    first, later = counts
    expect(0 < first < PROCESSES, f"{first} processes were started under a limit of {PROCESSES}")
    expect(first == later, f"the first command could start {first} processes, the fourth {later}")


def _error_codes(context: CheckContext, session: Session) -> list[str]:
    try:
        context.alive(session)
    except SandboxError as error:
        return [error.code]
    return []


@check(CPUS)
def cpu_time(context: CheckContext) -> None:
    """Two commands together get at most 0.2 processors. The bounds are loose: a busy machine gives less, never more."""
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        # Its clock also runs while the host throttles it, so measure the work done instead of CPU time.
        free, held, limited = 0, 1 << 60, (context.session(), context.session(cpus=0.2))
        for _ in range(
            4
        ):  # alternate, and take the best of each, so that other load neither looks like the limit nor hides it
            free, held = max(free, _work(context, limited[0], 1)), min(held, _work(context, limited[1], 2))
            if free > 20 and held < free * 0.6:
                return
        if (share := _share()) < 0.5:
            raise NotChecked(
                f"a busy loop gets only {share:.0%} of a processor on this machine: a limit would not show"
            )
        raise Failed(f"two loops limited to 0.2 processors ran {held} rounds, one unlimited loop {free}")
    session = context.session(cpus=0.2)
    with ThreadPoolExecutor(2) as pool:
        burning = [pool.submit(context.sh, session, "while :; do :; done", timeout=1.2) for _ in range(2)]
        results = [command.result() for command in burning]
    used, took = sum(result.usage.cpu_ms for result in results), max(result.duration_ms for result in results)
    expect(used > 20, f"two busy loops are reported to have used {used:.0f} ms of CPU time: the measurement is wrong")
    expect(used < took / 2, f"{used:.0f} ms of CPU time in {took:.0f} ms under a limit of 0.2 processors")


def _share() -> float:
    """Return the share of a processor that one busy loop gets on this machine."""
    began, used = time.monotonic(), time.thread_time()
    while time.monotonic() < began + 1:
        pass
    return (time.thread_time() - used) / (time.monotonic() - began)


def _work(context: CheckContext, session: Session, commands: int) -> int:
    """Return how many rounds this many busy loops complete together before their timeout."""
    script = "while :; do i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; echo x; done"
    with ThreadPoolExecutor(commands) as pool:
        running = [pool.submit(context.sh, session, script, timeout=1.2) for _ in range(commands)]
        return sum(command.result().stdout.count("x") for command in running)


@check(DISK)
def disk(context: CheckContext) -> None:
    """Writing more than the size limit of the overlay fails, and the project is not changed."""
    run_probes(context, "limit.disk", "limit.disk-below", access="overlay", disk=16)


@check()
def process_limits(context: CheckContext) -> None:
    session = context.session()
    result = context.sh(session, "ulimit -n", limits={"open_files": 50})
    expect(result.stdout.strip() == "50", f"a limit of 50 open files was set to {result.stdout.strip()}")
    result = context.sh(session, "head -c 100000 /dev/zero > big; wc -c < big", limits={"file_size": 4096})
    expect(
        result.stdout.strip() == "4096", f"under a file size limit of 4096 bytes, the file has {result.stdout.strip()}"
    )
    expect(
        context.sh(session, "ulimit -n").stdout.strip() != "50", "a command's limit also applies to the next command"
    )


@check(FILESYSTEM)
def control_groups(context: CheckContext) -> None:
    """A command can't write to the control groups of its box."""
    session = context.session(pids=PROCESSES) if context.enforcement.pids else context.session()
    script = """
for f in $(find /sys/fs/cgroup /proc/1/root/sys -name cgroup.procs -o -name pids.max 2>/dev/null | head -50); do
    (echo $$ > $f) 2>/dev/null && echo $f
    (echo max > $f) 2>/dev/null && echo $f
done
"""
    result = context.sh(session, script)
    expect(not result.stdout, f"a command could write to {result.stdout.split()[:3]}")
