"""Checks of turns: they run, report their events, and end correctly."""

from __future__ import annotations

import anyio

from proofbox.agents.conformance.context import RuntimeCheckContext, RuntimeChecks
from proofbox.agents.conformance.rig import Fail, ReportUsage, Run, Say, WriteGarbage
from proofbox.agents.events import Event, Integrity, Notice, ToolCall, TurnStarted, Unrecognized
from proofbox.errors import ListenerFailed, ProofboxError, UsageError
from proofbox.sandbox.conformance.check import Failed, NotApplicable, expect

subject = RuntimeChecks("turns")


@subject.check()
async def a_turn_runs_its_command(context: RuntimeCheckContext) -> None:
    """Smoke test: a command runs in the workspace, and the final message is the agent's last message."""
    for _ in range(2):
        async with context.session([Run("echo made > made.txt"), Say("it is made")]) as observed:
            result = await observed.turn(await observed.session.start_thread(), "make it")
            expect(result.status == "completed", f"status {result.status}: {result.error}")
            expect(result.error is None, "a completed turn has an error")
            expect("it is made" in result.final_message, f"the final message is {result.final_message!r}")
            expect(result.duration_ms > 0, "the turn took no time")
            started = observed.of(TurnStarted, result.turn)
            expect(len(started) == 1, f"{len(started)} beginnings")
        made = context.workspace / "made.txt"
        expect(made.is_file() and made.read_text() == "made\n", "the command did not run in the workspace")
        made.unlink()


@subject.check()
async def tool_calls_are_counted_once(context: RuntimeCheckContext) -> None:
    """Each tool call is reported once, with its exit code, output and duration; nothing else counts as a call."""
    commands = ("echo one; exit 0", "echo two; exit 7", "echo three")
    async with context.session([*(Run(command) for command in commands), Say("done")]) as observed:
        result = await observed.turn(await observed.session.start_thread(), "run them")
        calls = observed.of(ToolCall, result.turn)
    if not calls and not context.runtime.capabilities.supports_event_stream:
        raise NotApplicable("the runtime does not report its tool calls")
    expect(len(calls) == 3, f"{len(calls)} tool calls for three commands")
    expect([call.exit_code for call in calls] == [0, 7, 0], f"exit codes {[call.exit_code for call in calls]}")
    expect(
        [call.status for call in calls] == ["completed", "failed", "completed"],
        "the statuses do not match the commands",
    )
    expect(len({call.item for call in calls}) == 3, "two calls share an item id")
    for call, command, word in zip(calls, commands, ("one", "two", "three"), strict=True):
        expect(command in call.command, f"the command line is {call.command!r}")
        expect(word in call.output, f"the output is {call.output!r}")
    expect(result.status == "completed", "a failed command failed the turn")


@subject.check()
async def failed_turn_is_reported_as_failed(context: RuntimeCheckContext) -> None:
    """A failed turn is reported as failed, even if the agent sent a message before."""
    async with context.session([Say("all is well"), Fail()]) as observed:
        result = await observed.turn(await observed.session.start_thread(), "fail")
        expect(result.status == "failed", f"status {result.status}")
        expect(result.error is not None and result.error.code.startswith("RUNTIME_"), f"error {result.error}")


@subject.check()
async def malformed_output_does_not_end_the_turn(context: RuntimeCheckContext) -> None:
    """Malformed output is kept, does not count as a tool call, and does not end the turn."""
    async with context.session([WriteGarbage(), Say("still here")]) as observed:
        result = await observed.turn(await observed.session.start_thread(), "babble")
        expect(result.status == "completed", f"status {result.status}: {result.error}")
        expect("still here" in result.final_message, f"the final message is {result.final_message!r}")
        expect(not observed.of(ToolCall), "garbage was taken for a tool call")
        kept = [*observed.of(Unrecognized), *observed.of(Integrity), *observed.of(Notice)]
        expect(kept, "the garbage was not reported")


@subject.check()
async def token_usage_is_reported(context: RuntimeCheckContext) -> None:
    if not context.runtime.capabilities.supports_token_usage:
        raise NotApplicable(f"{context.runtime.id} does not report its token usage")
    async with context.session([ReportUsage(120, 30), Say("done")]) as observed:
        result = await observed.turn(await observed.session.start_thread(), "spend")
        used = result.usage
        seen = (used.input_tokens, used.output_tokens) if used is not None else None
        expect(seen == (120, 30), f"tokens {seen} instead of (120, 30)")


@subject.check()
async def failing_listener_fails_the_turn(context: RuntimeCheckContext) -> None:
    """A failed listener fails the turn, because its record is incomplete; other listeners keep receiving events."""
    async with context.session([Run("true"), Say("done")]) as observed:

        async def fail(event: Event) -> None:
            if isinstance(event, TurnStarted):
                raise OSError("the disk is full")

        observed.session.add_listener(fail)
        result = await observed.turn(await observed.session.start_thread(), "go")
        expect(result.status == "failed", f"status {result.status}")
        expect(isinstance(result.error, ListenerFailed), f"error {result.error!r}")


@subject.check()
async def removed_listener_receives_no_events(context: RuntimeCheckContext) -> None:
    heard: list[Event] = []

    async def record(event: Event) -> None:
        heard.append(event)

    async with context.session([Say("done")]) as observed:
        number = observed.session.add_listener(record)
        thread = await observed.session.start_thread()
        await observed.turn(thread, "once")
        before = len(heard)
        expect(before > 0, "the listener received no events")
        observed.session.remove_listener(number)
        observed.session.remove_listener(number)
        await observed.turn(thread, "twice")
        expect(len(heard) == before, "a removed listener still received events")


@subject.check()
async def second_turn_in_a_thread_is_refused(context: RuntimeCheckContext) -> None:
    """A second turn in the same thread is refused, and does not affect the first."""
    async with context.session([Run("until [ -e go ]; do sleep 0.05; done"), Say("done")]) as observed:
        thread = await observed.session.start_thread()
        first = await observed.session.start_turn(thread, "first")
        try:
            await observed.session.start_turn(thread, "second")
        except ProofboxError as error:
            expect(error.message, "the error has no message")
        else:
            raise Failed("a second turn was started")
        (context.workspace / "go").touch()
        result = await observed.session.wait_turn(first)
        expect(result.status == "completed", f"the first turn is {result.status}: {result.error}")


@subject.check()
async def unknown_ids_are_refused(context: RuntimeCheckContext) -> None:
    async with context.session([Say("done")]) as observed:
        session = observed.session
        for what, attempt in (
            ("a turn in an unknown thread", session.start_turn("no-such-thread", "go")),
            ("waiting for an unknown turn", session.wait_turn("no-such-turn")),
            ("interrupting an unknown turn", session.interrupt_turn("no-such-thread", "no-such-turn")),
        ):
            with anyio.fail_after(context.timeout):
                try:
                    await attempt
                except ProofboxError as error:
                    expect(error.message, f"{what}: the error has no message")
                else:
                    raise Failed(f"{what} was accepted")


@subject.check()
async def unknown_settings_are_refused(context: RuntimeCheckContext) -> None:
    try:
        await context.runtime.probe({"no_such_setting": 1})
    except UsageError as error:
        expect("no_such_setting" in error.message, "the error does not name the setting")
    else:
        raise Failed("an unknown setting was accepted")
