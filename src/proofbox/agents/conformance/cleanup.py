"""Checks of the end of a session: nothing may be left behind. The context verifies that after each check."""

from __future__ import annotations

import anyio

from proofbox.agents.conformance.context import RuntimeCheckContext, RuntimeChecks
from proofbox.agents.conformance.rig import Hang, Run, Say
from proofbox.agents.events import ItemStarted, ToolCall, TurnEnded
from proofbox.errors import ProofboxError
from proofbox.sandbox.conformance.check import Failed, expect

subject = RuntimeChecks("cleanup")


@subject.check()
async def close_ends_the_turn_in_progress(context: RuntimeCheckContext) -> None:
    """Closing a session ends its turn, reports the end, and wakes the waiting callers."""
    async with context.session([Run(context.long_command), Say("never")]) as observed:
        turn = await observed.session.start_turn(await observed.session.start_thread(), "sleep")
        await observed.until(context.long_command_runs, "the command")
    with anyio.fail_after(context.timeout):
        result = await observed.session.wait_turn(turn)
    expect(result.status != "completed", "an aborted turn was reported as completed")
    expect(len(observed.of(TurnEnded, turn)) == 1, "the end was not reported exactly once")
    await observed.until(lambda: not context.alive(context.marker), "the end of its command")


@subject.check()
async def close_kills_daemons(context: RuntimeCheckContext) -> None:
    """Closing a session kills processes that left their process group and their parent."""
    daemon = f"(setsid sleep 300 {context.marker} >/dev/null 2>&1 &) ; (setsid sh -c 'sleep 300; : {context.marker}' &)"
    async with context.session([Run(f"{daemon} >/dev/null 2>&1; echo started"), Say("done")]) as observed:
        await observed.turn(await observed.session.start_thread(), "start it")
    await observed.until(lambda: not context.alive(context.marker), "the daemon's end")


@subject.check()
async def end_thread_kills_its_daemons(context: RuntimeCheckContext) -> None:
    """Ending a thread kills its daemon; the session and its other threads continue."""
    daemon = f"(setsid sleep 300 {context.marker} >/dev/null 2>&1 &)"
    async with context.session([Run(f"{daemon}; echo started")], [Say("still here")]) as observed:
        session = observed.session
        first = await session.start_thread()
        expect(session.owner_of(first) == first, f"a new thread belongs to {session.owner_of(first)!r}")
        expect(session.owner_of("no-such-thread") == "", "an unknown thread has an owner")
        await observed.turn(first, "start it")
        with anyio.fail_after(context.timeout):
            await session.end_thread(first)
        expect(not context.alive(context.marker), "the daemon outlived its thread")
        expect(session.broken is None, f"the session is broken: {session.broken}")
        await observed.turn(await session.start_thread(), "go on")
    expect(session.broken is not None, "a closed session is not broken")


@subject.check()
async def end_thread_interrupts_its_turn(context: RuntimeCheckContext) -> None:
    """Ending a thread interrupts its turn, and the turn's command is recorded."""
    async with context.session([Run(context.long_command), Say("never")]) as observed:
        thread = await observed.session.start_thread()
        turn = await observed.session.start_turn(thread, "sleep")
        await observed.until(context.long_command_runs, "the command")
        with anyio.fail_after(context.timeout):
            await observed.session.end_thread(thread)
            result = await observed.session.wait_turn(turn)
        expect(result.status == "interrupted", f"status {result.status}: {result.error}")
        await observed.until(lambda: not context.alive(context.marker), "the end of its command")
        begun = {event.item for event in observed.of(ItemStarted, turn) if event.command}
        expect(begun <= {call.item for call in observed.of(ToolCall, turn)}, "a call began but was not recorded")


@subject.check()
async def closed_session_refuses_calls(context: RuntimeCheckContext) -> None:
    async with context.session([Say("done")]) as observed:
        thread = await observed.session.start_thread()
    for attempt in (observed.session.start_thread(), observed.session.start_turn(thread, "go")):
        with anyio.fail_after(context.timeout):
            try:
                await attempt
            except ProofboxError:
                continue
        raise Failed("a closed session accepted the call")


@subject.check()
async def early_close_leaves_nothing_behind(context: RuntimeCheckContext) -> None:
    """Closing right after the start, and cancelling a turn, leave nothing behind."""
    async with context.session([Hang()]):
        pass
    with anyio.move_on_after(0.5):
        async with context.session([Hang()]) as observed:
            await observed.session.start_turn(await observed.session.start_thread(), "hang")
            await anyio.sleep(60)
