"""Attacks on the box agent from inside the box: through its memory, descriptors and environment, and by signals.

At worst, a command may end its own session, which is then reported as lost. It must never take over the agent, observe
other commands, or leave the caller waiting. Before sending any signal, a check looks for a host process from inside
the box; if it sees one, it does not attack.
"""

from __future__ import annotations

import contextlib
import os
import time

from proofbox.errors import SandboxLost
from proofbox.sandbox.conformance.check import AGENT_HIDDEN, PROCESSES, ProviderChecks, expect
from proofbox.sandbox.conformance.context import CheckContext, with_environment
from proofbox.sandbox.conformance.probing import run_probes

subject = ProviderChecks("agent")
check = subject.check

# The agent is pid 1 or an ancestor, perhaps with a supervising process in between: all of them are attacked.
_ANCESTORS = """
ancestors() {
    echo 1
    p=$PPID
    while [ "$p" -gt 1 ] 2>/dev/null; do
        echo "$p"
        p=$(sed -n 's/^PPid:[^0-9]*//p' "/proc/$p/status")
    done
}
"""
_READING = """
for p in $(ancestors); do
    for f in mem stack syscall personality; do
        head -c 1 "/proc/$p/$f" 2>/dev/null | grep -q . && echo "read $p/$f"
    done
    for f in mem oom_score_adj comm timerslack_ns clear_refs coredump_filter; do
        (echo 0 > "/proc/$p/$f") 2>/dev/null && echo "wrote $p/$f"
    done
    for f in exe cwd root; do
        readlink "/proc/$p/$f" >/dev/null 2>&1 && echo "followed $p/$f"
    done
    (: >> "/proc/$p/exe") 2>/dev/null && echo "opened $p/exe"
done
"""
_LOOKING = """
for p in $(ancestors); do
    for f in environ maps auxv; do
        head -c 1 "/proc/$p/$f" 2>/dev/null | grep -q . && echo "read $p/$f"
    done
    for f in ns/user ns/mnt; do
        readlink "/proc/$p/$f" >/dev/null 2>&1 && echo "followed $p/$f"
    done
    ls "/proc/$p/fd" 2>/dev/null | sed "s|^|listed $p/fd/|"
done
"""
_FORGING = """
for p in $(ancestors); do
    for n in 0 1 2 3 4 5 10 11 12 13 16 17 18 19 20 21 22; do
        [ "$(readlink "/proc/$p/fd/$n" 2>/dev/null)" = /dev/null ] && continue
        (echo forged > "/proc/$p/fd/$n") 2>/dev/null && echo "wrote to $p/fd/$n"
    done
done
"""
# Does not use ls: some shells run it in their own process, where it opens another descriptor.
_OWN_DESCRIPTORS = "n=0; while [ $n -lt 300 ]; do [ -e /proc/$$/fd/$n ] && echo $n; n=$((n+1)); done"
_DAEMON = """
(setsid sh -c 'kill -9 -1; n=0; while [ $n -lt 200 ]; do echo x >> beat; n=$((n+1)); sleep 0.05; done' "$0" &)
sleep 1
"""

# Left in the background, bounded by its CPU time limit.
_STOPPING = "ulimit -t 20; (while :; do kill -STOP -1; done) >/dev/null 2>&1 & exit 0"
# Makes the start slow: each of these directories is tried before the program is found.
_LONG_PATH = "/-:" * 30_000 + "/usr/local/bin:/usr/bin:/bin"


@check(PROCESSES)
def memory(context: CheckContext) -> None:
    """The agent's memory, program and directories can be neither read nor changed through /proc."""
    result = context.sh(context.session(), _ANCESTORS + _READING)
    expect(not result.stdout, f"a command {', '.join(result.stdout.splitlines()[:8])}")


@check(AGENT_HIDDEN)
def inspection(context: CheckContext) -> None:
    """The agent's environment, memory layout and list of descriptors are not visible."""
    result = context.sh(context.session(), _ANCESTORS + _LOOKING)
    expect(not result.stdout, f"a command {', '.join(result.stdout.splitlines()[:8])}")


@check(PROCESSES)
def environment(context: CheckContext) -> None:
    """The agent's environment, if visible, contains nothing from the caller's environment."""
    with with_environment(PROOFBOX_CONFORMANCE_SECRET=context.marker):
        session = context.session()
    seen = context.sh(session, _ANCESTORS + 'for p in $(ancestors); do cat "/proc/$p/environ"; done 2>/dev/null').stdout
    expect(context.marker not in seen, "the agent has its caller's environment")


@check(PROCESSES)
def descriptors_of_the_agent(context: CheckContext) -> None:
    """A command can't write to the agent's descriptors, and so can't forge output or messages to the client."""
    session = context.session()
    result = context.sh(session, _ANCESTORS + _FORGING)
    expect(not result.stdout and not result.timed_out, f"a command {', '.join(result.stdout.splitlines()[:4])}")
    context.alive(session)


