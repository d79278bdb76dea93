"""A box that dies is reported as lost, at once, and never as a command that failed."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from proofbox.errors import SandboxLost
from proofbox.sandbox.conformance.check import Failed, NotApplicable, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import PATIENCE, CheckContext, command_line, commands_of, parent, settled
from proofbox.sandbox.contract import ExecResult, Isolation
from proofbox.sandbox.service import Session

subject = ProviderChecks("loss")
check = subject.check

SOON = 5.0
"""Far below the patience of whoever waits for an answer, so that it was heard of, and not given up on."""


@check()
def under_commands(context: CheckContext) -> None:
    """The agent is killed from outside while three commands run: all three callers hear of it at once."""
    _needs_host_processes(context)
    session = context.session()
    context.alive(session)
    heard: list[float] = []

    def wait() -> None:
        try:
            result = context.sh(session, "sleep 60; exit 0", timeout=40)
        except SandboxLost as error:
            heard.append(time.monotonic())
            expect(error.code == "SANDBOX_LOST" and error.retryable, "the error is not the one for a loss")
            expect(error.details.get("provider") == context.provider, "the error does not name its provider")
            return
        raise Failed(f"a lost box came back as a command's exit {result.exit_code}")

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(wait) for _ in range(3)]
        agent = find_agent(context, commands=3)
        killed = time.monotonic()
        os.kill(agent, signal.SIGKILL)
        for one in waiting:
            one.result()
    took = max(heard) - killed
    expect(took < SOON, f"the loss was reported after {took:.2f} s")
    _and_then(context, session)


@check()
def between_commands(context: CheckContext) -> None:
    _needs_host_processes(context)
    session = context.session()
    agent = _agent_of_idle(context, session)
    os.kill(agent, signal.SIGKILL)
    began = time.monotonic()
    context.refused(SandboxLost, "a command in a box that had died", context.sh, session, "true")
    took = time.monotonic() - began
    expect(took < SOON, f"the loss was reported after {took:.2f} s")
    _and_then(context, session)


@check()
def stopped_under_a_command(context: CheckContext) -> None:
    """Another thread stops the session: the one that waits in it hears of it, and does not wait for ever."""
    session = context.session()
    up = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        script = "echo up; sleep 60; exit 0"
        waiting = pool.submit(context.sh, session, script, timeout=40, on_output=lambda _: up.set())
        expect(up.wait(PATIENCE), f"a command that says something at once was not heard in {PATIENCE:g} s")
        began = time.monotonic()
        session.stop()
        stopped = time.monotonic() - began
        try:
            result: ExecResult | None = waiting.result(timeout=20)
        except SandboxLost:
            result = None
        took = time.monotonic() - began
    expect(result is None, "a command whose box was stopped came back with a result")
    expect(stopped < 10, f"stopping took {stopped:.1f} s")
    expect(took < 10, f"the waiting caller heard of it after {took:.1f} s")


@check()
def stopped_twice(context: CheckContext) -> None:
    session = context.session()
    context.alive(session)
    session.stop()
    session.stop()
    expect(session.info.state == "stopped", f"its state is {session.info.state}")
    context.refused(SandboxLost, "a command in a stopped session", session.exec, ["true"], timeout=3)


def _needs_host_processes(context: CheckContext) -> None:
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        raise NotApplicable("the processes of a sandboxed kernel are not the host's: none can be killed from here")


def find_agent(context: CheckContext, commands: int) -> int:
    """The pid, on this host, of the box agent above running commands that bear our marker.

    Their scripts go on after what they wait for: some shells let the last command take their own place.
    """
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        raise NotApplicable(
            "the processes of a sandboxed kernel are not the host's: none of them can be killed from here"
        )
    end = time.monotonic() + PATIENCE
    while len(found := _of_commands(context)) < commands:
        if time.monotonic() > end:
            raise NotChecked("the box's processes can't be seen from the host")
        time.sleep(0.02)
    agent, above = 0, parent(found[0])
    while above > 1:
        if "boxagent" in command_line(above).split(" ")[0]:
            agent = above
        above = parent(above)
    if not agent:
        raise NotChecked("no box agent is above the command, as far as can be seen from the host")
    if os.geteuid() != 0 and os.stat(f"/proc/{agent}").st_uid not in (0, os.geteuid()):
        raise NotChecked("the box agent belongs to another user, and can't be killed")
    return agent


def _of_commands(context: CheckContext) -> list[int]:
    """The shells we started in the box; their children (sleep) don't bear the marker."""
    return commands_of(context.marker)


def _agent_of_idle(context: CheckContext, session: Session) -> int:
    seen = context.project / "seen"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(context.sh, session, "until [ -e seen ]; do sleep 0.05; done; exit 0")
        try:
            agent = find_agent(context, commands=1)
        finally:
            seen.touch()
        waiting.result()
    return agent


def _and_then(context: CheckContext, session: Session) -> None:
    """After a loss: the next command says it again, stopping works, and nothing is left."""
    again = time.monotonic()
    context.refused(SandboxLost, "the next command after a loss", session.exec, ["true"], timeout=3)
    expect(time.monotonic() - again < SOON, "the second report took long")
    began = time.monotonic()
    session.stop()
    expect(time.monotonic() - began < 10, f"stopping what was lost took {time.monotonic() - began:.1f} s")
    left = settled(lambda: _of_commands(context), SOON)
    if left and context.enforcement.kill_tree != "best-effort":
        raise Failed(f"commands of the lost box live on: {[command_line(pid) for pid in left]}")
