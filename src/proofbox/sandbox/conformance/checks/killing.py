"""A timeout ends the whole tree, whatever it did to get away, and nothing but that tree.

Each escapee writes to a file of the project while it lives, and bears the check's marker in its arguments: that it is
dead is seen from outside, by the file and by the host's /proc. All of them are bounded by counters of their own and
end when a file `stop` appears, so that one that does get away does no harm.
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
# Each generation starts the next and ends: whoever lists processes and kills what it listed always comes too late.
HOP = 'echo x >> beat; [ "$2" -lt 5000 ] && [ ! -e stop ] && { sh -c "$1" "$0" "$1" $(($2+1)) & }'

ESCAPEES = {
    "backgrounded": 'sh -c "$1" "$0" & wait',
    "own-session": 'setsid sh -c "$1" "$0" </dev/null >/dev/null 2>&1 & sleep 60',
    "daemon": '(setsid sh -c \'(sh -c "$1" "$0" &) &\' "$0" "$1" </dev/null >/dev/null 2>&1 &); sleep 60',
    "fork-hopping": 'setsid sh -c "$1" "$0" "$1" 0 </dev/null >/dev/null 2>&1; sleep 60',
    "pipe-holder": '(setsid sh -c \'(sh -c "$1" "$0" &) &\' "$0" "$1" &); sleep 60',
}
TIMEOUTS = (0.4, 3.0, 15.0)
"""The longer ones for a machine so busy that nothing came to life in the first."""
OVERDUE = 10.0
"""How late a timeout may be there, and still be one: what it ends would run for a minute."""


def _escapee(name: str, script: str) -> None:
    def run(context: CheckContext) -> None:
        work = HOP if name == "fork-hopping" else BEAT
        beat = context.project / "beat"
        for timeout in TIMEOUTS:
            session, result = _timed_out(context, timeout, script, work)
            if beat.exists() and beat.stat().st_size > 4:
                break
        else:
            raise Failed("the escapee never lived, so that nothing was shown")
        _is_dead(context, result)
        with _may_end_the_session(context):
            context.alive(session)

    subject.add(f"timeout-{name}", NOTHING, run)


for _name, _script in ESCAPEES.items():
    _escapee(_name, _script)


@check()
def timeout_is_said(context: CheckContext) -> None:
    session, result = _once_up(context, "echo up; sleep 60")
    if result is not None:
        expect(result.stdout == "up\n", f"what was written before is {result.stdout!r}")
        expect(not result.survivors, "survivors are reported for a plain sleep")
    with _may_end_the_session(context):
        quick = context.sh(session, "exit 5")
        expect(not quick.timed_out and quick.exit_code == 5, "a command within its timeout is called timed out")


@check()
def grace_before_the_kill(context: CheckContext) -> None:
    """SIGTERM first where a grace is given; who obeys is still called timed out, who ignores it is killed."""
    _, result = _once_up(context, "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait", grace=30)
    if result is not None:
        expect("bye" in result.stdout, f"it had no time to say goodbye: {result.stdout!r}")
    _, result = _once_up(context, "trap '' TERM; echo up; sleep 60 & sleep 60", grace=0.3)
    if result is not None:
        expect(result.duration_ms > 600, f"it ignored SIGTERM, and was killed after {result.duration_ms} ms")


@check()
def only_its_own_tree(context: CheckContext) -> None:
    """What an earlier command left running on purpose outlives a later command's timeout."""
    session = context.session()
    context.sh(session, 'sh -c "$1" "$0" </dev/null >/dev/null 2>&1 &', BEAT)
    beat = context.project / "beat"
    expect(not settled(lambda: [] if beat.exists() else ["none yet"]), "what was left in the background never lived")
    with _may_end_the_session(context):
        context.sh(session, "sleep 60", timeout=0.2)
        before = beat.stat().st_size
        resting = settled(lambda: [] if beat.stat().st_size > before else ["no beat"])
        expect(not resting, "a timeout killed a neighbour's child")
    (context.project / "stop").touch()


