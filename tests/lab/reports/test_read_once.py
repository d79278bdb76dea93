"""Commands that read a committed run open each file of its attempts once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, command, conduct, mission, plan, say, write

from proofbox import load_run, report, validate, verify

pytestmark = pytest.mark.needs("bubblewrap")

SUITE = HEAD + mission("m", write("a", "42\n"), command("true"), say("done"), verify={"commands": ["grep -qx 42 a"]})
READERS: dict[str, Callable[[Path], Any]] = {
    "verify": verify,
    "validate": validate,
    "report": lambda run: report(run, strict=True),
    "load_run": load_run,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    return conduct(plan(SUITE, place / "out", place), place / "out")


@pytest.mark.parametrize("reader", READERS)
def test_each_file_of_an_attempt_is_opened_once(run: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open, opened = os.open, Counter[str]()

    def noted_open(path: Any, *args: Any, **options: Any) -> int:
        name = os.fspath(path)
        opened[os.path.basename(name) if "attempts/" in name else f"run: {name}"] += 1
        return really_open(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", noted_open)
        assert READERS[reader](run).ok
    names = os.listdir(run / "attempts/m.1.e1")
    assert len(names) > 10
    assert {name: opened[name] for name in names} == dict.fromkeys(names, 1)
    assert opened["run: schedule.jsonl"] == 2  # its digest is compared, and then its entries and its chain are read


RUNNING = ["asyncio", "importlib.metadata", "platform", "ssl", "statistics", "tempfile", "zipfile"]
RUNNING += ["proofbox.agents.runtimes.scripted.runtime", "proofbox.lab.suite.harbor.tasks"]
RUNNING += ["proofbox.sandbox.conformance", "proofbox.sandbox.containers.image_files", "proofbox.sandbox.service"]
RUNNING += ["proofbox.sandbox.client.wire", "proofbox.workspace.search.finder", "proofbox.workspace.workspace"]
CONDUCTING = ["anyio", "inspect", "ipaddress", "subprocess"]
CONDUCTING += ["proofbox.evidence.bundle.writer", "proofbox.lab.run.conductor"]


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        (["suite", "resume"], RUNNING),  # it conducts the run, unless that is committed
        (["attempt", "list"], RUNNING + CONDUCTING),
        (["validate"], RUNNING + CONDUCTING + ["proofbox.lab.attempt.runner_files", "proofbox.lab.run.plan"]),
        (["report"], RUNNING + CONDUCTING),
    ],
)
def test_reading_a_committed_run_loads_nothing_that_runs_or_checks_agents(
    run: Path, command: list[str], unneeded: list[str]
) -> None:
    script = (
        "import sys; from proofbox.cli import main; code = main(sys.argv[1:]);"
        f"print(sorted(set({unneeded!r}) & set(sys.modules))); sys.exit(code)"
    )
    line = [sys.executable, "-c", script, *command, str(run)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
