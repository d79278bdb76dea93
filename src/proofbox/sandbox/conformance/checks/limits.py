"""Limits hold for the whole box: memory, processes, CPU time, the size of an overlay. And a command can't lift them."""

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
from proofbox.sandbox.contract import Isolation
from proofbox.sandbox.service import Session

subject = ProviderChecks("limits")
check = subject.check

MEMORY_MB = 64
TOO_MUCH = 250_000_000
PROCESSES = 32


@check(MEMORY)
def memory(context: CheckContext) -> None:
    """Who takes more is killed, the result says why, and the session goes on; or the box ends, where that is said."""
    if context.enforcement.memory_kill == "box":
        _ends_the_box(context, 'dd if=/dev/zero of=/dev/null bs="$1" count=1 && echo had')
        return
    session = context.session(memory=MEMORY_MB)
    small = context.sh(session, "echo small")
    expect(small.exit_code == 0 and not small.usage.oom_killed, "a small command is said to be killed for memory")
    result = context.sh(session, 'x=$(head -c "$1" /dev/zero | tr "\\0" x); echo "${#x}"', str(TOO_MUCH))
    expect(str(TOO_MUCH) not in result.stdout, f"{TOO_MUCH >> 20} MB were had under a limit of {MEMORY_MB} MB")
    expect(result.usage.oom_killed, f"oom_killed is not set (exit {result.exit_code}, {result.stderr!r})")
    after = context.sh(session, "echo after")
    expect(after.stdout == "after\n" and not after.usage.oom_killed, "the next command bears the blame of the last")
    expect(after.policy.memory_mb == MEMORY_MB, "the result does not state the limit")


@check(MEMORY)
def memory_by_files(context: CheckContext) -> None:
    """The box's own /tmp is memory too, and counts."""
    if context.isolation is Isolation.NONE:
        raise NotApplicable(f"{context.provider} has no /tmp of its own: it is the host's")
    if context.enforcement.memory_kill == "box":
        _ends_the_box(context, 'head -c "$1" /dev/zero > /tmp/big && echo had')
        return
    session = context.session(memory=MEMORY_MB)
    result = context.sh(session, 'head -c "$1" /dev/zero > /tmp/big && wc -c < /tmp/big; df -k /tmp', str(TOO_MUCH))
    if result.exit_code == 0 and "tmpfs" not in result.stdout:
        raise NotChecked("the box's /tmp is on a disk")
    expect(str(TOO_MUCH) not in result.stdout, f"{TOO_MUCH >> 20} MB in /tmp under a memory limit of {MEMORY_MB} MB")


def _ends_the_box(context: CheckContext, script: str) -> None:
    session = context.session(memory=MEMORY_MB)
    context.alive(session)
    try:
        result = context.sh(session, script, str(TOO_MUCH))
    except SandboxLost:
        return
    expect("had" not in result.stdout, f"{TOO_MUCH >> 20} MB were had under a limit of {MEMORY_MB} MB")


@check(PIDS)
def processes(context: CheckContext) -> None:
    """A fork bomb stays within its box's number, and the box can be used afterwards."""
    session = context.session(pids=PROCESSES)
    # Bounded by itself as well: two to the power of eight, each for three seconds.
    bomb = 'if [ "$1" -lt 8 ]; then sh -c "$2" "$0" $(($1+1)) "$2" & sh -c "$2" "$0" $(($1+1)) "$2" & fi; sleep 3; :'
    with ThreadPoolExecutor(1) as pool:
        # The first shell starts one thing before there is a crowd, and nothing after: it would end with a fork refused.
        script = f"({bomb}) 2>/dev/null & wait; while :; do :; done"
        running = pool.submit(context.sh, session, script, "0", bomb, timeout=1)
        most = 0
        while not running.done():
            most = max(most, len(commands_of(context.marker)))
        result = running.result()
    expect(result.timed_out, f"the bomb came back by itself: exit {result.exit_code}")
    expect(most <= PROCESSES, f"{most} processes were alive under a limit of {PROCESSES}")
    context.alive(session)
    counted = context.sh(session, 'n=0; while [ $n -lt 80 ]; do sleep 2 & n=$((n+1)); echo "$n"; done', timeout=1.5)
    reached = len(counted.stdout.split())
    expect(reached < PROCESSES, f"{reached} children were started under a limit of {PROCESSES}")
    # Those that are left fill the box to its limit; a command may then be refused, and must run when they are gone.
    settled(lambda: _refused(context, session))
    context.alive(session)


