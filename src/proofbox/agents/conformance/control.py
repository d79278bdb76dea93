"""Checks of turns in progress: interrupt, steering, stall, and concurrent turns."""

from __future__ import annotations

import anyio

from proofbox.agents.conformance.context import ObservedSession, RuntimeCheckContext, RuntimeChecks
from proofbox.agents.conformance.rig import Hang, Recall, ReportSteering, Run, Say, Scene
from proofbox.agents.contract import TurnResult
from proofbox.agents.events import Message, ToolCall
from proofbox.errors import RuntimeStalled, TurnInterrupted
from proofbox.sandbox.conformance.check import NotApplicable, expect

subject = RuntimeChecks("control")


@subject.check()
async def interrupt_kills_the_command_and_ends_the_turn(context: RuntimeCheckContext) -> None:
    """An interrupt kills a long command before the end of the turn is reported; the thread stays usable."""
    async with context.session([Run(context.long_command), Say("never")], [Say("again")]) as observed:
        thread = await observed.session.start_thread()
        turn = await observed.session.start_turn(thread, "sleep")
        if await context.lacks("supports_interrupt", lambda: observed.session.interrupt_turn(thread, turn)):
            return
        await observed.until(context.long_command_runs, "the command")
        with anyio.fail_after(context.timeout):
            await observed.session.interrupt_turn(thread, turn)
            result = await observed.session.wait_turn(turn)
        expect(result.status == "interrupted", f"status {result.status}: {result.error}")
        expect(isinstance(result.error, TurnInterrupted), f"error {result.error!r}")
        await observed.until(lambda: not context.alive(context.marker), "the end of its command")
        expect("never" not in result.final_message, "the turn continued after the interrupt")
        await observed.session.interrupt_turn(thread, turn)  # no effect on a turn that has ended
        result = await observed.turn(thread, "again")
        expect(result.status == "completed", f"the next turn is {result.status}: {result.error}")


@subject.check()
async def steering_reaches_the_agent(context: RuntimeCheckContext) -> None:
    async with context.session([Run("true"), ReportSteering(), Recall()]) as observed:
        thread = await observed.session.start_thread()
        turn = await observed.session.start_turn(thread, "first words")
        if await context.lacks("supports_turn_steer", lambda: observed.session.steer_turn(thread, turn, "x")):
            return
        await observed.until(lambda: bool(observed.of(ToolCall, turn)), "the first command's end")
        await observed.session.steer_turn(thread, turn, "second words")
        result = await observed.session.wait_turn(turn)
        expect(result.status == "completed", f"status {result.status}: {result.error}")
        said = result.final_message
        expect("first words" in said and "second words" in said, f"it should repeat both texts, but says {said!r}")


@subject.check()
async def stalled_turn_is_ended(context: RuntimeCheckContext) -> None:
    """A turn without activity ends as stalled."""
    async with context.session([Hang()], stall_timeout=1.0) as observed:
        with anyio.fail_after(context.timeout):
            result = await observed.turn(await observed.session.start_thread(), "hang")
        expect(result.status == "failed", f"status {result.status}")
        expect(isinstance(result.error, RuntimeStalled), f"error {result.error!r}")


@subject.check(seconds=120)
async def parallel_sessions_do_not_mix(context: RuntimeCheckContext) -> None:
    """Each session reports only its own turn, and an interrupt affects only one session."""
    if not context.runtime.capabilities.supports_parallel_sessions:
        raise NotApplicable(f"{context.runtime.id} supports only one session at a time")
    results: dict[int, tuple[TurnResult, ObservedSession]] = {}

    async def one(number: int) -> None:
        words = f"word-{number}"
        scene: Scene = [Run(f"echo {words} > file-{number}"), Say(f"{words} is said")]
        async with context.session(scene, home=f"home-{number}") as observed:
            results[number] = (await observed.turn(await observed.session.start_thread(), f"say {words}"), observed)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(one, number)
    expect(len({observed.session.id for _, observed in results.values()}) == 4, "two sessions have the same id")
    for number, (result, observed) in results.items():
        expect(result.status == "completed", f"session {number}: {result.status}: {result.error}")
        words = " ".join(
            [call.command for call in observed.of(ToolCall)] + [said.text for said in observed.of(Message)]
        )
        others = [other for other in results if other != number and f"word-{other}" in words]
        expect(not others, f"session {number} received the events of {others}")
        expect((context.workspace / f"file-{number}").is_file(), f"session {number} did nothing")


@subject.check(seconds=120)
async def threads_of_a_session_do_not_mix(context: RuntimeCheckContext) -> None:
    async with context.session([Run("sleep 0.2"), Recall()]) as observed:
        results: dict[int, TurnResult] = {}

        async def one(number: int) -> None:
            results[number] = await observed.turn(
                await observed.session.start_thread(), f"my word is {number}{number}{number}"
            )

        async with anyio.create_task_group() as tasks:
            for number in range(1, 4):
                tasks.start_soon(one, number)
        for number, result in results.items():
            expect(result.status == "completed", f"thread {number}: {result.status}: {result.error}")
            said = result.final_message
            expect(f"{number}{number}{number}" in said, f"thread {number} says {said!r}")
            others = [other for other in results if other != number and f"{other}{other}{other}" in said]
            expect(not others, f"thread {number} knows of {others}")
