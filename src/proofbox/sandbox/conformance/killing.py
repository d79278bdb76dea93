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
from proofbox.sandbox.conformance.check import NOTHING, Failed, NotApplicable, Subject, expect
from proofbox.sandbox.conformance.context import Context, commands_of, settled
from proofbox.sandbox.contract import ExecResult
from proofbox.sandbox.service import Session

subject = Subject("killing")
check = subject.check

BEAT = 'n=0; while [ "$n" -lt 400 ] && [ ! -e stop ]; do echo x >> beat; n=$((n+1)); sleep 0.03; done'
# Each generation starts the next and ends: whoever lists processes and kills what it listed always comes too late.
HOP = 'echo x >> beat; [ "$2" -lt 5000 ] && [ ! -e stop ] && { sh -c "$1" "$0" "$1" $(($2+1)) & }'

ESCAPEES = {
    "backgrounded": 'sh -c "$1" "$0" & wait',
    "own-session": 'setsid sh -c "$1" "$0" </dev/null >/dev/null 2>&1 & sleep 30',
    "daemon": '(setsid sh -c \'(sh -c "$1" "$0" &) &\' "$0" "$1" </dev/null >/dev/null 2>&1 &); sleep 30',
    "fork-hopping": 'setsid sh -c "$1" "$0" "$1" 0 </dev/null >/dev/null 2>&1; sleep 30',
    "pipe-holder": '(setsid sh -c \'(sh -c "$1" "$0" &) &\' "$0" "$1" &); sleep 30',
}


def _escapee(name: str, script: str) -> None:
    def run(context: Context) -> None:
        work = HOP if name == "fork-hopping" else BEAT
        beat = context.project / "beat"
        for timeout in (0.4, 3.0):  # the longer one for a machine so busy that nothing came to life in the shorter
            session = context.session()
            began = time.monotonic()
            result: ExecResult | None = None
            with _may_end_the_session(context):
                result = context.sh(session, script, work, timeout=timeout)
            took = time.monotonic() - began
            if result is not None:
                ended = f"exit {result.exit_code}, timed_out {result.timed_out}"
                expect(result.timed_out and result.exit_code == 124, f"it came back as {ended}")
            expect(took < timeout + 4, f"a timeout of {timeout} s took {took:.1f} s")
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
def timeout_is_said(context: Context) -> None:
    session = context.session()
    with _may_end_the_session(context):
        result = context.sh(session, "echo before; sleep 30", timeout=0.3)
        expect(result.timed_out, "timed_out is not set")
        expect(result.exit_code == 124, f"the exit code is {result.exit_code}")
        expect(result.stdout == "before\n", f"what was written before is {result.stdout!r}")
        expect(250 < result.duration_ms < 4000, f"duration_ms is {result.duration_ms}")
        expect(not result.survivors, "survivors are reported for a plain sleep")
        quick = context.sh(session, "exit 5", timeout=5)
        expect(not quick.timed_out and quick.exit_code == 5, "a command within its timeout is called timed out")


@check()
def grace_before_the_kill(context: Context) -> None:
    """SIGTERM first where a grace is given; who obeys is still called timed out, who ignores it is killed."""
    session = context.session()
    with _may_end_the_session(context):
        result = context.sh(session, "trap 'echo bye; exit 7' TERM; echo up; sleep 30 & wait", timeout=0.6, grace=5)
        expect(result.timed_out and result.exit_code == 124, f"who obeyed came back as {result.exit_code}")
        expect("bye" in result.stdout, f"it had no time to say goodbye: {result.stdout!r}")
        expect(result.duration_ms < 4000, f"the grace was waited for although it had obeyed: {result.duration_ms} ms")
    if not _running(session):
        session = context.session()
    with _may_end_the_session(context):
        result = context.sh(session, "trap '' TERM; sleep 30 & sleep 30", timeout=0.2, grace=0.3)
        expect(result.timed_out, "who ignored SIGTERM came back without timed_out")
        expect(400 < result.duration_ms < 4000, f"duration_ms is {result.duration_ms}")


@check()
def only_its_own_tree(context: Context) -> None:
    """What an earlier command left running on purpose outlives a later command's timeout."""
    session = context.session()
    context.sh(session, 'sh -c "$1" "$0" </dev/null >/dev/null 2>&1 &', BEAT)
    with _may_end_the_session(context):
        context.sh(session, "sleep 30", timeout=0.2)
        beat = context.project / "beat"
        settled(lambda: [] if beat.exists() else ["none yet"])
        before = beat.stat().st_size
        time.sleep(0.3)
        expect(beat.stat().st_size > before, "a timeout killed a neighbour's child")
    (context.project / "stop").touch()


@check()
def the_end_of_a_box(context: Context) -> None:
    """Stopping a session ends what its commands left, and does not wait for it."""
    session = context.session()
    context.sh(session, ESCAPEES["daemon"].replace("sleep 30", "sleep 0.2"), BEAT)
    expect((context.project / "beat").exists(), "the daemon never lived")
    began = time.monotonic()
    session.stop()
    took = time.monotonic() - began
    expect(took < 2, f"stopping took {took:.1f} s: it waited for an orphan")
    _is_dead(context, None)
    session.stop()


@check()
def abandoned_by_its_caller(context: Context) -> None:
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


@contextlib.contextmanager
def _may_end_the_session(context: Context) -> Iterator[None]:
    """Where a provider fails closed, the loss of the session is a right answer to a tree that can't be ended surely."""
    try:
        yield
    except SandboxLost:
        if context.enforcement.kill_tree != "fail-closed":
            raise


def _running(session: Session) -> bool:
    with contextlib.suppress(SandboxLost):
        return session.exec(["true"], timeout=5).exit_code == 0
    return False


def _is_dead(context: Context, result: ExecResult | None) -> None:
    beat = context.project / "beat"
    found = settled(lambda: commands_of(context.marker), 0.3)
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