@check()
def the_end_of_a_box(context: CheckContext) -> None:
    """Stopping a session ends what its commands left, and does not wait for it."""
    session = context.session()
    context.sh(session, ESCAPEES["daemon"].replace("sleep 60", "until [ -s beat ]; do sleep 0.05; done"), BEAT)
    expect((context.project / "beat").exists(), "the daemon never lived")
    began = time.monotonic()
    session.stop()
    took = time.monotonic() - began
    expect(took < OVERDUE, f"stopping took {took:.1f} s: it waited for an orphan")
    _is_dead(context, None)
    session.stop()


@check()
def abandoned_by_its_caller(context: CheckContext) -> None:
    """A caller that is interrupted while it waits (as by Ctrl-C) leaves no command behind, and keeps its session."""

    class Interrupted(Exception):
        pass

    def interrupt(_: object) -> None:
        raise Interrupted

    session = context.session()
    with _may_end_the_session(context):
        try:
            context.sh(session, 'echo go; sh -c "$1" "$0" & wait', BEAT, on_output=interrupt)
        except Interrupted:
            pass
        else:
            raise Failed("the caller's own exception did not come back to it")
    _is_dead(context, None)
    with _may_end_the_session(context):
        context.alive(session)


def _timed_out(
    context: CheckContext, timeout: float, script: str, *args: str, grace: float = 0.0
) -> tuple[Session, ExecResult | None]:
    """Run what does not end by itself, in a session of its own, and see that its time was held to.

    The result is None where the session was lost by it, and may be.
    """
    session = context.session()
    began = time.monotonic()
    with _may_end_the_session(context):
        result = context.sh(session, script, *args, timeout=timeout, grace=grace)
        ended = f"exit {result.exit_code}, timed_out {result.timed_out}, after {result.duration_ms} ms"
        expect(result.timed_out and result.exit_code == 124, f"it came back as {ended}")
        late = result.duration_ms / 1000 - timeout
        expect(-0.1 < late < OVERDUE, f"a timeout of {timeout} s came back as {ended}")
        return session, result
    took = time.monotonic() - began
    expect(took < timeout + OVERDUE, f"a timeout of {timeout} s took {took:.1f} s")
    return session, None


def _once_up(context: CheckContext, script: str, grace: float = 0.0) -> tuple[Session, ExecResult | None]:
    """The same with a script that says when it is up, and was by then."""
    for timeout in TIMEOUTS:
        session, result = _timed_out(context, timeout, script, grace=grace)
        if result is None or result.stdout:
            break
    else:
        raise Failed(f"nothing of what it wrote came back in {timeout:g} s")
    return session, result


@contextlib.contextmanager
def _may_end_the_session(context: CheckContext) -> Iterator[None]:
    """Where a provider fails closed, the loss of the session is a right answer to a tree that can't be ended surely."""
    try:
        yield
    except SandboxLost:
        if context.enforcement.kill_tree != "fail-closed":
            raise


def _is_dead(context: CheckContext, result: ExecResult | None) -> None:
    beat = context.project / "beat"
    found = settled(lambda: commands_of(context.marker), 3.0)
    # A box whose processes can't be seen from here is judged by the file alone.
    size = beat.stat().st_size if beat.exists() else 0
    time.sleep(0.25)
    growing = beat.exists() and beat.stat().st_size > size
    (context.project / "stop").touch()
    said = result is not None and result.survivors
    if not (found or growing or said):
        return
    seen = f"{len(found)} processes are alive, the file {'still grows' if growing else 'rests'}, survivors said: {said}"
    if context.enforcement.kill_tree == "best-effort":
        raise NotApplicable(
            f"killing the tree is best effort here ({context.enforcement.gaps.get('kill tree', '')}): {seen}"
        )
    raise Failed(seen)