def _refused(context: CheckContext, session: Session) -> list[str]:
    try:
        context.alive(session)
    except SandboxError as error:
        return [error.code]
    return []


@check(CPUS)
def cpu_time(context: CheckContext) -> None:
    """A fifth of a processor, for two commands together. Loose, since a busy machine gives less, never more."""
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        # Its clock goes on while the host lets it wait: what counts is the work that was done.
        free, held, limited = 0, 1 << 60, (context.session(), context.session(cpus=0.2))
        for _ in range(4):  # in turns, the best of each: a neighbour's work must not count as the limit, or hide it
            free, held = max(free, _work(context, limited[0], 1)), min(held, _work(context, limited[1], 2))
            if free > 20 and held < free * 0.6:
                return
        if (share := _share()) < 0.5:
            raise NotChecked(f"a busy loop gets {share:.0%} of a processor here now: no limit would show")
        raise Failed(f"two loops under a limit of 0.2 processors went round {held} times, and one without {free}")
    session = context.session(cpus=0.2)
    with ThreadPoolExecutor(2) as pool:
        burning = [pool.submit(context.sh, session, "while :; do :; done", timeout=1.2) for _ in range(2)]
        results = [command.result() for command in burning]
    used, took = sum(result.usage.cpu_ms for result in results), max(result.duration_ms for result in results)
    expect(used > 20, f"two busy loops are said to have used {used:.0f} ms: the measure is wrong")
    expect(used < took / 2, f"{used:.0f} ms of CPU time in {took:.0f} ms under a limit of 0.2 processors")


def _share() -> float:
    """How much of a processor this machine gives to one busy loop."""
    began, used = time.monotonic(), time.thread_time()
    while time.monotonic() < began + 1:
        pass
    return (time.thread_time() - used) / (time.monotonic() - began)


def _work(context: CheckContext, session: Session, commands: int) -> int:
    """How often busy loops go round in a second, together."""
    script = "while :; do i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; echo x; done"
    with ThreadPoolExecutor(commands) as pool:
        running = [pool.submit(context.sh, session, script, timeout=1.2) for _ in range(commands)]
        return sum(command.result().stdout.count("x") for command in running)


@check(DISK)
def disk(context: CheckContext) -> None:
    """The overlay is full when it is full, and the project untouched."""
    session = context.session(access="overlay", disk=8)
    result = context.sh(
        session,
        "head -c 3000000 /dev/zero > fits && echo fits; dd if=/dev/zero of=big bs=1000000 count=30; wc -c < big",
    )
    expect("fits" in result.stdout, f"3 MB do not fit into 8: {result.stderr!r}")
    expect("space" in result.stderr.lower(), f"30 MB fit into 8, or it was not said why not: {result.stderr!r}")
    size = int(result.stdout.split()[-1])
    expect(size <= 8 << 20, f"a file of {size} bytes is in an overlay of 8 MB")
    expect(not any(context.project.iterdir()), "the project was written to")
    context.alive(session)


@check()
def of_one_process(context: CheckContext) -> None:
    session = context.session()
    result = context.sh(session, "ulimit -n", limits={"open_files": 50})
    expect(result.stdout.strip() == "50", f"a limit of 50 open files came as {result.stdout.strip()}")
    result = context.sh(session, "head -c 100000 /dev/zero > big; wc -c < big", limits={"file_size": 4096})
    expect(result.stdout.strip() == "4096", f"a file size of 4096 bytes came as {result.stdout.strip()}")
    expect(context.sh(session, "ulimit -n").stdout.strip() != "50", "a command's limit stayed on the session")


@check(FILESYSTEM)
def out_of_reach(context: CheckContext) -> None:
    """The control groups that hold a box are not to be seen, let alone written, from within it."""
    session = context.session(pids=PROCESSES) if context.enforcement.pids else context.session()
    script = """
for f in $(find /sys/fs/cgroup /proc/1/root/sys -name cgroup.procs -o -name pids.max 2>/dev/null | head -50); do
    (echo $$ > $f) 2>/dev/null && echo $f
    (echo max > $f) 2>/dev/null && echo $f
done
"""
    result = context.sh(session, script)
    expect(not result.stdout, f"a command could write to {result.stdout.split()[:3]}")
