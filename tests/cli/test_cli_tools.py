"""`proofbox workspace tools|call|effects`: an agent's tools on the command line, and the log of their effects."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proofbox.cli import main

pytestmark = pytest.mark.needs("bubblewrap")


def test_tools_are_listed_called_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("one\x1b[31m\n")
    (project / ".env").write_text("secret")

    def run(*words: str, code: int = 0) -> Any:
        assert main(["workspace", *words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    def call(tool: str, arguments: object, *words: str, code: int = 0) -> Any:
        return run("call", str(project), tool, "--args", json.dumps(arguments), *words, code=code)

    run("init", str(project))
    listed = {tool["name"]: tool for tool in run("tools", str(project), "--capabilities", "minimal")["tools"]}
    assert listed["read_file"]["available"] is True
    assert listed["read_file"]["parameters"]["required"] == ["path"]
    assert (listed["write_file"]["available"], listed["run_command"]["available"]) == (False, False)
    assert call("read_file", {"path": "a"})["result"]["content"] == "one\x1b[31m\n"
    assert call("read_file", {"path": "a"})["text"] == "one\\x1b[31m\n"
    done = call("run_command", {"command": "cat .env a; echo new > b; exit 5"}, "--provider", "bubblewrap")
    assert (done["result"]["exit_code"], "secret" in done["result"]["stdout"]) == (5, False)
    assert call("write_file", {"path": "c", "content": "x"}, "--capabilities", "minimal", code=3)["error"]["code"] == (
        "WORKSPACE_CAPABILITY_DENIED"
    )
    assert call("read_file", {"path": ".env"}, code=3)["error"]["rule"] == "fs.read: !**/.env"
    assert call("read_file", {}, code=2)["error"]["code"] == "WORKSPACE_TOOL_ARGUMENTS_INVALID"
    assert call("none", {}, code=2)["error"]["code"] == "WORKSPACE_TOOL_UNKNOWN"
    assert call("read_file", {"path": "a"}, "--capabilities", "nope", code=2)["error"]["code"] == (
        "WORKSPACE_CAPABILITIES_INVALID"
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"path": "b"}')))
    assert run("call", str(project), "read_file", "--args", "-")["result"]["content"] == "new\n"

    effects = run("effects", str(project))["effects"]
    assert [(e["kind"], e["phase"]) for e in effects if e["kind"] != "read_file"] == [
        ("run_command", "intent"),
        ("run_command", "outcome"),
        ("write_file", "denied"),
    ]
    assert [e["seq"] for e in effects] == list(range(len(effects)))
    assert run("effects", str(project), "--limit", "1")["effects"] == effects[-1:]
    assert run("verify", str(project))["verification"]["sound"] is True
    snapshots = run("log", str(project))["snapshots"]
    assert snapshots[0]["message"].startswith("run_command cat .env a")

    checked = call("write_file", {"path": "bad", "content": "x"}, "--check", "test ! -e bad", code=1)
    assert checked["error"]["code"] == "WORKSPACE_CHECK_FAILED"
    assert not (project / "bad").exists()

    for words in (["effects"], ["tools"]):
        assert main(["workspace", *words, str(project)]) == 0
    text = capsys.readouterr().out
    assert "denied" in text
    assert "apply_patch" in text
    assert main(["workspace", "call", str(project), "read_file", "--args", '{"path": "a"}']) == 0
    assert capsys.readouterr().out == "one\\x1b[31m\n\n"
