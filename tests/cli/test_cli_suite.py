"""Suites and attempts on the command line: documents, texts, and errors with hints."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, command, conduct, mission, plan, say, write

from proofbox.cli import main
from proofbox.config.settings import Settings
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.limiter import Limiter
from proofbox.lab.run.placements import Placements
from proofbox.lab.run.plan import conductor_lock, ledger_path, read_plan
from proofbox.sandbox.initialize import initialize
from proofbox.viewer.rendering import Renderer
from proofbox.viewer.runs import RunReader
from proofbox.viewer.selection import Query, run_values

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("cli-suite")]

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
GOOD = HEAD + mission("answer", write("answer.txt", "42\n"), say("done"), verify=ANSWER)
WORDS = {"commands": ["test -d .", ["grep", "-qx", "42", "answer.txt"]]}
MIXED = GOOD + mission("lies", command("echo \x1b[31mred"), say("done"), verify=WORDS)


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output directory of a committed run. Only copies of it may be changed."""
    place = tmp_path_factory.mktemp("mixed")
    (place / "suite.toml").write_text(MIXED)
    with contextlib.redirect_stdout(io.StringIO()):
        words = ["suite", "run", str(place / "suite.toml"), "--out", str(place / "out"), "--provider", "bubblewrap"]
        assert main(words) == 1
    return place / "out"


@pytest.fixture
def ran(mixed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mixed, tmp_path / "out", symlinks=True))


def test_a_run_that_passes_and_its_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite.toml").write_text(GOOD)
    words = [
        "suite",
        "run",
        str(tmp_path / "suite.toml"),
        "--out",
        str(tmp_path / "out"),
        "--replicates",
        "2",
        "--json",
    ]
    assert main(words) == 0
    document = printed(capsys)
    assert (document["schema"], document["ok"], document["committed"]) == ("proofbox.suite_run/1", True, True)
    assert [each["attempt_id"] for each in document["attempts"]] == ["answer.1", "answer.2"]
    assert document["totals"]["passed"] == 2
    for each in document["attempts"]:
        assert (each["claimed"], each["verified"], each["infra"], each["reason"]) == (
            "success",
            "passed",
            None,
            "completed",
        )
        assert Path(each["bundle"], "artifact_index.json").exists()


@pytest.mark.parametrize("jsonl", [False, True])
def test_run_reports_the_limit_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, jsonl: bool
) -> None:
    # Only in the conductor: its workers, which would wait, are other processes.
    monkeypatch.setattr("proofbox.lab.run.conductor.credential_of", lambda _: "https://model\x1b KEY")
    Limiter("https://model\x1b KEY", 4).usage_limited(9e11)
    (tmp_path / "suite.toml").write_text(GOOD)
    words = ["suite", "run", str(tmp_path / "suite.toml"), "--out", str(tmp_path / "out")]
    assert main([*words, *(["--jsonl"] if jsonl else [])]) == 0
    captured = capsys.readouterr()
    if jsonl:
        (event,) = (each for line in captured.out.splitlines() if (each := json.loads(line)).get("event") == "waiting")
        assert (event["attempt_id"], event["mission_id"]) == ("answer.1", "answer")
        assert event["message"].startswith("usage limit (cut to 8 days: a later time was given): https://")
    else:
        (line,) = (line for line in captured.err.splitlines() if line.startswith("waiting: usage limit"))
        assert "https://model\\x1b KEY is not used until 2" in line


