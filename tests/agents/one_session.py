"""Run one session in a separate process: `one_session.py PLACE URL PROMPT` plays a turn and prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio

from proofbox.agents.contract import SessionOptions
from proofbox.agents.events import Event, ItemStarted, ToolCall
from proofbox.agents.runtimes.codex import CodexAppServer


async def main(place: Path, url: str, prompt: str) -> None:
    settings = {"base_url": url, "model": "fake-model"}
    if "PROOFBOX_TEST_CODEX" in os.environ:
        settings["binary"] = os.environ["PROOFBOX_TEST_CODEX"]
    options = SessionOptions(
        workspace=place / "workspace", scratch=place / "scratch", settings=settings, provider="bubblewrap"
    )
    outputs: list[str] = []

    async def listen(event: Event) -> None:
        if isinstance(event, ItemStarted):
            print(json.dumps({"started": event.kind}), flush=True)
        elif isinstance(event, ToolCall):
            outputs.append(event.output)

    session = await CodexAppServer().start_session(options)
    try:
        session.add_listener(listen)
        thread = await session.start_thread()
        result = await session.wait_turn(await session.start_turn(thread, prompt))
    finally:
        await session.close()
    print(json.dumps({"status": result.status, "message": result.final_message, "outputs": outputs}), flush=True)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], sys.argv[3])
