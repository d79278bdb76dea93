"""The cost of driving an agent through proofbox, compared with a minimal client in the same run.

    scripts/bench agents [--agent codex|claude|opencode] [--rounds N] [--together N] [--check]

The same turns of the same program against the same fake model (in a separate process): once by a bare client that
writes lines to the program and reads them, without a box, a gateway or a record; once by a session in a sealed box,
with the gateway in between and a listener that keeps every event; and once by such a session outside any box, where a
command's login shell reads the host's profile as it does for the bare client. Each ratio is the median of the ratios of
turns in the same round (`_pairs.py`). With --together, that many threads of one Codex process have a turn at the same
time, by the bare client and in a box. With --check the run fails when a ratio for tool turns is past its threshold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import anyio.abc
import msgspec
from _history import at_most
from _pairs import paired_ratio

from proofbox.agents.contract import AgentRuntime, AgentSession, SessionOptions
from proofbox.agents.events import Event, ToolCall
from proofbox.agents.runtimes.acp import AcpRuntime, AcpSettings
from proofbox.agents.runtimes.acp.finding import find_agent
from proofbox.agents.runtimes.acp.profiles import PROFILES
from proofbox.agents.runtimes.acp.program import CLIENT
from proofbox.agents.runtimes.claude import ClaudeCode, ClaudeSettings
from proofbox.agents.runtimes.claude.binary import find_claude
from proofbox.agents.runtimes.codex import CodexAppServer, CodexSettings
from proofbox.agents.runtimes.codex.binary import find_binary
from proofbox.agents.runtimes.codex.settings import config_toml

SHELL = "/bin/bash"
"""The shell for commands. Claude Code would choose another one for the bare client than outside a box."""
SHARED = ("PATH", "LANG", "TERM")
"""Variables that a box passes on, and the bare client has as well. With a language, bash reads the files of a locale at
each start, which takes a millisecond.
"""
THRESHOLD = 1.15
TOGETHER = 1.1
TEXT_TURN = "[[say one two three]]"
AGENTS: dict[str, type[AgentRuntime]] = {"codex": CodexAppServer, "claude": ClaudeCode, "opencode": AcpRuntime}
PLACES = {"in a box": "in a box", "outside": "outside a box"}
TOOL_TURN = "[[run echo hello]] [[say one two three]]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", choices=sorted(AGENTS), default="codex", help="default: codex")
    parser.add_argument("--rounds", type=int, default=60, help="turns of each, interleaved", metavar="N")
    parser.add_argument("--together", type=int, default=0, help="concurrent turns of one Codex process", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when the ratio is past its threshold")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place, fake_model() as url:
        if options.together:
            held = anyio.run(measure_together, Path(place), url, options.rounds, options.together)
        else:
            held = anyio.run(measure, Path(place), url, options.rounds, options.agent)
    return 1 if options.check and not held else 0


@contextlib.contextmanager
def fake_model() -> Iterator[str]:
    argv = [sys.executable, "-m", "proofbox.agents.fakemodel"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip() if process.stdout is not None else ""
        finally:
            process.terminate()


class Bare:
    """Writes lines and reads lines, and does nothing else: the minimum that runs a turn."""

    def __init__(self, process: anyio.abc.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("a process without pipes")
        self._stdin, self._stdout = process.stdin, process.stdout
        self._held = b""
        self._id = 0
        self.thread = ""

    async def ask(self, method: str, params: object) -> dict[str, Any]:
        self._id += 1
        await self._say({"id": self._id, "method": method, "params": params})
        while (message := await self._hear()).get("id") != self._id:
            pass
        result: dict[str, Any] = message["result"]
        return result

    async def turn(self, prompt: str) -> None:
        asked = {"threadId": self.thread, "input": [{"type": "text", "text": prompt}]}
        await self.ask("turn/start", asked)
        while (await self._hear()).get("method") != "turn/completed":
            pass

    async def start_thread(self, workspace: Path) -> str:
        place = {"cwd": str(workspace), "approvalPolicy": "never", "sandbox": "danger-full-access"}
        id: str = (await self.ask("thread/start", place))["thread"]["id"]
        return id

    async def turns(self, threads: list[str], prompt: str) -> None:
        """Run a turn of each thread, all at the same time."""
        for number, thread in enumerate(threads):
            asked = {"threadId": thread, "input": [{"type": "text", "text": prompt}]}
            await self._say({"id": f"turn-{number}", "method": "turn/start", "params": asked})
        for _ in threads:
            while (await self._hear()).get("method") != "turn/completed":
                pass

    async def _say(self, message: object) -> None:
        await self._stdin.send(msgspec.json.encode(message) + b"\n")

    async def _hear(self) -> dict[str, Any]:
        while b"\n" not in self._held:
            self._held += await self._stdout.receive()
        line, _, self._held = self._held.partition(b"\n")
        return msgspec.json.decode(line, type=dict[str, Any])


class BareClaude(Bare):
    async def turn(self, prompt: str) -> None:
        content = [{"type": "text", "text": prompt}]
        await self._say({"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None})
        while (await self._hear()).get("type") != "result":
            pass


class BareAcp(Bare):
    async def turn(self, prompt: str) -> None:
        await self.ask("session/prompt", {"sessionId": self.thread, "prompt": [{"type": "text", "text": prompt}]})

    async def _say(self, message: Any) -> None:
        await super()._say({"jsonrpc": "2.0", **message})


@contextlib.asynccontextmanager
async def bare(place: Path, url: str, agent: str) -> AsyncIterator[Bare]:
    home, workspace = place / "bare-home", place / "bare-workspace"
    for path in (home, workspace):
        path.mkdir()
    env = {name: os.environ[name] for name in SHARED if name in os.environ} | {"HOME": str(home), "SHELL": SHELL}
    kind = Bare
    if agent == "codex":
        (home / "config.toml").write_text(config_toml(CodexSettings(model="fake-model", base_url=url), url))
        env["CODEX_HOME"] = str(home)
        argv = [str(find_binary().path), "app-server"]
    elif agent == "claude":
        settings = ClaudeSettings(base_url=url.removesuffix("/v1"))
        env |= settings.environment(str(home), url.removesuffix("/v1"))
        argv, kind = [str(find_claude().path), *settings.arguments()], BareClaude
    else:
        profile = PROFILES["opencode"]
        env |= profile.environment(AcpSettings(model="fake-model"), str(home), url, False)
        argv, kind = [*find_agent(profile).direct, *profile.arguments], BareAcp
    async with await anyio.open_process(argv, env=env, cwd=workspace, stderr=subprocess.DEVNULL) as process:
        client = kind(process)
        if agent == "codex":
            await client.ask("initialize", {"clientInfo": {"name": "bare", "title": None, "version": "1"}})
            await client._say({"method": "initialized"})
            client.thread = await client.start_thread(workspace)
        elif agent == "opencode":
            await client.ask("initialize", CLIENT)
            client.thread = (await client.ask("session/new", {"cwd": str(workspace), "mcpServers": []}))["sessionId"]
        yield client
        process.terminate()


class Ours:
    """A session with a listener that keeps everything."""

    def __init__(self, session: AgentSession, thread: str) -> None:
        self._session = session
        self._thread = thread
        self.events: list[Event] = []
        session.add_listener(self._keep)

    async def _keep(self, event: Event) -> None:
        self.events.append(event)

    async def turn(self, prompt: str, thread: str = "") -> None:
        result = await self._session.wait_turn(await self._session.start_turn(thread or self._thread, prompt))
        if result.status != "completed":
            raise SystemExit(f"a turn ended as {result}")

    async def start_threads(self, count: int) -> list[str]:
        return [await self._session.start_thread() for _ in range(count)]

    async def turns(self, threads: list[str], prompt: str) -> None:
        """Run a turn of each thread, all at the same time."""
        async with anyio.create_task_group() as tasks:
            for thread in threads:
                tasks.start_soon(self.turn, prompt, thread)


@contextlib.asynccontextmanager
async def ours(place: Path, url: str, agent: str, *, sandboxed: bool) -> AsyncIterator[Ours]:
    workspace, scratch = place / f"workspace-{sandboxed}", place / f"scratch-{sandboxed}"
    for path in (workspace, scratch):
        path.mkdir()
    settings: dict[str, Any] = {"base_url": url.removesuffix("/v1") if agent == "claude" else url}
    if agent != "claude":
        settings["model"] = "fake-model"
    if agent == "opencode":
        settings["checkpoints"] = False  # as in attempts, which have one turn
    env = {"SHELL": SHELL} if sandboxed else {"SHELL": SHELL, "HOME": str(scratch)}  # no profile of the user's
    options = SessionOptions(workspace=workspace, scratch=scratch, settings=settings, sandboxed=sandboxed, env=env)
    began = time.perf_counter()
    session = await AGENTS[agent]().start_session(options)
    try:
        print(f"session up in {1000 * (time.perf_counter() - began):.0f} ms ({session.facts()['provider']})")
        yield Ours(session, await session.start_thread())
    finally:
        await session.close()


async def measure(place: Path, url: str, rounds: int, agent: str) -> bool:
    held = True
    async with (
        bare(place, url, agent) as client,
        ours(place, url, agent, sandboxed=True) as boxed,
        ours(place, url, agent, sandboxed=False) as unboxed,
    ):
        ways = {"bare": client.turn, "in a box": boxed.turn, "outside": unboxed.turn}
        for name, prompt in (("text turn", TEXT_TURN), ("tool turn", TOOL_TURN)):
            times: dict[str, list[float]] = {who: [] for who in ways}
            for number in range(rounds + 2):  # the first two are warm-up rounds
                # Each way begins equally often, and none follows itself: its program would still be in the caches.
                for who in islice(cycle(ways), number % len(ways), number % len(ways) + len(ways)):
                    began = time.perf_counter()
                    await ways[who](prompt)
                    if number > 1:
                        times[who].append(time.perf_counter() - began)
            print(f"{name}, {rounds} of each in turn: bare {milliseconds(times['bare'])}")
            for who in PLACES:
                ratio = paired_ratio(times[who], times["bare"])
                line = f"  {who:<9} {milliseconds(times[who])}, ratio {ratio}"
                if prompt is TOOL_TURN:
                    took = {"ours": milliseconds(times[who]), "theirs": milliseconds(times["bare"])}
                    operation = f"a tool turn of {agent} {PLACES[who]}"
                    ok = at_most(f"{operation}, to a bare client", ratio.value, THRESHOLD, **took)
                    line += f", at most {THRESHOLD}: {'ok' if ok else 'MISSED'}"
                    held = held and ok
                print(line)
    for each in (boxed, unboxed):
        calls = [event for event in each.events if isinstance(event, ToolCall)]
        if len(calls) != rounds + 2:
            raise SystemExit(f"{len(calls)} tool calls were recorded of {rounds + 2}")
    return held


async def measure_together(place: Path, url: str, rounds: int, count: int) -> bool:
    async with bare(place, url, "codex") as client, ours(place, url, "codex", sandboxed=True) as boxed:
        threads = {
            "bare": [await client.start_thread(place / "bare-workspace") for _ in range(count)],
            "in a box": await boxed.start_threads(count),
        }
        ways = {"bare": client.turns, "in a box": boxed.turns}
        times: dict[str, list[float]] = {who: [] for who in ways}
        for number in range(rounds + 2):  # the first two are warm-up rounds
            for who in list(ways)[:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                await ways[who](threads[who], TOOL_TURN)
                if number > 1:
                    times[who].append(time.perf_counter() - began)
    ratio = paired_ratio(times["in a box"], times["bare"])
    took = {"ours": milliseconds(times["in a box"]), "theirs": milliseconds(times["bare"])}
    ok = at_most(f"{count} turns of one Codex process together, to a bare client", ratio.value, TOGETHER, **took)
    print(f"{count} tool turns together, {rounds} times each: bare {took['theirs']}")
    print(f"  in a box  {took['ours']}, ratio {ratio}, at most {TOGETHER}: {'ok' if ok else 'MISSED'}")
    return ok


def milliseconds(times: list[float]) -> str:
    return f"{1000 * median(times):.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
