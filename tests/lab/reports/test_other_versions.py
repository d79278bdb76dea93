"""Evidence that another version of proofbox wrote: refused by name, and never taken for damaged or lost."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import rebuild, repin, rewrite_log
from suites import HEAD, attempts, command, conduct, mission, plan, say, write

from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.errors import BundleSchemaUnknown, RunInterrupted
from proofbox.evidence.bundle.index import Index
from proofbox.lab.attempt import artifacts
from proofbox.lab.run.conductor import Conductor
from proofbox.lab.run.plan import Plan

pytestmark = pytest.mark.needs("bubblewrap")

SUITE = HEAD + mission("m", write("a", "42\n"), command("true"), say("done"), verify={"commands": ["grep -qx 42 a"]})
READERS = {
    "attempt list": ("attempt", "list", "{run}"),
    "attempt explain": ("attempt", "explain", "m.1", "--run", "{run}"),
    "attempt diff": ("attempt", "diff", "{attempt}"),
    "attempt fork": ("attempt", "fork", "{attempt}", "--step", "1", "{run}.fork"),
    "explore": ("explore", "{attempt}", "--step", "1", "--prompt", "x", "--out", "{run}.tries"),
    "report": ("report", "{run}"),
    "report parity": ("report", "parity", "{run}", "{run}"),
    "suite report": ("suite", "report", "{run}"),
    "suite resume": ("suite", "resume", "{run}"),
    "view": ("view", "{run}", "--export", "{run}.html"),
}


@pytest.fixture
def made(out: Path, tmp_path: Path) -> Plan:
    made = plan(SUITE, out, tmp_path)
    conduct(made, out)
    return made


def as_version(bundle: Path, name: str, version: str) -> None:
    """Make a bundle state another version of a document, consistently."""
    document = json.loads((bundle / name).read_bytes())
    (bundle / name).write_bytes(canonical_bytes({**document, "schema_version": version}))

    def listed(index: Index) -> Index:
        entry = index.artifacts[name]
        changed = type(entry)(entry.path, entry.file_size, entry.sha256, version, entry.chain)
        return index._replace(artifacts={**index.artifacts, name: changed})

    rebuild(bundle, change=listed)


def as_newer(run: Path, attempt: Path) -> None:
    for name in (artifacts.ATTEMPT, artifacts.REPORT):
        as_version(attempt, name, artifacts.VERSIONS[name].replace("/", "/9"))
    repin(run)


@pytest.mark.parametrize("reader", READERS)
def test_readers_name_the_version(made: Plan, out: Path, capsys: pytest.CaptureFixture[str], reader: str) -> None:
    run = out / made.run_id
    attempt = run / attempts(made, out)["m.1"].path
    as_newer(run, attempt)
    capsys.readouterr()
    assert main(["verify", str(run)]) == 0
    capsys.readouterr()
    assert main([*(word.format(run=run, attempt=attempt) for word in READERS[reader]), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "BUNDLE_SCHEMA_UNKNOWN"
    assert "/92'" in error["message"]
    assert "/2'" in error["message"]


def other_lines(log: str) -> Callable[[Path, Path], None]:
    def change(run: Path, attempt: Path) -> None:
        lines = [json.loads(line) for line in (attempt / log).read_bytes().splitlines()]
        rewrite_log(attempt, log, [*lines[:-1], {**lines[-1], "schema_version": "proofbox.other/1"}])
        repin(run)

    return change


@pytest.mark.parametrize("change", [as_newer, *map(other_lines, ("tool.calls.jsonl", "steps.jsonl"))])
def test_validation_finds_another_version_and_no_damage(
    made: Plan, out: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path, Path], None]
) -> None:
    run = out / made.run_id
    change(run, run / attempts(made, out)["m.1"].path)
    capsys.readouterr()
    assert main(["validate", str(run), "--strict", "--json"]) == 1
    assert {each["code"] for each in json.loads(capsys.readouterr().out)["findings"]} == {"schema_unknown"}


def test_run_that_another_version_began_is_not_resumed(out: Path, tmp_path: Path) -> None:
    made = plan(HEAD + mission("a", say("done")) + mission("b", command("sleep 600")), out, tmp_path, concurrency=1)
    stop = threading.Event()

    def stop_after_the_first(event: dict[str, Any]) -> None:
        if event["event"] == "ended":
            stop.set()

    conductor = Conductor(out, made.run_id, stop=stop, on_event=stop_after_the_first)
    with contextlib.closing(conductor), pytest.raises(RunInterrupted):
        conductor.conduct()
    before = attempts(made, out)
    as_version(out / made.run_id / before["a.1"].path, artifacts.REPORT, "proofbox.attempt_report/92")
    with pytest.raises(BundleSchemaUnknown, match="attempt_report/92"):
        conduct(made, out)
    assert attempts(made, out) == before


@pytest.mark.parametrize(
    ("document", "code"),
    [([], "BUNDLE_SCHEMA_UNKNOWN"), ({"schema_version": artifacts.VERSIONS[artifacts.ATTEMPT]}, "PROOFBOX_CORRUPT")],
)
@pytest.mark.parametrize("reader", ["attempt diff", "attempt fork", "explore"])
def test_malformed_record_is_named(
    made: Plan, out: Path, capsys: pytest.CaptureFixture[str], document: object, code: str, reader: str
) -> None:
    run = out / made.run_id
    attempt = run / attempts(made, out)["m.1"].path
    (attempt / artifacts.ATTEMPT).write_bytes(canonical_bytes(document))
    rebuild(attempt)
    repin(run)
    capsys.readouterr()
    assert main([*(word.format(run=run, attempt=attempt) for word in READERS[reader]), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
