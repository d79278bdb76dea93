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
async def resume_goes_on_where_it_was(context: RuntimeCheckContext) -> None:
    """A resumed thread remembers its prompts in another session with the same home."""
    async with context.playing(*SCENES) as play:
        thread = await play.session.start_thread()
        await play.turn(thread, "apples")
        await play.turn(thread, "pears")
        if await context.lacks("supports_thread_resume", lambda: play.session.resume_thread(thread)):
            return
    async with context.playing(*SCENES) as play:
        resumed = await play.session.resume_thread(thread)
        expect(resumed == thread, f"it resumed {resumed}, not {thread}")
        expect([event.origin for event in play.of(ThreadStarted)] == ["resume"], "the resumption was not reported")
        message = (await play.turn(thread, "plums")).final_message
        expect(all(word in message for word in ("apples", "pears", "plums")), f"it remembers {message!r}")


@subject.check()
async def fork_has_the_history_up_to_its_turn(context: RuntimeCheckContext) -> None:
    """A fork has the history up to its turn, and does not change the original thread."""
    async with context.playing(*SCENES) as play:
        thread = await play.session.start_thread()
        first = await play.turn(thread, "apples")
        await play.turn(thread, "pears")
        if await context.lacks("supports_thread_fork", lambda: play.session.fork_thread(thread, first.turn)):
            return
    # The fork's second turn plays the third or a later scene, so that both threads recall.
    async with context.playing([Say("one")], [Recall()], [Recall()]) as play:
        forked = await play.session.fork_thread(thread, first.turn)
        expect(forked != thread, "the fork has the id of the original thread")
        message = (await play.turn(forked, "plums")).final_message
        expect("apples" in message and "plums" in message, f"the fork remembers {message!r}")
        expect("pears" not in message, "the fork remembers a later turn of the original thread")
        whole = await play.session.fork_thread(thread)
        message = (await play.turn(whole, "cherries")).final_message
        expect(
            all(word in message for word in ("apples", "pears", "cherries")), f"the whole fork remembers {message!r}"
        )
        expect("plums" not in message, "two forks share a history")


@subject.check()
async def a_thread_that_is_not_there_is_refused(context: RuntimeCheckContext) -> None:
    async with context.playing([Say("done")]) as play:
        for attempt in (play.session.resume_thread("no-such-thread"), play.session.fork_thread("../../etc/passwd")):
            try:
                await attempt
            except ProofboxError as error:
                expect(error.message, "the error has no message")
            else:
                raise Failed("an unknown thread was accepted")
