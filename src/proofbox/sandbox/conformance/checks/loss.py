"""A box that dies is reported as lost immediately, and never as a failed command."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from proofbox.errors import SandboxLost
from proofbox.sandbox.conformance.check import Failed, NotApplicable, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import (
    COMMAND_TIMEOUT,
    CheckContext,
    command_line,
    commands_of,
    parent,
    processes_with,
    settled,
)
from proofbox.sandbox.contract import ExecResult, Isolation
from proofbox.sandbox.service import Session

subject = ProviderChecks("loss")
check = subject.check

LOSS_TIMEOUT = 5.0
"""Far below the commands' timeouts, so that a loss reported within this time was detected and is not a timeout."""


@check()
def during_commands(context: CheckContext) -> None:
    """When the agent is killed from outside while three commands run, all three callers get the error immediately."""
    _needs_host_processes(context)
    session = context.session()
    context.alive(session)
    reported: list[float] = []

    def wait() -> None:
        try:
            result = context.sh(session, "sleep 60; exit 0", timeout=40)
        except SandboxLost as error:
            reported.append(time.monotonic())
            expect(
                error.code == "SANDBOX_LOST" and error.retryable,
                f"the error is {error.code} with retryable={error.retryable}",
            )
            expect(error.details.get("provider") == context.provider, "the error does not name its provider")
            return
        raise Failed(f"the loss of the box was reported as exit code {result.exit_code} of the command")

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(wait) for _ in range(3)]
        agent = find_agent(context, commands=3)
        killed = time.monotonic()
        os.kill(agent, signal.SIGKILL)
        for one in waiting:
            one.result()
    took = max(reported) - killed
    expect(took < LOSS_TIMEOUT, f"the loss was reported after {took:.2f} s")
    _expect_lost(context, session)


@check()
def between_commands(context: CheckContext) -> None:
    _needs_host_processes(context)
    session = context.session()
    agent = _find_agent_of_idle(context, session)
    os.kill(agent, signal.SIGKILL)
    began = time.monotonic()
    context.refused(SandboxLost, "a command in a dead box", context.sh, session, "true")
    took = time.monotonic() - began
    expect(took < LOSS_TIMEOUT, f"the loss was reported after {took:.2f} s")
    _expect_lost(context, session)


@check()
def stopped_during_a_command(context: CheckContext) -> None:
    """When another thread stops the session, a thread that waits for a command gets an error and does not hang."""
    session = context.session()
    started = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        script = "echo up; sleep 60; exit 0"
        waiting = pool.submit(context.sh, session, script, timeout=40, on_output=lambda _: started.set())
        expect(
            started.wait(COMMAND_TIMEOUT), f"the first output of a command did not arrive within {COMMAND_TIMEOUT:g} s"
        )
        began = time.monotonic()
        session.stop()
        stopped = time.monotonic() - began
        try:
            result: ExecResult | None = waiting.result(timeout=20)
        except SandboxLost:
            result = None
        took = time.monotonic() - began
    expect(result is None, "a command returned a result although its box was stopped")
    expect(stopped < 10, f"stopping took {stopped:.1f} s")
    expect(took < 10, f"the waiting caller got the error after {took:.1f} s")


@check()
def stopped_twice(context: CheckContext) -> None:
    session = context.session()
    context.alive(session)
    session.stop()
    session.stop()
    expect(session.info.state == "stopped", f"the session's state is {session.info.state}")
    context.refused(SandboxLost, "a command in a stopped session", session.exec, ["true"], timeout=3)


def _needs_host_processes(context: CheckContext) -> None:
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        raise NotApplicable("the processes of a sandboxed kernel are not processes of the host")


def find_agent(context: CheckContext, commands: int) -> int:
    """Return the host pid of the box agent, found as an ancestor of running commands with our marker.

    The commands' scripts must not end with the program that they wait for: some shells exec the last command. The agent
    of a virtual machine is in the guest: this returns the process that runs the machine.
    """
    _needs_host_processes(context)
    if context.isolation is Isolation.VM:
        for pid in processes_with(context.marker) if os.path.isdir("/proc") else ():  # in the path of its project
            if os.path.basename(command_line(pid).split(" ")[0]) == "boxvm":
                return pid
        raise NotChecked("the process of the machine is not visible on the host")
    end = time.monotonic() + COMMAND_TIMEOUT
    # The shells that the check started; their children (sleep) don't have the marker.
    while len(found := commands_of(context.marker)) < commands:
        if time.monotonic() > end:
            raise NotChecked("the box's processes are not visible on the host")
        time.sleep(0.02)
    agent, above = 0, parent(found[0])
    while above > 1:
        if "boxagent" in command_line(above).split(" ")[0]:
            agent = above
        above = parent(above)
    if not agent:
        raise NotChecked("the command has no ancestor on the host that is a box agent")
    if os.geteuid() != 0 and os.stat(f"/proc/{agent}").st_uid not in (0, os.geteuid()):
        raise NotChecked("the box agent belongs to another user and can't be killed")
    return agent


def _find_agent_of_idle(context: CheckContext, session: Session) -> int:
    seen = context.project / "seen"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(context.sh, session, "until [ -e seen ]; do sleep 0.05; done; exit 0")
        try:
            agent = find_agent(context, commands=1)
        finally:
            seen.touch()
        waiting.result()
    return agent


def _expect_lost(context: CheckContext, session: Session) -> None:
    """After a loss, expect that the next command reports it again, that stopping works, and that no process is left."""
    again = time.monotonic()
    context.refused(SandboxLost, "the next command after a loss", session.exec, ["true"], timeout=3)
    expect(time.monotonic() - again < LOSS_TIMEOUT, f"the second report took longer than {LOSS_TIMEOUT:g} s")
    began = time.monotonic()
    session.stop()
    expect(time.monotonic() - began < 10, f"stopping the lost session took {time.monotonic() - began:.1f} s")
    seen = processes_with if context.isolation is Isolation.VM else commands_of
    left = settled(lambda: seen(context.marker), LOSS_TIMEOUT)
    if left and context.enforcement.kill_tree != "best-effort":
        raise Failed(f"commands of the lost box are still running: {[command_line(pid) for pid in left]}")