def test_run_reports_waiting_for_disk_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only in the conductor, as above.
    monkeypatch.setattr("proofbox.lab.run.resources.reason", lambda _: "less than 6 MiB are free at out")
    (tmp_path / "suite.toml").write_text(GOOD)
    words = ["suite", "run", str(tmp_path / "suite.toml"), "--out", str(tmp_path / "out")]
    assert main([*words, "--jsonl"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (event,) = (each for each in events if each.get("event") == "waiting")
    assert (event["attempt_id"], event["message"]) == ("answer.1", "less than 6 MiB are free at out")
    assert "until" not in event
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", each["at"]) for each in events if "event" in each)
    assert main(words) == 0
    assert "waiting: less than 6 MiB are free at out" in capsys.readouterr().err.splitlines()


def test_failed_run_exits_1_and_explains(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "report", str(ran), "--json"]) == 1
    document = printed(capsys)
    assert document["ok"] is False
    assert document["error"]["code"] == "SUITE_NOT_PASSED"
    assert main(["suite", "report", str(ran)]) == 1
    assert "1 of 2 verified as done; 1 claimed success and failed" in capsys.readouterr().out
    assert main(["attempt", "list", str(ran), "--json"]) == 0
    assert len(printed(capsys)["attempts"]) == 2
    assert main(["attempt", "show", "lies.1", "--run", str(ran), "--json"]) == 0
    assert printed(capsys)["documents"]["feedback.json"]["claimed"] == "success"
    assert main(["attempt", "explain", "lies.1", "--run", str(ran)]) == 0
    words = capsys.readouterr().out
    assert words.startswith("lies.1: claimed success but failed verification\nThe verifier's command `grep -qx 42 ans")
    assert "\x1b" not in words
    assert main(["attempt", "interrupt", "lies.1", "--run", str(ran)]) == 0
    assert "already ended" in capsys.readouterr().out
    assert main(["suite", "resume", str(ran), "--json"]) == 1
    assert printed(capsys)["committed"] is True


@pytest.mark.parametrize("words", [["suite", "report"], ["attempt", "list"], ["attempt", "explain", "lies.1", "--run"]])
def test_results_are_readable_in_a_read_only_directory(ran: Path, words: list[str]) -> None:
    argv = ["bwrap", "--ro-bind", "/", "/", sys.executable, "-m", "proofbox", *words, str(ran), "--json"]
    found = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    document = json.loads(found.stdout)
    assert "lies.1" in json.dumps(document.get("attempts") or document["attempt"])


def test_a_run_is_found_from_inside_its_directory(
    ran: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = ran.glob("run-*/")
    for inside, here in ((run, "."), (run / "attempts", ".."), (ran, ".")):
        monkeypatch.chdir(inside)
        assert main(["suite", "report", here, "--json"]) == 1
        assert printed(capsys)["run_id"] == run.name
        assert main(["attempt", "explain", "lies.1", "--run", here]) == 0
        capsys.readouterr()


def test_uncommitted_run_suggests_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "the out"
    made = plan(GOOD, out, tmp_path)
    assert main(["suite", "report", str(out)]) == 1
    assert f"(not committed: proofbox suite resume '{out / made.run_id}')" in capsys.readouterr().out
    with locked(conductor_lock(out, made.run_id)):
        assert main(["suite", "report", str(out)]) == 1
        assert "(under way)" in capsys.readouterr().out
    conduct(made, out)
    assert main(["suite", "report", str(out)]) == 0
    assert f"check it:  proofbox verify '{out / made.run_id}'" in capsys.readouterr().out
    (out / made.run_id / "artifact_index.json").unlink()
    (out / made.run_id / "run.status.json").unlink(missing_ok=True)
    assert main(["validate", str(out / made.run_id)]) == 1
    assert f"proofbox suite resume '{out / made.run_id}'" in capsys.readouterr().err


def test_unverified_missions_and_shared_isolation_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "suite.toml").write_text(HEAD + mission("one") + mission("two"))
    words = ["--strategies", "nop", "--isolation", "shared", "--provider", "bubblewrap"]
    assert main(["suite", "run", str(tmp_path / "suite.toml"), "--out", str(tmp_path / "out"), *words]) == 1
    text = capsys.readouterr().out
    assert "0 of 2 verified as done: nothing verifies these missions\n" in text
    assert "isolation: shared, so attempts could reach each other" in text
    assert main(["attempt", "explain", "one.1", "--run", str(tmp_path / "out")]) == 0
    assert "It shared the agent's process with other attempts" in capsys.readouterr().out


def test_reasons_for_not_comparable_are_grouped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    origin = {"format": "harbor", "name": "x", "sha256": "0", "not_comparable": ["it ran elsewhere"]}
    source = HEAD + "".join(mission(f"m{number}", origin=origin) for number in range(5))
    made = plan(source, tmp_path / "out", tmp_path)
    assert main(["suite", "report", str(tmp_path / "out")]) == 1
    text = capsys.readouterr().out
    assert text.count("not comparable") == 1
    assert "m0, m1, m2 and 2 more are not comparable: it ran elsewhere\n" in text
    remove_tree(tmp_path / "out" / ".work" / made.run_id)


def test_events_are_streamed_as_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite.toml").write_text(GOOD)
    words = ["suite", "run", str(tmp_path / "suite.toml"), "--out", str(tmp_path / "out"), "--jsonl"]
    assert main([*words, "--provider", "bubblewrap"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("event") for line in lines if "event" in line and line["event"] != "activity"] == [
        *("preparing", "running", "stopping", "verifying", "committing", "ended")
    ]
    assert lines[-1]["schema"] == "proofbox.suite_run/1"


def test_lint_locates_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite.toml").write_text(GOOD.replace("prompt =", "promt ="))
    assert main(["suite", "lint", str(tmp_path / "suite.toml"), "--json"]) == 1
    document = printed(capsys)
    assert document["problems"][0]["line"] == 5
    assert document["problems"][0]["fix_hint"] == "did you mean prompt?"
    assert main(["suite", "lint", str(tmp_path / "suite.toml")]) == 1
    assert "suite.toml:5:1:" in capsys.readouterr().out
    assert main(["suite", "schema", "--json"]) == 0
    found = printed(capsys)["json_schema"]
    assert found["$schema"].startswith("https://json-schema.org/")
    assert set(found["$defs"]["Mission"]["properties"]) >= {"id", "prompt", "verify", "expect", "budget", "script"}
    assert found["$defs"]["Mission"]["additionalProperties"] is False
    fields = [each for kind in found["$defs"].values() for each in kind["properties"].values()]
    assert all(each["description"] for each in fields)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["suite", "lint", "none.toml"], 2),
        (["suite", "run", "none.toml"], 2),
        (["suite", "run", "suite.toml", "-n", "0"], 2),
        (["suite", "run", "suite.toml", "--strategies", "nobody"], 2),
        (["suite", "run", "suite.toml", "--strategies", "a,,b"], 2),
        (["suite", "run", "suite.toml", "--model", "x"], 2),
        (["suite", "resume", "nowhere"], 2),
        (["suite", "report", "nowhere"], 2),
        (["attempt", "list", "nowhere"], 2),
        (["attempt", "show", "x", "--run", "nowhere"], 2),
        (["suite", "run", "suite.toml", "--provider", "dokcer"], 2),
        (["suite", "run", "suite.toml", "--out", ""], 2),
        (["suite", "run", "suite.toml", "--isolation", "shared"], 3),
        (["validate", "nowhere"], 2),
        (["report", "nowhere"], 2),
    ],
)
def test_bad_input_is_a_typed_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.toml").write_text(GOOD)
    assert main([*words, "--json"]) == code
    error = printed(capsys)["error"]
    assert error["code"]
    assert "Traceback" not in error["message"]
    assert not list(tmp_path.glob("out/run-*"))


