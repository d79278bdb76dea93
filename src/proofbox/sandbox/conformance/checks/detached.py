"""Sessions that outlive the process that made them: used and stopped by others, and ended by their own idle time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

from proofbox.core.interpreter import module_child
from proofbox.errors import SandboxLost, SessionUnknown
from proofbox.sandbox.conformance.check import DETACHED, Failed, ProviderChecks, expect
from proofbox.sandbox.conformance.checks.killing import BEAT
from proofbox.sandbox.conformance.checks.loss import SOON, find_agent
from proofbox.sandbox.conformance.context import PATIENCE, CheckContext, commands_of, settled

subject = ProviderChecks("detached")
check = subject.check

_DAEMON = '(setsid sh -c "$1" "$0" </dev/null >/dev/null 2>&1 &); until [ -s beat ]; do sleep 0.05; done'


@check(DETACHED)
def used_by_another_process(context: CheckContext) -> None:
    """Started by one process that ends, used by a second and by us, stopped by a third and by us again."""
    boxes = context.boxes
    id = _other(context, "start", "60")["id"]
    try:
        first = _other(context, "exec", id, "echo kept > /tmp/kept-$0; echo made > made; exit 3", context.marker)
        expect((first["exit_code"], first["provider"]) == (3, context.provider), f"another process was told {first}")
        expect((context.project / "made").exists(), "its project is another")
        script = "cat /tmp/kept-$0; rm -f /tmp/kept-$0"
        second = boxes.exec_in_session(id, ["sh", "-c", script, context.marker], timeout=PATIENCE)
        expect(second.stdout == "kept\n", f"the box did not keep its files between processes: {second.stderr!r}")
        expect(boxes.get_session(id).state == "running", "a running session is not called so")
        expect(id in [info.id for info in boxes.list_sessions()], "it is not listed")
    finally:
        stopped = _other(context, "stop", id)
    expect(stopped["state"] == "stopped", f"after stop its state is {stopped['state']}")
    again = boxes.stop_session(id)
    expect(again.state == "stopped", f"stopped twice its state is {again.state}")
    context.refused(SandboxLost, "a stopped session", boxes.exec_in_session, id, ["true"], timeout=3)
    expect(id in boxes.prune_sessions(), "prune does not forget it")
    context.refused(SessionUnknown, "a session that was forgotten", boxes.get_session, id)


@check(DETACHED)
def ended_by_its_idle_time(context: CheckContext) -> None:
    """After its time without anyone it ends by itself, with everything its commands left running."""
    id = _other(context, "start", "1", _DAEMON, context.marker, BEAT)["id"]
    # Looking may be using: each look begins its idle time anew. So first look at what its daemon writes.
    beat, state = context.project / "beat", "running"
    expect(beat.exists(), "its daemon never lived")
    first = last = beat.stat().st_size
    since = time.monotonic()
    end = since + PATIENCE
    while state == "running" and time.monotonic() < end:
        time.sleep(0.1)
        if (size := beat.stat().st_size) != last:
            last, since = size, time.monotonic()
        elif time.monotonic() - since > 1.5:
            state, since = context.boxes.get_session(id).state, time.monotonic()
    (context.project / "stop").touch()
    context.boxes.stop_session(id)
    expect(state != "running", f"{PATIENCE:g} s after its idle time of one it is still there")
    expect(last > first, "it did not outlive the process that started it")
    expect(state == "lost", f"its state is {state}")
    context.refused(SandboxLost, "an expired session", context.boxes.exec_in_session, id, ["true"], timeout=3)


@check(DETACHED)
def lost(context: CheckContext) -> None:
    """The agent of a detached session is killed: its users hear of it at once, and it can be stopped."""
    boxes = context.boxes
    id = _other(context, "start", "30")["id"]
    try:
        _other(context, "exec", id, _DAEMON, context.marker, BEAT)
        os.kill(find_agent(context, commands=1), signal.SIGKILL)
        settled(lambda: ["it"] if boxes.get_session(id).state == "running" else [], SOON)
        expect(boxes.get_session(id).state == "lost", f"its state is {boxes.get_session(id).state}")
        began = time.monotonic()
        context.refused(SandboxLost, "a lost session", boxes.exec_in_session, id, ["true"], timeout=3)
        expect(time.monotonic() - began < SOON, "the loss was not reported at once")
    finally:
        state = boxes.stop_session(id).state
    expect(state == "stopped", f"after stop its state is {state}")
    left = settled(lambda: commands_of(context.marker))
    (context.project / "stop").touch()
    if left and context.enforcement.kill_tree != "best-effort":
        raise Failed("a command of the lost session lives on after it was stopped")


def _other(context: CheckContext, what: str, *args: str) -> dict[str, Any]:
    child = module_child(
        "proofbox.sandbox.conformance.checks.client", str(context.project), context.provider, what, *args
    )
    done = subprocess.run(
        child.argv,
        cwd=child.cwd,
        env=child.env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"another process could not {what}: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
