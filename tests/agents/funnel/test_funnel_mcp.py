"""Tests of `proofbox mcp proxy`: an MCP server called through the funnel, by an official and by a hostile client."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from drive import Driven, drive

import proofbox
from proofbox.agents.contract import ApprovalRule, TurnResult
from proofbox.agents.events import ApprovalDecision, ToolCall
from proofbox.agents.runtimes.process.runtime import ProcessRuntime

pytestmark = pytest.mark.needs("bubblewrap")

PYTHON = [f"{path}:{path}:ro" for path in dict.fromkeys((sys.base_prefix, sys.prefix)) if not path.startswith("/usr")]

SDK_SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")

@server.tool()
def add(a: int, b: int) -> int:
    return a + b

@server.tool()
def write(path: str, text: str) -> str:
    open(path, "w").write(text)
    return "written"

@server.tool()
def fail() -> str:
    raise ValueError("it can't")

server.run()
"""

SDK_CLIENT = """
import os, sys
import anyio
from mcp import ClientSession, StdioServerParameters, stdio_client

async def main():
    args = ["mcp", "proxy", "--", sys.executable, "server.py"]
    server = StdioServerParameters(command="proofbox", args=args, env=dict(os.environ))
    async with stdio_client(server) as (incoming, outgoing), ClientSession(incoming, outgoing) as session:
        await session.initialize()
        print(sorted(tool.name for tool in (await session.list_tools()).tools))
        for name, arguments in (("add", {"a": 40, "b": 2}), ("write", {"path": "made", "text": "hi"}), ("fail", {}),
                                ("write", {"path": "secret", "text": "no"})):
            result = await session.call_tool(name, arguments)
            print(name, result.is_error, result.content[0].text)

anyio.run(main)
"""


def play(
    base: Path, files: dict[str, str], command: list[str], *, mounts: list[str] = PYTHON, **options: Any
) -> tuple[TurnResult, Driven]:
    (base / "workspace").mkdir()
    for name, text in files.items():
        (base / "workspace" / name).write_text(textwrap.dedent(text))
    results = []

    async def work(driven: Driven) -> None:
        results.append(await driven.turn())

    driven = drive(ProcessRuntime(), base, {"command": command, "mounts": mounts}, work, **options)
    return results[0], driven


def test_the_official_client_and_server(tmp_path: Path) -> None:
    rules = (ApprovalRule(answer="decline", command="mcp/write *secret*", name="no secrets"),)
    files = {"client.py": SDK_CLIENT, "server.py": SDK_SERVER}
    result, driven = play(tmp_path, files, [sys.executable, "client.py"], approvals=rules)
    assert result.status == "completed", result.error
    answer_lines = result.final_message.splitlines()
    assert answer_lines[:3] == ["['add', 'fail', 'write']", "add False 42", "write False written"]
    assert answer_lines[3].startswith("fail True ")
    assert answer_lines[4] == "write True declined: no secrets"
    assert not (tmp_path / "workspace/secret").exists()
    reported = [(call.tool, json.loads(call.command), call.status, call.output) for call in driven.of(ToolCall)[:4]]
    assert reported[0] == ("mcp/add", {"a": 40, "b": 2}, "completed", "42")
    assert reported[1] == ("mcp/write", {"path": "made", "text": "hi"}, "completed", "written")
    assert reported[2][:3] == ("mcp/fail", {}, "failed")
    assert "fail" in reported[2][3]
    assert reported[3] == ("mcp/write", {"path": "secret", "text": "no"}, "declined", "")
    assert all(call.source == "observed" for call in driven.of(ToolCall))
    assert [(each.answer, each.rule) for each in driven.of(ApprovalDecision)] == [("decline", "no secrets")]
    server = driven.of(ToolCall)[4]
    assert (server.tool, server.command) == ("command", f"{sys.executable} server.py")


