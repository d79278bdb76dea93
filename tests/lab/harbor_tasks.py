"""Helpers that write small tasks in Harbor's format and run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from suites import attempts, conduct, document, lines

from proofbox.core.ids import IdSource
from proofbox.lab.run.conductor import create_run
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import Plan
from proofbox.lab.suite.harbor.tasks import read_tasks

TOML = """\
version = "1.0"
[metadata]
tags = ["small"]
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
allow_internet = false
"""
PASSES_IF = """\
#!/bin/sh
if {condition}; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def task(
    root: Path,
    *,
    toml: str = TOML,
    dockerfile: str | None = "FROM scratch\nWORKDIR /app\n",
    test: str = PASSES_IF.format(condition="grep -qx 42 /app/answer.txt"),
    solve: str | None = "#!/bin/sh\necho 42 > /app/answer.txt\n",
) -> Path:
    """Create the directory of a task that, by default, asks for a 42 in /app/answer.txt."""
    put(root / "task.toml", toml)
    put(root / "instruction.md", "Write 42 into /app/answer.txt\n")
    put(root / "tests/test.sh", test)
    if dockerfile is not None:
        put(root / "environment/Dockerfile", dockerfile)
    if solve is not None:
        put(root / "solution/solve.sh", solve)
    return root


class Ran:
    """A run of tasks, with helpers to inspect it."""

    def __init__(
        self,
        path: Path,
        out: Path,
        strategy: str,
        *,
        host_root: bool = True,
        conducted: bool = True,
        flags: dict[str, str] | None = None,
    ) -> None:
        suite = read_tasks(path, host_root=host_root, to_run=True)
        self.plan = Plan(
            run_id=IdSource().new_id("run"),
            suite_name=str(path),
            suite_source=suite.source,
            suite_json=True,
            base=str(path),
            chain=strategy,
            chain_origin="flag",
            concurrency=1,  # starting more workers takes longer
            flags=flags or {},
        )
        self.out = out
        create_run(self.plan, out, trust=True)
        if conducted:
            self.conduct()

    def conduct(self) -> Ran:
        self.path = conduct(self.plan, self.out)
        self.attempts = {each.mission: each for each in attempts(self.plan, self.out).values()}
        return self

    def attempt(self, task: str | None = None) -> Attempt:
        """Return the attempt of a task, which must be the only one if it is not named."""
        if task is not None:
            return self.attempts[task]
        (attempt,) = self.attempts.values()
        return attempt

    def verdict(self, task: str | None = None) -> tuple[str, str | None, str]:
        result = self.attempt(task).result
        assert result is not None
        return result.verified, result.infra, result.reason

    def document(self, name: str, task: str | None = None) -> Any:
        return document(self.out, self.plan, self.attempt(task), name)

    def calls(self, task: str | None = None) -> list[dict[str, Any]]:
        return [each for each in lines(self.out, self.plan, self.attempt(task), "tool.calls.jsonl") if "call" in each]
