"""Documents that real commands print and store match the contract.

One scenario runs once: a box, a workspace, a suite, evidence, a packet, a delivery. Every document is validated against
its JSON Schema with additional members forbidden.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jsonschema  # type: ignore[import-untyped]
import pytest

from proofbox.cli import main
from proofbox.cli.commands.setup.contract import make_contract

pytestmark = [
    pytest.mark.needs("bubblewrap", "git", "limits"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("documents"),
    # A command that starts a session keeps its stream open until the process ends, and this process continues.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEY = "k3y-of-the-documents-test-0a1b2c"
SUITE = """
[suite]
id = "story"
[defaults]
verify = { commands = ["grep -qx 42 answer.txt"] }
[[mission]]
id = "answer"
prompt = "write 42 into answer.txt"
[[mission.script.step]]
tool = "write_file"
args = { path = "answer.txt", content = "42\\n" }
[[mission.script.step]]
tool = "run_command"
args = { command = "cat answer.txt" }
[[mission.script.step]]
usage = { input_tokens = 10, output_tokens = 2 }
[[mission.script.step]]
say = "done"
[[mission]]
id = "lie"
prompt = "write 42 into answer.txt"
expect = { claimed = "success" }
[[mission.script.step]]
say = "{\\"status\\": \\"success\\"}"
[[mission]]
id = "broken"
prompt = "anything"
setup = ["exit 3"]
"""
APP = {"appId": "shop", "appName": "Shop", "ownerUserId": "u-1"}
NOT_TOLD = {
    "proofbox.demo/1": "tests/cli/test_demo.py",
    "proofbox.demo_step/1": "the same",
    "proofbox.doctor/1": "minutes; tests/sandbox/conformance/test_conformance.py",
    "proofbox.image/1": "needs a catalogue; tests/sandbox/images/test_images.py",
    "proofbox.image_pulled/1": "the same",
    "proofbox.attempt_interrupt/1": "tests/cli/test_cli_suite.py",
    "proofbox.view/1": "serves until it is interrupted; tests/viewer/test_view_command.py",
    "proofbox.runtime_check/1": "a minute; tests/agents/conformance/test_runtime_conformance.py",
}
NOT_LEFT = {
    ".runtime.lock": "empty when no process holds it",
    "capabilities.toml": "TOML that a user writes; tests/workspace/capabilities/test_capabilities.py",
    "config.toml": "TOML; tests/config/test_settings.py",
    "proofbox.suite/1": "TOML; tests/lab/suite/test_spec.py",
    "proofbox.images/1": "TOML; tests/sandbox/images/test_images.py",
    "proofbox.images_lock/1": "needs a catalogue; the same",
    "proofbox.local_image/1": "needs an import; tests/sandbox/images/test_local_images.py",
    "proofbox.campaign/1": "TOML; tests/lab/campaign/test_campaign_spec.py",
    "proofbox.acp_thread/1": "only with an agent of ACP; tests/agents/runtimes/test_acp_live.py",
    "proofbox.annotation/1": "notes of a person; tests/viewer/test_annotations.py",
    "proofbox.embedded_evidence/1": "inside an HTML file; tests/viewer/test_export.py",
    "proofbox.runtime_measurement/1": "of scripts/bench runtimes; tests/agents/health/test_recommendation.py",
    "proofbox.attempt_cleanup/2": "only with cleanup commands; tests/lab/attempt/test_hooks.py",
    "proofbox.tree_manifest/2": "only with a mounted template; tests/evidence/documents/test_base_tree.py",
    "proofbox.claude_thread/1": "only with Claude Code; tests/agents/runtimes/test_claude_live.py",
    "proofbox.chain/1": "members of every line of a log: checked with it",
    "proofbox.conformance/1": "of `doctor`",
    "proofbox.runtime_conformance/1": "of `runtime check`",
    "proofbox.ledger/1": "SQLite",
    "proofbox.model_exchange/1": 'only with record = "bodies"; tests/lab/attempt/test_recorded_bodies.py',
    "proofbox.node/1": "only on a cluster; tests/lab/run/test_cluster.py",
    "proofbox.limiter/1": "only with a model; tests/lab/run/test_limiter.py",
    "proofbox.promotion_packet/1": "no longer written; tests/schemas",
    "proofbox.promotion_policy/1": "inside a packet",
    "proofbox.torn_attempt/1": "needs a killed run; tests/lab/run/test_run.py",
}


class Story:
    """Runs commands like a program and collects the documents they print."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.printed: list[dict[str, Any]] = []
        self.env = {"INTERNAL_API_KEY": KEY}

    def __call__(self, *words: str, code: int = 0) -> Any:
        stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with contextlib.chdir(self.place), patch.dict(os.environ, self.env), contextlib.redirect_stdout(stdout):
            ended = main(words)
        assert isinstance(stdout.buffer, io.BytesIO)
        lines = stdout.buffer.getvalue().splitlines()
        assert ended == code, (words, ended, lines[-1:])
        found = [json.loads(line) for line in lines]
        self.printed += found
        return found[-1]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    place = tmp_path_factory.mktemp("story")
    tell = Story(place)
    tell.env |= {f"XDG_{name}_HOME": str(place / "user" / name.lower()) for name in ("STATE", "CACHE", "CONFIG")}
    (place / "project").mkdir()
    (place / "project/hello.txt").write_text("hello\n")
    (place / "suite.toml").write_text(SUITE)
    (place / "wrong.toml").write_text("[suite]\nid = 3\n")
    (place / "play.toml").write_text('[[step]]\nsay = "done"\n')
    (place / "shop.json").write_text(json.dumps(APP))
    with backend(tell):
        play(tell)
        yield tell


