"""`proofbox workspace`: a state recorded, left, and gone back to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proofbox.cli import main


def test_back_and_forward_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("one")

    def call(*words: str, code: int = 0) -> Any:
        assert main(["workspace", *words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    assert call("init", str(project))["path"] == str(project)
    first = call("snapshot", str(project), "-m", "first")["snapshot"]
    assert {"id", "parent", "message", "created_at", "changed"} <= set(first)
    (project / "a").write_text("two")
    (project / "b").write_text("new")
    kinds = {change["path"]: change["kind"] for change in call("status", str(project))["status"]["changes"]}
    assert kinds == {"a": "modified", "b": "added"}
    assert {change["path"] for change in call("diff", str(project))["changes"]} == {"a", "b"}
    done = call("rollback", str(project), first["id"][:10])
    assert (done["id"], done["irreversible_effects"]) == (first["id"], [])
    assert ((project / "a").read_text(), (project / "b").exists()) == ("one", False)
    call("rollback", str(project), done["before"])
    assert ((project / "a").read_text(), (project / "b").read_text()) == ("two", "new")
    assert [entry["kind"] for entry in call("log", str(project))["snapshots"]][-1] == "snapshot"
    call("fork", str(project), first["id"], str(tmp_path / "fork"))
    assert (tmp_path / "fork" / "a").read_text() == "one"
    assert call("verify", str(project))["verification"]["sound"] is True
    call("gc", str(project))
    assert call("rollback", str(project), "ffffffff", code=2)["error"]["code"] == "WORKSPACE_SNAPSHOT_UNKNOWN"
    assert call("status", str(tmp_path), code=2)["error"]["code"] == "WORKSPACE_UNKNOWN"
    assert call("init", str(project), code=2)["error"]["code"] == "WORKSPACE_EXISTS"
    for words in (["log"], ["status"], ["diff"], ["verify"]):
        assert main(["workspace", *words, str(project)]) == 0
    assert "first" in capsys.readouterr().out
