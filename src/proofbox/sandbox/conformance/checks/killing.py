"""A timeout kills the command's whole process tree, however it tries to escape, and no other process.

Each escapee writes to a file of the project while it runs, and has the check's marker in its arguments, so that its
death can be observed from outside, by the file and in the host's /proc. Each ends after a fixed number of rounds, or
when a file `stop` appears, so that one that does escape does no harm.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from proofbox.errors import SandboxLost
from proofbox.sandbox.conformance.check import NOTHING, Failed, NotApplicable, ProviderChecks, expect
from proofbox.sandbox.conformance.context import CheckContext, commands_of, settled
from proofbox.sandbox.contract import ExecResult
from proofbox.sandbox.service import Session

subject = ProviderChecks("killing")
check = subject.check

BEAT = 'n=0; while [ "$n" -lt 400 ] && [ ! -e stop ]; do echo x >> beat; n=$((n+1)); sleep 0.03; done'
# Each generation starts the next and exits, so killing the processes of a list always comes too late.
HOP = 'echo x >> beat; [ "$2" -lt 5000 ] && [ ! -e stop ] && { sh -c "$1" "$0" "$1" $(($2+1)) & }'

ESCAPEES = {
    "backgrounded": 'sh -c "$1" "$0" & wait',
    "own-session": 'setsid sh -c "$1" "$0" </dev/null >/dev/null 2>&1 & sleep 60',
    "daemon": '(setsid sh -c \'(sh -c "$1" "$0" &) &\' "$0" "$1" </dev/null >/dev/null 2>&1 &); sleep 60',
    "fork-hopping": 'setsid sh -c "$1" "$0" "$1" 0 </dev/null >/dev/null 2>&1; sleep 60',
    "pipe-holder": '(setsid sh -c \'(sh -c "$1" "$0" &) &\' "$0" "$1" &); sleep 60',
}
TIMEOUTS = (0.4, 3.0, 15.0)
"""The longer ones are for a machine so busy that the escapee does not start within the first."""
OVERDUE = 10.0
"""Maximum delay of a timeout; the commands that it kills would run for a minute."""


def _add_escapee_check(name: str, script: str) -> None:
    def run(context: CheckContext) -> None:
        work = HOP if name == "fork-hopping" else BEAT
        beat = context.project / "beat"
        for timeout in TIMEOUTS:
            session, result = _timed_out(context, timeout, script, work)
            if beat.exists() and beat.stat().st_size > 4:
                break
        else:
            raise Failed("the escapee never started, so the check proves nothing")
        _expect_dead(context, result)
        with _allow_fail_closed(context):
            context.alive(session)

    subject.add(f"timeout-{name}", NOTHING, run)


for _name, _script in ESCAPEES.items():
    _add_escapee_check(_name, _script)


@check()
def timeout_is_reported(context: CheckContext) -> None:
    session, result = _timed_out_after_output(context, "echo up; sleep 60")
    if result is not None:
        expect(result.stdout == "up\n", f"the output before the timeout is {result.stdout!r}")
        expect(not result.survivors, "survivors are reported for a plain sleep")
    with _allow_fail_closed(context):
        quick = context.sh(session, "exit 5")
        expect(
            not quick.timed_out and quick.exit_code == 5,
            "a command that ended within its timeout is reported as timed out",
        )


@check()
def grace_period(context: CheckContext) -> None:
    """With a grace period, SIGTERM comes first. A command that obeys it counts as timed out; others are killed."""
    _, result = _timed_out_after_output(context, "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait", grace=30)
    if result is not None:
        expect("bye" in result.stdout, f"the command could not handle SIGTERM: {result.stdout!r}")
    _, result = _timed_out_after_output(context, "trap '' TERM; echo up; sleep 60 & sleep 60", grace=0.3)
    if result is not None:
        expect(
            result.duration_ms > 600,
            f"a command that ignores SIGTERM was killed after {result.duration_ms} ms, before its grace period ended",
        )


@check()
def only_its_own_tree(context: CheckContext) -> None:
    """A background process of an earlier command survives the timeout of a later command."""
    session = context.session()
    context.sh(session, 'sh -c "$1" "$0" </dev/null >/dev/null 2>&1 &', BEAT)
    beat = context.project / "beat"
    expect(not settled(lambda: [] if beat.exists() else ["none yet"]), "the background process never started")
    with _allow_fail_closed(context):
        context.sh(session, "sleep 60", timeout=0.2)
        before = beat.stat().st_size
        silent = settled(lambda: [] if beat.stat().st_size > before else ["no beat"])
        expect(not silent, "a timeout killed another command's background process")
    (context.project / "stop").touch()


@check()
def end_of_session(context: CheckContext) -> None:
    """Stopping a session kills the processes that its commands left, without waiting for them to finish."""
    session = context.session()
    context.sh(session, ESCAPEES["daemon"].replace("sleep 60", "until [ -s beat ]; do sleep 0.05; done"), BEAT)
    expect((context.project / "beat").exists(), "the daemon never started")
    began = time.monotonic()
    session.stop()
    took = time.monotonic() - began
    expect(took < OVERDUE, f"stopping took {took:.1f} s: it waited for an orphaned process")
    _expect_dead(context, None)
    session.stop()


@check()
def abandoned_command(context: CheckContext) -> None:
    """A caller interrupted while waiting (as by Ctrl-C) leaves no command running and keeps its session."""

    class Interrupted(Exception):
        pass

    def interrupt(_: object) -> None:
        raise Interrupted

    session = context.session()
    with _allow_fail_closed(context):
        try:
            context.sh(session, 'echo go; sh -c "$1" "$0" & wait', BEAT, on_output=interrupt)
        except Interrupted:
            pass
        else:
            raise Failed("the caller's own exception was not raised")
    _expect_dead(context, None)
    with _allow_fail_closed(context):
        context.alive(session)


def _timed_out(
    context: CheckContext, timeout: float, script: str, *args: str, grace: float = 0.0
) -> tuple[Session, ExecResult | None]:
    """Run an endless script in a new session, and expect that it times out on time.

    The result is None if the session was lost, which is allowed for a provider that fails closed.
    """
    session = context.session()
    began = time.monotonic()
    with _allow_fail_closed(context):
        result = context.sh(session, script, *args, timeout=timeout, grace=grace)
        ended = f"exit {result.exit_code}, timed_out {result.timed_out}, after {result.duration_ms} ms"
        expect(result.timed_out and result.exit_code == 124, f"the command was reported as {ended}")
        late = result.duration_ms / 1000 - timeout
        expect(-0.1 < late < OVERDUE, f"a timeout of {timeout} s was reported as {ended}")
        return session, result
    took = time.monotonic() - began
    expect(took < timeout + OVERDUE, f"a timeout of {timeout} s took {took:.1f} s")
    return session, None


def _timed_out_after_output(
    context: CheckContext, script: str, grace: float = 0.0
) -> tuple[Session, ExecResult | None]:
    """Time out a script that prints when it has started; try longer timeouts until its output arrives."""
    for timeout in TIMEOUTS:
        session, result = _timed_out(context, timeout, script, grace=grace)
        if result is None or result.stdout:
            break
    else:
        raise Failed(f"no output of the command arrived within {timeout:g} s")
    return session, result


@contextlib.contextmanager
def _allow_fail_closed(context: CheckContext) -> Iterator[None]:
    """Accept the loss of the session if the provider fails closed when it can't be sure to kill a process tree."""
    try:
        yield
    except SandboxLost:
        if context.enforcement.kill_tree != "fail-closed":
            raise


def _expect_dead(context: CheckContext, result: ExecResult | None) -> None:
    beat = context.project / "beat"
    found = settled(lambda: commands_of(context.marker), 3.0)
    # If the box's processes are not visible on the host, only the file counts.
    size = beat.stat().st_size if beat.exists() else 0
    time.sleep(0.25)
    growing = beat.exists() and beat.stat().st_size > size
    (context.project / "stop").touch()
    survivors = result is not None and result.survivors
    if not (found or growing or survivors):
        return
    file = "still grows" if growing else "no longer grows"
    seen = f"{len(found)} processes are alive, the file {file}, the result says survivors={survivors}"
    if context.enforcement.kill_tree == "best-effort":
        raise NotApplicable(
            f"killing the process tree is best-effort here ({context.enforcement.gaps.get('kill tree', '')}): {seen}"
        )
    raise Failed(seen)
