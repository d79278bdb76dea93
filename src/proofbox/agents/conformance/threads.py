"""Checks of threads: memory, resuming and forking."""

from __future__ import annotations

from proofbox.agents.conformance.context import RuntimeCheckContext, RuntimeChecks
from proofbox.agents.conformance.rig import Recall, Say
from proofbox.agents.events import ThreadStarted
from proofbox.errors import ProofboxError
from proofbox.sandbox.conformance.check import Failed, expect

subject = RuntimeChecks("threads")
SCENES = ([Say("one")], [Say("two")], [Recall()], [Recall()])


@subject.check()
async def resumed_thread_keeps_its_history(context: RuntimeCheckContext) -> None:
    """A resumed thread remembers its prompts in another session with the same home."""
    async with context.session(*SCENES) as observed:
        thread = await observed.session.start_thread()
        await observed.turn(thread, "apples")
        await observed.turn(thread, "pears")
        if await context.lacks("supports_thread_resume", lambda: observed.session.resume_thread(thread)):
            return
    async with context.session(*SCENES) as observed:
        resumed = await observed.session.resume_thread(thread)
        expect(resumed == thread, f"it resumed {resumed}, not {thread}")
        expect([event.origin for event in observed.of(ThreadStarted)] == ["resume"], "the resumption was not reported")
        message = (await observed.turn(thread, "plums")).final_message
        expect(all(word in message for word in ("apples", "pears", "plums")), f"it remembers {message!r}")


@subject.check()
async def forked_thread_has_the_history_up_to_its_turn(context: RuntimeCheckContext) -> None:
    """A fork has the history up to its turn, and does not change the original thread."""
    async with context.session(*SCENES) as observed:
        thread = await observed.session.start_thread()
        first = await observed.turn(thread, "apples")
        await observed.turn(thread, "pears")
        if await context.lacks("supports_thread_fork", lambda: observed.session.fork_thread(thread, first.turn)):
            return
    # The fork's second turn plays the third or a later scene, so that both threads recall.
    async with context.session([Say("one")], [Recall()], [Recall()]) as observed:
        forked = await observed.session.fork_thread(thread, first.turn)
        expect(forked != thread, "the fork has the id of the original thread")
        message = (await observed.turn(forked, "plums")).final_message
        expect("apples" in message and "plums" in message, f"the fork remembers {message!r}")
        expect("pears" not in message, "the fork remembers a later turn of the original thread")
        whole = await observed.session.fork_thread(thread)
        message = (await observed.turn(whole, "cherries")).final_message
        expect(
            all(word in message for word in ("apples", "pears", "cherries")), f"the whole fork remembers {message!r}"
        )
        expect("plums" not in message, "two forks share a history")


@subject.check()
async def unknown_thread_is_refused(context: RuntimeCheckContext) -> None:
    async with context.session([Say("done")]) as observed:
        for attempt in (
            observed.session.resume_thread("no-such-thread"),
            observed.session.fork_thread("../../etc/passwd"),
        ):
            try:
                await attempt
            except ProofboxError as error:
                expect(error.message, "the error has no message")
            else:
                raise Failed("an unknown thread was accepted")
