"""A suite gets what widens a box, and files outside its directory, only with the user's consent."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from suites import HEAD, attempts, command, conduct, mission, plan, say

from proofbox.cli import main
from proofbox.config.consent import Widening, agree, require
from proofbox.core.dirs import config_dir, state_dir
from proofbox.errors import ConsentRequired, PlanUntrusted
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import PLAN, ledger_path, read_plan

OFF = HEAD + mission("a", say("done"), provider="off", setup=["touch {marker}"])


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "suite").mkdir()
    return tmp_path / "suite"


def suite_off(base: Path, tmp_path: Path) -> tuple[Path, Path]:
    marker = tmp_path / "made-on-the-host"
    (base / "suite.toml").write_text(OFF.format(marker=marker))
    return base / "suite.toml", marker


def test_suite_that_switches_the_sandbox_off_is_refused_and_runs_nothing(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite, marker = suite_off(base, tmp_path)
    words = ["suite", "run", str(suite), "--out", str(tmp_path / "out"), "--strategies", "scripted"]
    assert main([*words, "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == ConsentRequired.code
    assert error["widenings"] == [{"asks_for": 'provider = "off"', "mission": "a"}]
    assert "--trust" in error["fix_hints"][0]
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def test_trust_records_consent_for_the_list_and_the_path(base: Path, tmp_path: Path) -> None:
    suite, marker = suite_off(base, tmp_path)
    words = ["suite", "run", str(suite), "--out", str(tmp_path / "out"), "--strategies", "scripted", "--json"]
    main([*words, "--trust"])
    assert marker.exists()
    suite.write_text(suite.read_text().replace("do it", "do something else"))
    assert main(words) != 3  # another prompt
    suite.write_text(suite.read_text() + mission("b", say("done"), network="full"))
    assert main(words) == 3  # a longer list
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(OFF.format(marker=marker))
    assert main(["suite", "run", str(elsewhere), *words[3:]]) == 3  # another path


def test_provider_flag_and_user_config_need_no_consent(base: Path, tmp_path: Path) -> None:
    suite, _ = suite_off(base, tmp_path)
    words = ["suite", "run", str(suite), "--out", str(tmp_path / "out"), "--strategies", "scripted"]
    assert main([*words, "--provider", "off"]) != 3
    assert main(words) == 3
    (config_dir() / "config.toml").write_text('provider = "off"\n')
    assert main(words) != 3


@pytest.mark.parametrize(
    ("fields", "widening"),
    [
        ({"network": "full"}, 'network = "full"'),
        ({"network": "allow:example.org"}, 'network = "allow:example.org"'),
        ({"image": "someone/else:1"}, 'image = "someone/else:1"'),
        ({"env": ["MY_SETTING"]}, 'env = ["MY_SETTING"]'),
        ({"verify": {"commands": ["true"], "network": "full"}}, 'verify.network = "full"'),
        (
            {
                "verify": {"commands": ["true"]},
                "then": [{"prompt": "x", "verify": {"commands": ["true"], "network": "full"}}],
            },
            'then.0.verify.network = "full"',
        ),
        (
            {"then": [{"prompt": "x", "solution": "../beside/key"}]},
            'then.0.solution = "{beside}/key" outside',
        ),
        ({"capabilities": "developer"}, 'capabilities = "developer" with network = '),
        ({"capabilities": "net.toml"}, 'capabilities = "net.toml" with network = "full"'),
        ({"workspace": "../beside"}, 'workspace = "{beside}" outside'),
        ({"workspace": "{beside}"}, 'workspace = "{beside}" outside'),
        ({"workspace": "link"}, 'workspace = "{beside}" outside'),
        ({"workspace": "link/sub"}, 'workspace = "{beside}/sub" outside'),
        ({"workspace": "secret.tar"}, 'workspace = "{beside}/key.tar" outside'),
        ({"files": {"key": "../beside/key"}}, 'files.key = "{beside}/key" outside'),
        ({"verify": {"commands": ["true"], "files": "../beside"}}, 'verify.files = "{beside}" outside'),
        ({"verify": {"commands": ["true"], "mounts": {"/tests": "link"}}}, 'verify.mounts./tests = "{beside}" outside'),
        ({"solution": "../beside/key"}, 'solution = "{beside}/key" outside'),
        (
            {"capabilities": "../beside/caps.toml"},
            'capabilities = "{beside}/caps.toml", with everything it allows, out',
        ),
    ],
)
def test_everything_that_widens_is_listed_and_refused_before_it_is_used(
    base: Path, tmp_path: Path, fields: dict[str, object], widening: str, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = tmp_path / "beside"
    (beside / "sub").mkdir(parents=True)
    (beside / "key").write_text("PRIVATE")
    (beside / "key.tar").write_bytes(b"PRIVATE, and no archive")
    (beside / "caps.toml").write_text("PRIVATE, and no TOML")
    (base / "link").symlink_to(beside)
    (base / "secret.tar").symlink_to("../beside/key.tar")
    (base / "net.toml").write_text('preset = "sandbox"\n[network]\nallow = ["*"]\n')
    text = json.dumps(fields).replace("{beside}", str(beside))
    (base / "suite.toml").write_text(HEAD + mission("a", say("done"), **json.loads(text)))
    expected = widening.replace("{beside}", str(beside))
    assert main(["suite", "lint", str(base / "suite.toml"), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["widenings"]
    assert [each["asks_for"][: len(expected)] for each in listed] == [expected]
    assert main(["suite", "lint", str(base / "suite.toml")]) == 0
    shown = capsys.readouterr().out
    assert f"asks for {expected}" in shown
    assert "PRIVATE" not in shown
    out = tmp_path / "out"
    with pytest.raises(ConsentRequired) as refused:
        plan((base / "suite.toml").read_text(), out, base)
    assert expected in refused.value.message
    assert not out.exists()


def test_ordinary_suite_is_never_asked_about(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (base / "app/sub").mkdir(parents=True)
    (base / "inner").symlink_to("app/sub")
    (base / "prompt").write_text("do it")
    fields = {
        "workspace": str(base / "app"),
        "files": {"a": "inner", "b": "app/../prompt"},
        "env": ["LANG", "COLOUR=no"],
        "provider": "bubblewrap",
        "capabilities": "agent",
        "verify": {"commands": ["true"], "env": {"CI": "1"}, "mounts": {"/tests": "inner"}},
    }
    (base / "suite.toml").write_text(HEAD + mission("a", say("done"), **fields))
    assert main(["suite", "lint", str(base / "suite.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["widenings"] == []


def test_user_settings_are_the_baseline(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config_dir() / "config.toml").write_text('network = "allow:example.org"\nenv = ["MINE"]\nmemory = 512\n')
    (base / "suite.toml").write_text(
        HEAD
        + mission("within", say("done"), network="allow:example.org", env=["MINE"], limits={"memory": 256})
        + mission("beyond", say("done"), network="allow:example.org,example.com", limits={"memory": 1024})
    )
    main(["suite", "lint", str(base / "suite.toml"), "--json"])
    assert json.loads(capsys.readouterr().out)["widenings"] == [
        {"asks_for": "memory = 1024", "mission": "beyond"},
        {"asks_for": 'network = "allow:example.org,example.com"', "mission": "beyond"},
    ]


@pytest.mark.parametrize(("answer", "runs"), [("y", True), ("n", False), ("", False)])
def test_terminal_shows_the_list_and_asks(base: Path, tmp_path: Path, answer: str, runs: bool) -> None:
    suite, marker = suite_off(base, tmp_path)
    words = ["suite", "run", str(suite), "--out", str(tmp_path / "out"), "--strategies", "scripted"]
    controller, terminal = pty.openpty()
    os.write(controller, f"{answer}\n".encode())
    argv = [sys.executable, "-m", "proofbox", *words]
    ran = subprocess.run(argv, stdin=terminal, capture_output=True, text=True, check=False)
    os.close(controller)
    os.close(terminal)
    assert 'provider = "off" (mission a)' in ran.stderr
    assert (marker.exists(), ran.returncode != 3) == (runs, runs)


def test_damaged_record_consents_to_nothing(tmp_path: Path) -> None:
    asked = [Widening('provider = "off"', "a")]
    agree(tmp_path, asked)
    require(tmp_path, asked, command="x")
    (state_dir() / "consents.json").write_text('{"paths": 1}')
    with pytest.raises(ConsentRequired):
        require(tmp_path, asked, command="x")


def test_shorter_list_needs_no_new_consent_and_moved_request_does(tmp_path: Path) -> None:
    agree(tmp_path, [Widening("network", "a"), Widening("env", "b")])
    require(tmp_path, [Widening("network", "a")], command="x")
    with pytest.raises(ConsentRequired):
        require(tmp_path, [Widening("network", "a"), Widening("env", "a")], command="x")


@pytest.mark.needs("bubblewrap")
def test_resume_keeps_consent_and_refuses_a_changed_plan(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + mission("a", command("true"), say("done")), out, base)
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        original = ledger.get_value(PLAN)
        changed = msgspec.structs.replace(read_plan(ledger), provider="off")
        ledger.set_value(PLAN, msgspec.json.encode(changed).decode())
    conductor = Conductor(out, made.run_id)
    with pytest.raises(PlanUntrusted):
        conductor.conduct()
    conductor.close()
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        ledger.set_value(PLAN, original)
    conduct(made, out)
    assert attempts(made, out)["a.1"].result is not None
    assert made.run_id not in json.loads((state_dir() / "consents.json").read_bytes())["plans"]


@pytest.mark.needs("bubblewrap")
def test_plan_from_elsewhere_is_resumed_only_with_trust(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + mission("a", say("done")), out, base)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-user"))
    assert main(["suite", "resume", str(out), "--json"]) == 3
    assert not (out / made.run_id).exists()
    assert main(["suite", "resume", str(out), "--json", "--trust"]) == 1
