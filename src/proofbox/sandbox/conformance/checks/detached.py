"""Detached sessions: they outlive the process that started them, other processes use and stop them, and they expire."""

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
from proofbox.sandbox.conformance.checks.loss import LOSS_TIMEOUT, find_agent
from proofbox.sandbox.conformance.context import COMMAND_TIMEOUT, CheckContext, commands_of, settled

subject = ProviderChecks("detached")
check = subject.check

_DAEMON = '(setsid sh -c "$1" "$0" </dev/null >/dev/null 2>&1 &); until [ -s beat ]; do sleep 0.05; done'


@check(DETACHED)
def used_by_another_process(context: CheckContext) -> None:
    """One process starts a session and ends; a second process and this one use it; a third and this one stop it."""
    boxes = context.boxes
    id = _run_client(context, "start", "60")["id"]
    try:
        first = _run_client(context, "exec", id, "echo kept > /tmp/kept-$0; echo made > made; exit 3", context.marker)
        expect((first["exit_code"], first["provider"]) == (3, context.provider), f"another process got {first}")
        expect((context.project / "made").exists(), "the session uses another project")
        script = "cat /tmp/kept-$0; rm -f /tmp/kept-$0"
        second = boxes.exec_in_session(id, ["sh", "-c", script, context.marker], timeout=COMMAND_TIMEOUT)
        expect(second.stdout == "kept\n", f"the box did not keep its files between processes: {second.stderr!r}")
        expect(boxes.get_session(id).state == "running", "the state of a running session is not `running`")
        expect(id in [info.id for info in boxes.list_sessions()], "the session is not listed")
    finally:
        stopped = _run_client(context, "stop", id)
    expect(stopped["state"] == "stopped", f"the state after stop is {stopped['state']}")
    again = boxes.stop_session(id)
    expect(again.state == "stopped", f"the state after a second stop is {again.state}")
    context.refused(SandboxLost, "a stopped session", boxes.exec_in_session, id, ["true"], timeout=3)
    expect(id in boxes.prune_sessions(), "prune does not remove the session")
    context.refused(SessionUnknown, "a pruned session", boxes.get_session, id)


@check(DETACHED)
def idle_timeout(context: CheckContext) -> None:
    """A session ends after its idle time, with everything that its commands left running."""
    id = _run_client(context, "start", "1", _DAEMON, context.marker, BEAT)["id"]
    # get_session() may count as use and restart the idle time, so first watch the file that the daemon writes.
    beat, state = context.project / "beat", "running"
    expect(beat.exists(), "the daemon never started")
    first = last = beat.stat().st_size
    since = time.monotonic()
    end = since + COMMAND_TIMEOUT
    while state == "running" and time.monotonic() < end:
        time.sleep(0.1)
        if (size := beat.stat().st_size) != last:
            last, since = size, time.monotonic()
        elif time.monotonic() - since > 1.5:
            state, since = context.boxes.get_session(id).state, time.monotonic()
    (context.project / "stop").touch()
    context.boxes.stop_session(id)
    expect(state != "running", f"the session with an idle time of 1 s is still running after {COMMAND_TIMEOUT:g} s")
    expect(last > first, "the session did not outlive the process that started it")
    expect(state == "lost", f"the session's state is {state}")
    context.refused(SandboxLost, "an expired session", context.boxes.exec_in_session, id, ["true"], timeout=3)


@check(DETACHED)
def lost(context: CheckContext) -> None:
    """When the agent of a detached session is killed, the loss is reported at once and the session can be stopped."""
    boxes = context.boxes
    id = _run_client(context, "start", "30")["id"]
    try:
        _run_client(context, "exec", id, _DAEMON, context.marker, BEAT)
        os.kill(find_agent(context, commands=1), signal.SIGKILL)
        settled(lambda: ["it"] if boxes.get_session(id).state == "running" else [], LOSS_TIMEOUT)
        expect(boxes.get_session(id).state == "lost", f"the session's state is {boxes.get_session(id).state}")
        began = time.monotonic()
        context.refused(SandboxLost, "a lost session", boxes.exec_in_session, id, ["true"], timeout=3)
        expect(time.monotonic() - began < LOSS_TIMEOUT, "the loss was not reported at once")
    finally:
        state = boxes.stop_session(id).state
    expect(state == "stopped", f"the state after stop is {state}")
    left = settled(lambda: commands_of(context.marker))
    (context.project / "stop").touch()
    if left and context.enforcement.kill_tree != "best-effort":
        raise Failed("a command of the lost session is still running after the session was stopped")


def _run_client(context: CheckContext, operation: str, *args: str) -> dict[str, Any]:
    child = module_child(
        "proofbox.sandbox.conformance.checks.client", str(context.project), context.provider, operation, *args
    )
    done = subprocess.run(
        child.argv,
        cwd=child.cwd,
        env=child.env,
        capture_output=True,
        text=True,
        timeout=context.patience(COMMAND_TIMEOUT),
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{operation} failed in another process: {done.stderr.strip().splitlines()[-1:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
