"""`proofbox mcp serve`, driven by the official SDK's client over stdio."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from proofbox import Workspace

if TYPE_CHECKING:
    from mcp import ClientSession

# In one worker, because importing the SDK takes a second.
pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("mcp")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.txt").write_text("hello\n")
    (project / ".env").write_text("secret\n")
    Workspace.init(project, track=False).close()
    return project


@asynccontextmanager
async def connected(project: Path, *options: str) -> AsyncIterator[ClientSession]:
    from mcp import ClientSession, StdioServerParameters, stdio_client

    args = ["-m", "proofbox", "mcp", "serve", "--workspace", str(project), "--provider", "bubblewrap", *options]
    server = StdioServerParameters(command=sys.executable, args=args, env=dict(os.environ))
    async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
        await session.initialize()
        yield session


def text_of(result: object) -> str:
    from mcp import types

    assert isinstance(result, types.CallToolResult)
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


@pytest.mark.anyio
async def test_tools_are_listed_called_checked_and_recorded(project: Path) -> None:
    from mcp import types

    async with connected(project) as session:
        listed = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert {"read_file", "run_command", "snapshot", "rollback"} <= set(listed)
        assert listed["read_file"].input_schema["required"] == ["path"]
        assert text_of(await session.call_tool("read_file", {"path": "a.txt"})) == "hello\n"
        ran = await session.call_tool("run_command", {"command": "cat .env; echo done > made; exit 4"})
        assert isinstance(ran, types.CallToolResult)
        assert ran.structured_content is not None
        assert ran.structured_content["exit_code"] == 4
        assert "secret" not in text_of(ran)
        denied = await session.call_tool("read_file", {"path": ".env"})
        assert isinstance(denied, types.CallToolResult)
        assert denied.is_error
        assert "WORKSPACE_CAPABILITY_DENIED" in text_of(denied)
        wrong = await session.call_tool("read_file", {"path": 5})
        assert "WORKSPACE_TOOL_ARGUMENTS_INVALID" in text_of(wrong)
        assert "WORKSPACE_TOOL_UNKNOWN" in text_of(await session.call_tool("none", {}))
    with Workspace.open(project, track=False) as workspace:
        kinds = [(each.kind, each.phase) for each in workspace.effects.entries()]
        assert ("run_command", "outcome") in kinds
        assert ("read_file", "denied") in kinds
        assert workspace.verify().sound
    assert (project / "made").read_text() == "done\n"


@pytest.mark.anyio
async def test_calls_run_concurrently(project: Path) -> None:
    async with connected(project, "--capabilities", "agent") as session:
        assert "rollback" not in {tool.name for tool in (await session.list_tools()).tools}
        found: list[str] = []

        async def slow() -> None:
            found.append(text_of(await session.call_tool("run_command", {"command": "cat wait; echo slow"})))

        async with anyio.create_task_group() as group:
            os.mkfifo(project / "wait")
            group.start_soon(slow)
            # While one command is blocked, another call is answered.
            assert text_of(await session.call_tool("read_file", {"path": "a.txt"})) == "hello\n"
            assert found == []
            await anyio.to_thread.run_sync((project / "wait").write_text, "go ")
        assert found == ["go slow\n[exit 0]"]


@pytest.mark.anyio
async def test_disconnecting_kills_running_commands(project: Path) -> None:
    async with connected(project) as session, anyio.create_task_group() as group:
        group.start_soon(session.call_tool, "run_command", {"command": "echo > begun; sleep 600"})
        while not (project / "begun").exists():  # noqa: ASYNC110 (a file is not an event)
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    with Workspace.open(project, track=False) as workspace:
        assert next(workspace.effects.entries()).target == "echo > begun; sleep 600"
        assert workspace.verify().sound


def test_server_reports_why_it_cannot_start(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "proofbox", "mcp", "serve", "--workspace", str(tmp_path), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "WORKSPACE_UNKNOWN" in done.stdout