class backend:
    def __init__(self, tell: Story) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        tell = self._tell
        common = ["--data", "backend", "--json"]
        tell("backend", "spec", "shop.json", "--enterprise-id", "e-1", *common)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "proofbox", "backend", "serve", "--port", "0", *common],
            cwd=tell.place,
            env={**os.environ, **tell.env},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        tell.printed.append(json.loads(self._process.stdout.readline()))
        tell.env["MOZAIKS_BACKEND_URL"] = tell.printed[-1]["url"]

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)


def play(tell: Story) -> None:
    project = ("--project", "project", "--json")
    tell("init", "--memory", "512", *project)
    tell("probe", "--json")
    tell("exec", *project, "--shell", "echo out; echo err >&2; exit 7", code=7)
    tell("exec", *project, "--", "no-such-thing", code=127)
    tell("images", "list", "--json")
    tell("contract", "--json")
    tell("completion", "bash", "--json")
    tell("runtime", "list", "--json")

    tell("workspace", "init", "project", "--json")
    first = tell("workspace", "snapshot", "project", "--message", "one", "--json")["snapshot"]["id"]
    change = json.dumps({"path": "hello.txt", "content": "changed\n"})
    tell("workspace", "call", "project", "write_file", "--args", change, "--json")
    tell("workspace", "call", "project", "run_command", "--args", '{"command": "cat hello.txt"}', "--json")
    for command in ("log", "status", "diff", "effects", "tools", "verify", "gc"):
        tell("workspace", command, "project", "--json")
    tell("workspace", "rollback", "project", first, "--json")
    tell("workspace", "adopt", "project", "--json")
    tell("workspace", "fork", "project", first, "forked", "--json")
    tell("workspace", "fork", "project", first, "forgotten", "--json")
    tell("workspace", "forget", "forgotten", "--json")
    words = ("--strategies", "scripted", "--script", "play.toml", "--prompt", "go", "--workspace", "forked", "--json")
    tell("runtime", "try", *words, "--out", "tried")
    tell("attempt", "diff", "tried", "--json")
    tell("attempt", "fork", "tried", "continued", "--step", "0", "--prompt", "go", "--json")

    words = ("--strategies", "scripted", "--script", "play.toml", "--prompt", "go", "--verify", "true", "--json")
    tell("explore", "tried", "--step", "0", "--branches", "2", "--out", "explored", *words)

    tell("suite", "schema", "--json")
    tell("suite", "lint", "suite.toml", "--json")
    tell("suite", "lint", "wrong.toml", "--json", code=1)
    ran = tell("suite", "run", "suite.toml", "--strategies", "scripted", "--provider", "bubblewrap", "--jsonl", code=1)
    tell("suite", "report", "out", "--json", code=1)
    tell("suite", "status", "out", "--json")
    tell("attempt", "list", "out", "--json")
    tell("attempt", "show", "answer.1", "--json")
    tell("attempt", "explain", "lie.1", "--json")
    tell("validate", "out", "--json")
    tell("report", "out", "--json")
    tell("report", "parity", "out", "out", "--json")
    tell("view", "out", "--export", "run.html", "--json")
    tell("verify", "out", "--json")
    tell("bundle", "list", "--json")
    tell("bundle", "show", "out", "--json")
    tell("bundle", "reindex", "out", "--strict", "--json")
    tell("bundle", "push", "out", "store", "--json")
    tell("bundle", "pack", "out", "--json")
    tell("gc", "out", "--json")
    tell("session", "prune", "--json")
    session = tell("session", "start", *project)["session"]["id"]
    tell("session", "exec", session, "--json", "--", "true")
    for command in ("list", "show", "stop"):
        tell("session", command, *([] if command == "list" else [session]), "--json")
    tell("key", "new", "release", "--json")
    attempt = next(each["bundle"] for each in ran["attempts"] if each["attempt_id"] == "answer.1")
    tell("promotion", "emit", attempt, "--out", "answer.promotion.json", "--json")
    tell("promotion", "verify", "answer.promotion.json", "--bundle", attempt, "--json")

    tell("new", "plan", "measurements", "--json")
    tell("plan", "list", "--json")
    tell("plan", "lint", "off", "--json")
    tell("plan", "show", "off", "--json")
    tell("plan", "run", "off", "--only-probe", "outside.write", "--out", "plans", "--json")
    tell("plan", "compare", "plans", "plans", "--json")

    tell("new", "campaign", "comparison", "--json")
    spec = "comparison/campaign.toml"
    tell("campaign", "lint", spec, "--json")
    tell("campaign", "schema", "--json")
    tell("campaign", "plan", spec, "--json")
    tell("campaign", "run", spec, "--out", "compared", "--jsonl")
    tell("campaign", "compare", "compared", "compared", "--json")
    tell("campaign", "publish-check", "compared", "--json")
    tell("campaign", "regrade", "compared", spec, "--out", "regraded", "--json")

    copy = tell("bundle", "pull", "store", "pulled", "--json")["path"]
    (tell.place / copy / "environment.json").write_text("{}")
    tell("verify", copy, "--json", code=1)
    tell("bundle", "reindex", copy, "--repair", "--json")

    app = ("--app-id", "shop", "--enterprise-id", "e-1", "--json")
    tell("deliver", "spec", "--enterprise-id", "e-1", "--json")
    tell("deliver", "init", *app, "--source", "project", "--allow-unpromoted", "--out", "delivered")
    tell("deliver", "plan", *app, "--source", attempt)
    packet = ("--packet", "answer.promotion.json", "--bundle", attempt)
    tell("deliver", "pr", *app, "--source", attempt, *packet, "--allow-unpromoted", "--out", "delivered")