def test_a_relative_mount_of_a_runtime_is_resolved_when_the_run_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent/agent.sh").write_text("echo 42 > answer.txt\n")
    (tmp_path / "suite.toml").write_text(HEAD + mission("answer", verify=ANSWER))
    settings = Settings(runtimes={"process": {"command": ["sh", "/agent/agent.sh"], "mounts": ["agent:/agent:ro"]}})
    initialize(tmp_path, settings)
    monkeypatch.chdir(tmp_path)
    words = ["--strategies", "process!", "--provider", "bubblewrap", "--json"]
    assert main(["suite", "run", "suite.toml", "--out", "out", *words]) == 0, capsys.readouterr().out
    with contextlib.closing(Ledger(next((tmp_path / "out").glob("*.ledger")))) as ledger:
        plan = read_plan(ledger)
    assert plan.runtimes["process"]["mounts"] == [f"{tmp_path}/agent:/agent:ro"]


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE attempt SET result = json_set(result, '$.verified', 'passed') WHERE id = 'lies.1'",
        "UPDATE attempt SET mission = 'answer', result = json_set(result, '$.reason', 'other') WHERE id = 'lies.1'",
        "DELETE FROM attempt WHERE id = 'lies.1'",
        "UPDATE about SET value = replace(value, 'grep -qx 42', 'true || grep -qx 42') WHERE key = 'plan'",
        "UPDATE about SET value = 'no' WHERE key = 'committed'",
    ],
    ids=["verdict", "mission", "row", "suite", "committed"],
)
def test_edited_ledger_does_not_change_results(ran: Path, capsys: pytest.CaptureFixture[str], edit: str) -> None:
    assert main(["suite", "report", str(ran), "--json"]) == 1
    before = printed(capsys)
    assert before["findings"] == []
    (path,) = ran.glob("*.ledger")
    with contextlib.closing(sqlite3.connect(path)) as ledger, ledger:
        assert ledger.execute(edit).rowcount == 1
    assert main(["suite", "report", str(ran), "--json"]) == 1
    after = printed(capsys)
    assert {**after, "findings": []} == before
    if "committed" not in edit:
        assert {each["code"] for each in after["findings"]} == {"ledger_disagrees"}
    assert main(["attempt", "list", str(ran), "--json"]) == 0
    assert printed(capsys)["attempts"] == before["attempts"]
    if "verified" in edit:
        assert main(["attempt", "explain", "lies.1", "--run", str(ran)]) == 0
        assert "its result differs from the one in the run's ledger" in capsys.readouterr().out


