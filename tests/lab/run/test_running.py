"""A suite is run, resumed and read from Python: `run_suite`, `resume_suite`, `load_run` and their coroutines."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from async_parity import Ticker
from suites import HEAD, command, mission, patch_workers, say, serving_model, write

import proofbox
from proofbox.cli import main
from proofbox.errors import (
    ConsentRequired,
    RunInterrupted,
    StrategyUnavailable,
    StrategyUnsupported,
    SuiteInvalid,
    UsageError,
)
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.reports.suite_run import SuiteRun
from proofbox.lab.reports.validation import validate
from proofbox.lab.run import running
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.events import RunStarted, SuiteEvent
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import ledger_path
from proofbox.lab.suite import opening

pytestmark = pytest.mark.needs("bubblewrap")

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
WORKS = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER)
LIES = mission("lies", say("done"), verify=ANSWER)
WAITS = mission("waits", command("sleep 600"), verify=ANSWER)
LOOPS = ["asyncio", *(["trio"] if importlib.util.find_spec("trio") else [])]
PATIENCE = 60.0


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes a suite file into the current directory."""
    monkeypatch.chdir(tmp_path)

    def write_suite(missions: str) -> str:
        Path("suite.toml").write_text(HEAD + missions)
        return "suite.toml"

    return write_suite


def verdicts(run: SuiteRun) -> dict[str, tuple[str | None, str | None, str | None]]:
    return {each.attempt_id: (each.claimed, each.verified, each.infra) for each in run.attempts}


def test_run_returns_what_the_command_prints(spec: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    run = proofbox.run_suite(spec(WORKS + LIES), provider="bubblewrap")
    assert verdicts(run) == {"answer.1": ("success", "passed", None), "lies.1": ("success", "failed", None)}
    assert (run.ok, run.committed, run.error and run.error.code) == (False, True, "SUITE_NOT_PASSED")
    assert (run.totals.passed, run.totals.results) == (1, 2)
    assert all(Path(each.bundle, "artifact_index.json").exists() for each in run.attempts)
    assert proofbox.load_run() == proofbox.load_run(run.bundle) == run
    assert main(["suite", "report", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(run))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"concurrency": 0}, UsageError),
        ({"replicates": 0}, UsageError),
        ({"strategies": "no_such_strategy"}, StrategyUnsupported),
        ({"provider": "no-such-provider"}, proofbox.ProofboxError),
        ({"host_root": True}, UsageError),
        ({"out": ""}, UsageError),
        ({"concurency": 2}, TypeError),
    ],
)
def test_nothing_is_written_if_an_option_is_refused(
    spec: Callable[[str], str], options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        proofbox.run_suite(spec(WORKS), **options)
    assert sorted(path.name for path in Path().iterdir()) == ["suite.toml"]


def test_invalid_suite_raises_with_all_its_problems(spec: Callable[[str], str]) -> None:
    with pytest.raises(SuiteInvalid) as raised:
        proofbox.run_suite(spec('[[mission]]\nid = "a"\nprompt = "do it"\nunknown = 1\nother = 2\n'))
    assert len(raised.value.details["problems"]) == 2


def test_suite_that_asks_for_more_needs_trust(spec: Callable[[str], str]) -> None:
    asks = mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER, network="full")
    with pytest.raises(ConsentRequired):
        proofbox.run_suite(spec(asks), provider="bubblewrap")
    assert not Path("out").exists()
    assert proofbox.run_suite("suite.toml", provider="bubblewrap", trust=True).ok