def closed(schema: Any) -> Any:
    """Return the schema with additional members forbidden in every object."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        found.setdefault("additionalProperties", False)
    return found


def complaints(schema: dict[str, Any], document: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(closed(schema))
    return [f"{error.json_path}: {error.message[:300]}" for error in validator.iter_errors(document)]


def test_printed_documents_match_their_schemas(story: Story) -> None:
    schemas = make_contract().schemas
    # An error has additional members that depend on the case.
    schemas["proofbox.error/1"]["$defs"]["ErrorBody"]["additionalProperties"] = True
    wrong = {
        document["schema"]: found
        for document in story.printed
        if (found := complaints(schemas[document["schema"]], document))
    }
    assert not wrong
    assert schemas.keys() - {document["schema"] for document in story.printed} == NOT_TOLD.keys()


def stored_below(*places: Path) -> Iterator[tuple[str, Any]]:
    """Yield every stored document with its name; lines of a log without the members of the hash chain."""
    for path in sorted(found for place in places for found in (place, *place.rglob("*")) if found.is_file()):
        if path.suffix == ".jsonl" and path.name not in ("network.jsonl",):
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                del entry["seq"], entry["prev"]
                yield entry.get("schema_version") or entry.get("schema") or path.name, entry
        elif path.suffix == ".json":
            document = json.loads(path.read_bytes())
            if path.name == "workspace.json":
                yield path.name, document["body"]
            elif isinstance(document, dict) and isinstance(document.get("schema_version"), str):
                yield document["schema_version"], document


def test_stored_documents_match_their_schemas(story: Story) -> None:
    stored = make_contract().stored
    wrong: dict[str, list[str]] = {}
    seen: set[str] = set()
    for name, document in stored_below(
        *(
            story.place / each
            for each in (
                "out",
                "plans",
                "compared",
                "regraded",
                "explored",
                "pulled",
                "delivered",
                "trial",
                "user",
                "answer.promotion.json",
            )
        )
    ):
        entry = document
        if name == "events.jsonl":
            entry = dict(document["event"] if isinstance(document["event"], dict) else document)
            if "number" in entry:
                entry["seq"] = entry.pop("number")
        elif name == "steps.jsonl":  # of a trial: like `proofbox.step/2`, without the schema member
            name, entry = "proofbox.step/2", {"schema_version": "proofbox.step/2", "attempt": "", **document}
        seen.add(name)
        wrong.setdefault(name, []).extend(complaints(stored[name].json_schema, entry))
    assert not {name: found[:3] for name, found in wrong.items() if found}
    assert stored.keys() - seen == NOT_LEFT.keys()
