"""Checks of turns in progress: interrupt, steering, stall, and concurrent turns."""

from __future__ import annotations

import anyio

from proofbox.agents.conformance.context import Play, RuntimeCheckContext, RuntimeChecks
from proofbox.agents.conformance.rig import Hang, Hear, Recall, Run, Say, Scene
from proofbox.agents.contract import TurnResult
from proofbox.agents.events import Message, ToolCall
from proofbox.errors import RuntimeStalled, TurnInterrupted
from proofbox.sandbox.conformance.check import NotApplicable, expect

subject = RuntimeChecks("control")


@subject.check()
async def interrupt_ends_the_turn_and_its_command(context: RuntimeCheckContext) -> None:
    """An interrupt kills a long command before the end of the turn is reported; the thread stays usable."""
    async with context.playing([Run(context.long_command), Say("never")], [Say("again")]) as play:
        thread = await play.session.start_thread()
        turn = await play.session.start_turn(thread, "sleep")
        if await context.lacks("supports_interrupt", lambda: play.session.interrupt_turn(thread, turn)):
            return
        await play.until(context.long_command_runs, "the command")
        with anyio.fail_after(context.patience):
            await play.session.interrupt_turn(thread, turn)
            result = await play.session.wait_turn(turn)
        expect(result.status == "interrupted", f"status {result.status}: {result.error}")
        expect(isinstance(result.error, TurnInterrupted), f"error {result.error!r}")
        await play.until(lambda: not context.alive(context.marker), "the end of its command")
        expect("never" not in result.final_message, "the turn continued after the interrupt")
        await play.session.interrupt_turn(thread, turn)  # no effect on a turn that has ended
        result = await play.turn(thread, "again")
        expect(result.status == "completed", f"the next turn is {result.status}: {result.error}")


@subject.check()
async def steer_reaches_the_agent(context: RuntimeCheckContext) -> None:
    async with context.playing([Run("true"), Hear(), Recall()]) as play:
        thread = await play.session.start_thread()
        turn = await play.session.start_turn(thread, "first words")
        if await context.lacks("supports_turn_steer", lambda: play.session.steer_turn(thread, turn, "x")):
            return
        await play.until(lambda: bool(play.of(ToolCall, turn)), "the first command's end")
        await play.session.steer_turn(thread, turn, "second words")
        result = await play.session.wait_turn(turn)
        expect(result.status == "completed", f"status {result.status}: {result.error}")
        said = result.final_message
        expect("first words" in said and "second words" in said, f"it should repeat both texts, but says {said!r}")


@subject.check()
async def a_stalled_turn_is_ended(context: RuntimeCheckContext) -> None:
    """A turn without activity ends as stalled."""
    async with context.playing([Hang()], stall_timeout=1.0) as play:
        with anyio.fail_after(context.patience):
            result = await play.turn(await play.session.start_thread(), "hang")
        expect(result.status == "failed", f"status {result.status}")
        expect(isinstance(result.error, RuntimeStalled), f"error {result.error!r}")


@subject.check(seconds=120)
async def parallel_sessions_do_not_mix(context: RuntimeCheckContext) -> None:
    """Each session reports only its own turn, and an interrupt affects only one session."""
    if not context.runtime.capabilities.supports_parallel_sessions:
        raise NotApplicable(f"{context.runtime.id} supports only one session at a time")
    results: dict[int, tuple[TurnResult, Play]] = {}

    async def one(number: int) -> None:
        words = f"word-{number}"
        scene: Scene = [Run(f"echo {words} > file-{number}"), Say(f"{words} is said")]
        async with context.playing(scene, home=f"home-{number}") as play:
            results[number] = (await play.turn(await play.session.start_thread(), f"say {words}"), play)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(one, number)
    expect(len({play.session.id for _, play in results.values()}) == 4, "two sessions have the same id")
    for number, (result, play) in results.items():
        expect(result.status == "completed", f"session {number}: {result.status}: {result.error}")
        words = " ".join([call.command for call in play.of(ToolCall)] + [said.text for said in play.of(Message)])
        others = [other for other in results if other != number and f"word-{other}" in words]
        expect(not others, f"session {number} received the events of {others}")
        expect((context.workspace / f"file-{number}").is_file(), f"session {number} did nothing")


@subject.check(seconds=120)
async def threads_of_a_session_do_not_mix(context: RuntimeCheckContext) -> None:
    async with context.playing([Run("sleep 0.2"), Recall()]) as play:
        results: dict[int, TurnResult] = {}

        async def one(number: int) -> None:
            results[number] = await play.turn(await play.session.start_thread(), f"my word is {number}{number}{number}")

        async with anyio.create_task_group() as tasks:
            for number in range(1, 4):
                tasks.start_soon(one, number)
        for number, result in results.items():
            expect(result.status == "completed", f"thread {number}: {result.status}: {result.error}")
            said = result.final_message
            expect(f"{number}{number}{number}" in said, f"thread {number} says {said!r}")
            others = [other for other in results if other != number and f"{other}{other}{other}" in said]
            expect(not others, f"thread {number} knows of {others}")
