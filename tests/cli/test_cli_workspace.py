"""`proofbox workspace`: snapshots, rollback, forks and errors."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofbox.cli import main
from proofbox.core.dirs import state_dir
from proofbox.workspace.identity import identity_of


def test_rollback_and_undo_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


Call = Callable[..., Any]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a workspace command and returns its document."""

    def run(*words: str | Path, code: int = 0) -> Any:
        assert main(["workspace", *map(str, words), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def project(tmp_path: Path, call: Call) -> Path:
    """A workspace with one snapshot, at a path that must be quoted for a shell."""
    made = tmp_path / "a project"
    made.mkdir()
    (made / "file").write_text("one")
    call("init", made)
    call("snapshot", made)
    return made


def test_replacement_directory_does_not_get_the_history(project: Path, call: Call) -> None:
    if not identity_of(str(project)):
        pytest.skip("this file system cannot distinguish a directory from its replacement")
    shutil.rmtree(project)
    project.mkdir()
    for words in (["status"], ["log"], ["diff"], ["snapshot"], ["init"], ["verify"], ["effects"]):
        error = call(words[0], project, *words[1:], code=2)["error"]
        assert error["code"] == "WORKSPACE_REPLACED"
        for hint in error["fix_hints"]:
            assert str(project) in shlex.split(hint)
    call("forget", project)
    call("init", project)
    assert call("log", project)["snapshots"] == []


def test_a_replaced_directory_can_adopt_the_history_and_be_restored(project: Path, call: Call) -> None:
    shutil.rmtree(project)
    project.mkdir()
    call("adopt", project)
    call("rollback", project, call("log", project)["snapshots"][0]["id"])
    assert (project / "file").read_text() == "one"


def test_directory_renamed_back_keeps_its_history(project: Path, call: Call) -> None:
    aside = project.with_name("aside")
    project.rename(aside)
    aside.rename(project)
    assert len(call("log", project)["snapshots"]) == 1


def test_forget_drops_the_history_of_a_deleted_directory(project: Path, call: Call) -> None:
    shutil.rmtree(project)
    found = call("forget", project)["forgotten"]
    assert (found["path"], found["shared"]) == (str(project), False)
    assert not (state_dir() / "workspaces" / found["workspace"]).exists()
    assert call("forget", project, code=2)["error"]["code"] == "WORKSPACE_UNKNOWN"


def test_forget_keeps_files_and_shared_snapshots(project: Path, tmp_path: Path, call: Call) -> None:
    call("fork", project, "HEAD", tmp_path / "fork")
    assert call("forget", project)["forgotten"]["shared"] is True
    assert (project / "file").read_text() == "one"
    (tmp_path / "fork/file").write_text("two")
    call("rollback", tmp_path / "fork", "HEAD")
    assert (tmp_path / "fork/file").read_text() == "one"


DIRECTORY_FIRST = "if it is a snapshot, give the directory first: proofbox workspace diff"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["diff", "HEAD"], f"{DIRECTORY_FIRST} . HEAD"),
        (["diff", "3f2a", "91c0"], f"{DIRECTORY_FIRST} . 3f2a 91c0"),
        (["diff", ".", "absent"], "list the snapshots: proofbox workspace log '{project}'"),
        (["init", "absent"], "mkdir -p '{project}/absent' && proofbox workspace init '{project}/absent'"),
        (["init", "file"], "use its parent directory: '{project}'"),
        (["init", "."], "use it as it is: proofbox workspace status '{project}'"),
        (["init", "."], "or drop its history first: proofbox workspace forget '{project}'"),
        (["status", "folder"], "it is part of the workspace {project}: proofbox workspace status '{project}'"),
        (["status", "folder"], "make it one: proofbox workspace init '{project}/folder'"),
    ],
)
def test_hints_suggest_working_commands(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], hint: str
) -> None:
    monkeypatch.chdir(project)
    (project / "folder").mkdir()
    assert hint.format(project=project) in call(*words, code=2)["error"]["fix_hints"]


def test_damaged_history_is_reported_with_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # a single store
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_bytes(b"a line that is stored\n" * 100)
    assert main(["workspace", "init", str(project)]) == 0
    assert main(["workspace", "snapshot", str(project)]) == 0
    pack = max((state_dir() / "workspaces" / "stores").rglob("pack*"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[data.index(b"stored")] ^= 1
    pack.write_bytes(data)
    capsys.readouterr()
    assert main(["workspace", "verify", str(project), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["verification"]["sound"]) == (False, False)
    assert found["error"]["code"] == "WORKSPACE_CORRUPT"
    assert found["error"]["fix_hints"]


def output_of(command: str, project: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["workspace", command, str(project)]) == 0
    return capsys.readouterr().out


def test_diff_shows_lines_without_control_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("one\ntwo\nthree\n")
    (tmp_path / "moved").write_text("the same")
    (tmp_path / "binary").write_bytes(b"\0\1")
    assert main(["workspace", "init", str(tmp_path)]) == 0
    assert main(["workspace", "snapshot", str(tmp_path)]) == 0
    (tmp_path / "text").write_text("one\n\x1b[31mtwo\u202e\nthree")
    (tmp_path / "moved").rename(tmp_path / "was\nmodified  text")
    (tmp_path / "binary").write_bytes(b"\0\2\3")
    (tmp_path / "long").write_text("x" * 5000 + "\n")
    shown = output_of("diff", tmp_path, capsys)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    lines = shown.splitlines()
    assert "-two" in lines
    assert "+\\x1b[31mtwo\\u202e" in lines
    assert "\\ No newline at end of file" in lines
    assert "renamed from moved to was\\nmodified  text" in lines
    assert "binary or too large to show: 2 bytes, then 3" in lines
    assert max(map(len, lines)) < 2100
    status = output_of("status", tmp_path, capsys).splitlines()
    assert status.count("modified  text") == 1


def test_a_diff_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workspace", "init", str(tmp_path)]) == 0
    for number in range(6):
        (tmp_path / f"{number}").write_text("line\n" * 4000)
    lines = output_of("diff", tmp_path, capsys).splitlines()
    assert len(lines) == 10_001
    assert lines[-1] == "more than 10000 lines, and 3 more paths: --json lists them all"