def test_contradicting_ledger_fails_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    made = plan(GOOD, out, tmp_path)
    conduct(made, out)
    assert main(["suite", "report", str(out)]) == 0
    with contextlib.closing(sqlite3.connect(ledger_path(out, made.run_id))) as ledger, ledger:
        ledger.execute("UPDATE attempt SET result = json_set(result, '$.claimed', 'failure')")
    capsys.readouterr()
    assert main(["suite", "report", str(out)]) == 1
    assert "ledger_disagrees: attempts/answer.1.e1: claimed: failure in the run's ledger" in capsys.readouterr().out


def test_bundles_that_came_too_late_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node returned them after their attempts had been taken over."""
    out = tmp_path / "out"
    made = plan(GOOD, out, tmp_path)
    conduct(made, out)
    assert main(["suite", "report", str(out), "--json"]) == 0
    shown = printed(capsys)
    assert (shown["refused"], shown["refused_bundles"]) == (0, None)
    place = out / f"{made.run_id}.refused"
    (place / "answer.1.e1").mkdir(parents=True)
    assert main(["suite", "report", str(out), "--json"]) == 0
    shown = printed(capsys)
    assert (shown["refused"], shown["refused_bundles"]) == (1, str(place))
    assert main(["suite", "report", str(out)]) == 0
    assert f"1 bundle from lost nodes came too late and does not count: {place}" in capsys.readouterr().out
    view = RunReader().read(out / made.run_id)
    page = Renderer().render("run.html", root="", **run_values("out", view, Query()))
    assert f"1 bundle from lost nodes came too late and does not count: <code>{made.run_id}.refused" in page


def test_status_shows_running_attempts_with_their_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    made = plan(GOOD, out, tmp_path, replicates=3)
    placements = Placements(out / ".work" / made.run_id)
    placements.set_node("node-a", "admitted: 2 attempts, bubblewrap")
    placements.set_node("node-b", "refused: the disk is full")
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        epoch = ledger.begin_epoch()
        first, second = (ledger.claim("driver", epoch, 60.0) for _ in range(2))
        assert first is not None
        assert second is not None
        ledger.enter_phase(second, "running")
    placements.place(second, "node-a")
    with locked(conductor_lock(out, made.run_id)):
        assert main(["suite", "status", str(out), "--json"]) == 0
        found = printed(capsys)
        assert main(["suite", "status", str(out)]) == 0
        text = capsys.readouterr().out
    assert (found["ended"], found["waiting"], found["conducted"], found["committed"]) == (0, 1, True, False)
    running = [(each["attempt_id"], each["state"], each["node"]) for each in found["running"]]
    assert running == [("answer.1", "claimed", None), ("answer.2", "running", "node-a")]
    assert [(each["name"], each["running"]) for each in found["nodes"]] == [("node-a", 1), ("node-b", 0)]
    assert "0 ended, 2 running, 1 waiting" in text
    assert re.search(r"answer.2 +running +\d+ +node-a", text)
    assert re.search(r"node-b +0 +refused: the disk is full", text)
    placements.release(second)
    assert main(["suite", "status", str(out)]) == 1
    text = capsys.readouterr().out
    assert "0 ended, 2 interrupted, 1 waiting" in text
    assert f"resume with: proofbox suite resume {out / made.run_id}" in text