def test_accept_rule_declines_all_other_tools(tmp_path: Path) -> None:
    rules = tuple(ApprovalRule(answer="accept", command=each) for each in ("mcp/add *", f"{sys.executable} *"))
    files = {"client.py": SDK_CLIENT, "server.py": SDK_SERVER}
    result, driven = play(tmp_path, files, [sys.executable, "client.py"], approvals=rules)
    answer_lines = result.final_message.splitlines()
    assert answer_lines[1:3] == ["add False 42", "write True declined: no rule"]
    done = {call.tool: call.status for call in driven.of(ToolCall)}
    assert done == {"mcp/add": "completed", "mcp/write": "declined", "mcp/fail": "declined", "command": "completed"}
    assert not (tmp_path / "workspace/made").exists()


# A server that echoes every line as text, after one malformed line.
ECHO = """
import json, sys
print("starting up", flush=True)
for line in sys.stdin:
    said = json.loads(line)
    if said["method"] == "die":
        sys.exit(3)
    if said["method"] != "quiet":
        answer = {"jsonrpc": "2.0", "id": said["id"], "result": {"content": [{"type": "text", "text": line.strip()}]}}
        print(json.dumps(answer), flush=True)
"""


def test_record_matches_what_the_server_received(tmp_path: Path) -> None:
    lines = [
        '{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"a","name":"b"}}',
        '{"jsonrpc":"2.0","id":2,"method":"tools\\u002fcall","params":{"name":"c","arguments":{"x":"\\u00e9"}}}',
        '[{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"in-a-batch"}}]',
        '{"jsonrpc":"2.0","method":"tools/call","params":{"name":"without-an-id"}}',
        '{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"with-no-id"}}',
        '{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"endless","arguments":1e999}}',
        '{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"nan","arguments":NaN}}',
        '{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"half","arguments":"\\ud800"}}',
        "[" * 100_000,
        "nonsense",
        '{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"command","arguments":"pytest"}}',
    ]
    files = {"lines": "\n".join(lines) + "\n", "server.py": ECHO}
    script = "proofbox mcp proxy -- python3 server.py <lines"
    result, driven = play(tmp_path, files, ["sh", "-c", script])
    answers = [json.loads(line) for line in result.final_message.splitlines()]
    received = [json.loads(each["result"]["content"][0]["text"]) for each in answers if "result" in each]
    assert [(each["id"], each["params"]["name"]) for each in received] == [(1, "b"), (2, "c"), ("1", "command")]
    assert sum("error" in each for each in answers) == 8
    tools = [call for call in driven.of(ToolCall) if call.tool != "command"]
    assert [(call.tool, call.command, call.status) for call in tools] == [
        ("mcp/b", "null", "completed"),
        ("mcp/c", '{"x": "é"}', "completed"),
        ("mcp/command", '"pytest"', "completed"),
    ]
    assert [call.command for call in driven.of(ToolCall) if call.tool == "command"] == ["python3 server.py"]


def test_unanswered_call_is_abandoned(tmp_path: Path) -> None:
    lines = [
        '{"jsonrpc":"2.0","id":1,"method":"quiet"}',
        '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"slow"}}',
        '{"jsonrpc":"2.0","id":8,"method":"die"}',
    ]
    server = ECHO.replace('"quiet"', '"tools/call"')
    files = {"lines": "\n".join(lines), "server.py": server}
    result, driven = play(tmp_path, files, ["sh", "-c", "proofbox mcp proxy -- python3 server.py <lines >out; echo $?"])
    assert result.final_message == "3\n"
    assert [(call.tool, call.status, call.exit_code) for call in driven.of(ToolCall)] == [
        ("mcp/slow", "abandoned", None),
        ("command", "failed", 3),
    ]


def test_proofbox_installed_in_the_box_uses_the_funnel(tmp_path: Path) -> None:
    """`run` behaves the same if the full proofbox is installed in the box and first on its PATH."""
    source = Path(proofbox.__file__).parents[1]
    mounts = PYTHON if source.is_relative_to(sys.prefix) else [*PYTHON, f"{source}:{source}:ro"]
    script = f"{sys.executable} -m proofbox run -n -- sh -c 'exit 5'; echo $?"
    result, driven = play(tmp_path, {}, ["sh", "-c", script], mounts=mounts)
    assert result.final_message == "5\n"
    assert [(call.command, call.exit_code) for call in driven.of(ToolCall)] == [("sh -c 'exit 5'", 5)]