@check(PROCESSES)
def waiting_processes(context: CheckContext) -> None:
    """A command finds no process in its box but its own and its ancestors: none waits there for the next command."""
    session = context.session()
    for _ in range(3):
        context.alive(session)
    listing = "for p in /proc/[0-9]*; do echo ${p#/proc/}; done; echo beside; echo $$; ancestors"
    seen, _, known = context.sh(session, _ANCESTORS + listing).stdout.partition("beside\n")
    others = sorted(set(seen.split()) - set(known.split()), key=int)
    expect(seen, "no process was found, so the check proves nothing")
    expect(not others, f"besides the command, the processes {others} run in its box")


@check(PROCESSES)
def tracing(context: CheckContext) -> None:
    """A command can neither trace nor take a descriptor from pid 1 or its own parent."""
    run_probes(context, "process.trace-*", "process.descriptor-*")


@check()
def descriptors(context: CheckContext) -> None:
    """A command has only its three standard streams, even if its caller has inheritable descriptors open."""
    secret, text = context.secret()
    fd = os.open(secret, os.O_RDONLY)
    os.set_inheritable(fd, True)
    try:
        session = context.session()
        listed = context.sh(session, _OWN_DESCRIPTORS).stdout.split()
        with_input = context.sh(session, _OWN_DESCRIPTORS, stdin=b"x").stdout.split()
        high = context.sh(session, "for n in 3 4 5 6 7 8 9 16 17 18 200 201; do cat /proc/$$/fd/$n; done", timeout=3)
    finally:
        os.close(fd)
    expect(listed == ["0", "1", "2"], f"a command has the descriptors {listed}")
    expect(with_input == ["0", "1", "2"], f"with stdin, a command has the descriptors {with_input}")
    expect(text not in high.stdout, "the command inherited a descriptor from its caller")


def _signal(name: str, script: str) -> None:
    def run(context: CheckContext) -> None:
        session = context.session()
        context.fence(session)
        began = time.monotonic()
        lost = False
        try:
            context.sh(session, script, timeout=1)
            context.sh(session, "true", timeout=1)
        except SandboxLost:
            lost = True
        took = time.monotonic() - began
        # The timeouts, plus the five seconds that the agent waits for a process tree that it can't kill.
        expect(took < 10.5, f"the session {'was reported lost' if lost else 'responded'} only after {took:.1f} s")
        if lost:
            context.refused(SandboxLost, "a command in a lost session", session.exec, ["true"], timeout=2)
        else:
            result = context.sh(session, "echo a; echo b >&2; exit 3")
            answer = (result.stdout, result.stderr, result.exit_code)
            expect(answer == ("a\n", "b\n", 3), f"the agent survived, but a command returned {answer}")
        session.stop()

    subject.add(f"signal-{name}", PROCESSES, run)


def _each(*signals: str) -> str:
    sending = "; ".join(f"kill -{name} $p" for name in signals)
    return _ANCESTORS + f"for p in $(ancestors); do {sending}; done 2>/dev/null; exit 0"


for _name, _script in {
    "kill": _each("KILL"),
    "stop": _each("STOP"),
    "polite": _each("TERM", "INT", "HUP"),
    "faults": _each("SEGV", "BUS", "QUIT", "ABRT", "ALRM", "PIPE", "TSTP"),
    "user": _each("USR1", "USR2", "CHLD", "CONT"),
    "kill-all": "kill -KILL -1; exit 0",
    "stop-all": "kill -STOP -1; exit 0",
}.items():
    _signal(_name, _script)


@check(PROCESSES)
def stopped_while_it_starts(context: CheckContext) -> None:
    """A command that is stopped before it execs is killed at its timeout and does not block other commands."""
    session = context.session()
    context.fence(session)
    began = time.monotonic()
    try:
        context.sh(session, _STOPPING)
        for _ in range(5):
            context.sh(session, "true", timeout=0.5, env={"PATH": _LONG_PATH})
    except SandboxLost:
        expect(
            context.enforcement.kill_tree == "fail-closed", "the session was lost when a starting command was stopped"
        )
    took = time.monotonic() - began
    # Each may take as long as the agent waits for processes that a busy kernel is slow to kill.
    expect(took < 60, f"five timeouts of 0.5 s took {took:.1f} s")
    began = time.monotonic()
    session.stop()
    took = time.monotonic() - began
    expect(took < 20, f"stopping the session took {took:.1f} s")


@check(PROCESSES)
def daemon_that_kills_all(context: CheckContext) -> None:
    """A daemon that first kills everything it can reach still ends with the session."""
    session = context.session()
    context.fence(session)
    with contextlib.suppress(SandboxLost):
        context.sh(session, _DAEMON, timeout=1)
    session.stop()
    beat = context.project / "beat"
    size = beat.stat().st_size if beat.exists() else 0
    time.sleep(0.3)
    expect((beat.stat().st_size if beat.exists() else 0) == size, "the daemon outlived its session")