def test_events_are_typed_and_arrive_one_at_a_time(spec: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    patch_workers(monkeypatch, r"""os.write(1, b'{"event": "unknown", "attempt_id": 3}\n')""")
    events: list[RunStarted | SuiteEvent] = []
    lock = threading.Lock()

    def hear(event: RunStarted | SuiteEvent) -> None:
        assert lock.acquire(blocking=False), "another call is still running"
        events.append(event)
        lock.release()

    run = proofbox.run_suite(spec(WORKS), replicates=4, provider="bubblewrap", on_event=hear)
    first, *changes = events
    assert first == RunStarted(run_id=run.run_id, bundle=run.bundle, attempts=4, ended=0)
    kinds = {"preparing", "running", "activity", "stopping", "verifying", "committing", "ended"}
    assert all(isinstance(each, SuiteEvent) and each.event in kinds for each in changes)
    ended = [each for each in changes if isinstance(each, SuiteEvent) and each.event == "ended"]
    assert [(each.claimed, each.verified, each.infra) for each in ended] == [("success", "passed", None)] * 4


def interrupt_waiting(event: RunStarted | SuiteEvent) -> None:
    """Interrupt the attempt that would never end."""
    if isinstance(event, SuiteEvent) and (event.event, event.mission_id) == ("running", "waits"):
        with Ledger(ledger_path(Path("out"), event.run_id)) as ledger:
            ledger.interrupt(event.attempt_id)


def check_resumed(run: SuiteRun) -> None:
    """Check that what was done was kept, and that the rest was done."""
    assert run.committed
    found = verdicts(run)
    assert [each for each in found if each.startswith("answer")] == ["answer.1"]
    assert found["answer.1"] == ("success", "passed", None)
    assert {each.attempt_id: each.infra for each in run.attempts if each.mission_id == "waits"} == {
        "waits.1": "ATTEMPT_WORKER_LOST",
        "waits.1.r1": None,
    }


class Stopper:
    """A callback that acts once one attempt has ended and the other is running."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, event: RunStarted | SuiteEvent) -> None:
        if isinstance(event, SuiteEvent):
            self._seen.add((event.event, event.mission_id))
            if self._seen >= {("ended", "answer"), ("running", "waits")}:
                self._act()


def test_stopped_run_can_be_resumed(spec: Callable[[str], str]) -> None:
    stop = threading.Event()
    with pytest.raises(RunInterrupted) as raised:
        proofbox.run_suite(spec(WORKS + WAITS), provider="bubblewrap", on_event=Stopper(stop.set), stop=stop)
    left = proofbox.load_run()
    assert raised.value.fix_hints == (f"resume with: proofbox suite resume {left.bundle}",)
    assert (left.ok, left.committed, left.conducted) == (False, False, False)
    check_resumed(proofbox.resume_suite(on_event=interrupt_waiting))


# Coroutines


def go(loop: str, work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(PATIENCE * 2):
            await work()

    anyio.run(bounded, backend=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_coroutines_never_block_the_event_loop(
    loop: str, spec: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec(WORKS)
    ticker = Ticker(monkeypatch)
    ticker.watch(opening, "open_suite")
    for name in ("create_run", "find_run", "read_run"):
        ticker.watch(running, name)
    ticker.watch(Conductor, "__init__")
    ticker.watch(Conductor, "conduct")
    conducting = ["__init__", "conduct", "find_run", "read_run"]

    async def work() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ticker.run)
            run = await proofbox.run_suite_async("suite.toml", provider="bubblewrap")
            assert run.ok
            assert ticker.watched == ["open_suite", "create_run", *conducting]
            assert await proofbox.resume_suite_async() == run
            assert ticker.watched[6:] == ["find_run", *conducting]
            assert await proofbox.load_run_async() == run
            assert ticker.watched[11:] == ["find_run", "read_run"]
            tasks.cancel_scope.cancel()

    go(loop, work)


@pytest.mark.parametrize("loop", LOOPS)
def test_cancelled_coroutine_stops_the_run_and_it_can_be_resumed(loop: str, spec: Callable[[str], str]) -> None:
    spec(WORKS + WAITS)
    here = threading.get_ident()
    threads: set[int] = set()

    async def work() -> None:
        def cancel() -> None:
            threads.add(threading.get_ident())
            scope.cancel()

        with anyio.CancelScope() as scope:
            await proofbox.run_suite_async("suite.toml", provider="bubblewrap", on_event=Stopper(cancel))
        assert scope.cancelled_caught
        left = await proofbox.load_run_async()
        assert (left.committed, left.conducted) == (False, False), "nothing of it runs any more"
        check_resumed(await proofbox.resume_suite_async(on_event=interrupt_waiting))

    go(loop, work)
    assert threads == {here}, "events arrive in the event loop"


def test_coroutine_cancelled_at_once_starts_nothing(spec: Callable[[str], str]) -> None:
    spec(WORKS)

    async def work() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await proofbox.run_suite_async("suite.toml", provider="bubblewrap")
        assert scope.cancelled_caught

    go("asyncio", work)
    assert not Path("out").exists()


def test_cancelled_task_of_asyncio_stops_the_run(spec: Callable[[str], str]) -> None:
    """As Ctrl-C does in `asyncio.run`: without a cancel scope."""
    spec(WAITS)

    async def work() -> None:
        started = asyncio.Event()

        def hear(event: RunStarted | SuiteEvent) -> None:
            if isinstance(event, SuiteEvent) and event.event == "running":
                started.set()

        task = asyncio.create_task(proofbox.run_suite_async("suite.toml", provider="bubblewrap", on_event=hear))
        async with asyncio.timeout(PATIENCE):
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not proofbox.load_run().conducted

    asyncio.run(work())


def test_error_of_a_callback_is_raised_by_the_coroutine(spec: Callable[[str], str]) -> None:
    spec(WORKS)

    def fail(_: RunStarted | SuiteEvent) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(proofbox.run_suite_async("suite.toml", provider="bubblewrap", on_event=fail))


def test_named_commands_are_strategies_of_their_own(spec: Callable[[str], str]) -> None:
    source = '[[mission]]\nid = "m"\nprompt = "go"\nverify = { commands = ["grep -qx 42 answer.txt"] }\n'
    suite = spec(source)
    commands = {"quick": ["sh", "-c", "echo 42 > answer.txt"], "idle": ["sh", "-c", "true"]}
    one = proofbox.run_suite(suite, out="one", commands={"quick": commands["quick"]})
    two = proofbox.run_suite(suite, out="two", commands=commands, strategies="process.idle!", retries=0)
    found = [document(Path(run.bundle) / "attempts", "runner.ref.json")["runtime"] for run in (one, two)]
    assert [one.ok, two.ok, *found] == [True, False, "process.quick", "process.idle"]
    with pytest.raises(StrategyUnavailable, match=r"no command is set for process\.other"):
        proofbox.run_suite(suite, out="three", strategies="process.other!")
    with pytest.raises(StrategyUnsupported):
        proofbox.run_suite(suite, out="four", strategies="scripted.other!")


def test_named_command_can_speak_acp_with_settings_for_the_run(spec: Callable[[str], str]) -> None:
    prompt = "[[run echo 42 > answer.txt]] [[say done]]"
    suite = spec(
        f'[[mission]]\nid = "m"\nprompt = \'{prompt}\'\nverify = {{ commands = ["grep -qx 42 answer.txt"] }}\n'
    )
    agent = Path(__file__).parents[2] / "agents" / "fake_acp.py"
    with serving_model() as url:
        settings = {
            "base_url": url,
            "mounts": [f"{agent}:/run/fake_acp.py:ro"],
            "env": {"BASE_URL": "{base_url}", "AGENT_HOME": "{home}", "FAKE_MODE": ""},
        }
        commands = {"acp.mine": ["/usr/bin/python3", "/run/fake_acp.py"]}
        run = proofbox.run_suite(suite, commands=commands, settings=settings, provider="bubblewrap")
    assert run.ok, run.error
    assert document(Path(run.bundle) / "attempts", "runner.ref.json")["runtime"] == "acp.mine"
    with pytest.raises(UsageError, match="has a setting 'bass_url'"):
        proofbox.run_suite(suite, out="other", commands=commands, settings={"bass_url": url})
    assert main(["suite", "run", suite, "--command", "Nameless"]) == 2


def test_selected_missions_are_a_suite_of_their_own(spec: Callable[[str], str]) -> None:
    tagged = WORKS.replace('id = "answer"', 'id = "tagged"\ntags = ["fast"]')
    suite = spec(WORKS + LIES + tagged)
    by_id = proofbox.run_suite(suite, out="ids", missions=["a*", "tag*"], provider="bubblewrap")
    by_tag = proofbox.run_suite(suite, out="tags", tags=["fast"], provider="bubblewrap")
    assert [attempt.attempt_id for attempt in by_id.attempts] == ["answer.1", "tagged.1"]
    assert [attempt.attempt_id for attempt in by_tag.attempts] == ["tagged.1"]
    for run in (by_id, by_tag):
        assert run.ok
        assert validate(load_bundle(Path(run.bundle)), strict=True) == []
    for selection in ({"missions": ["answr"]}, {"tags": ["slow"]}, {"missions": ["lies"], "tags": ["fast"]}):
        with pytest.raises(UsageError, match="has no mission"):
            proofbox.run_suite(suite, out="none", **selection)  # type: ignore[arg-type]
    assert not Path("none").exists()


def document(place: Path, name: str) -> Any:
    [found] = place.rglob(name)
    return json.loads(found.read_bytes())
