"""A suite runs in virtual machines without changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, write

from proofbox.sandbox.machines.kernel import prepare_kernel

pytestmark = [pytest.mark.needs("vm", "bubblewrap", "root"), pytest.mark.xdist_group("vm"), pytest.mark.timeout(900)]


def test_suite_runs_in_virtual_machines(tmp_path: Path) -> None:
    prepare_kernel(lambda _: None)
    source = HEAD + mission(
        "greeting",
        write("hello.txt", "hello\n"),
        command("uname -r > kernel; cat hello.txt"),
        verify={"commands": ["grep -qx hello hello.txt", "grep -q cloud kernel"]},
    )
    out = tmp_path / "out"
    made = plan(source, out, tmp_path, provider="vm")
    conduct(made, out)
    [(_, verified, infra, _)] = results(made, out).values()
    assert (verified, infra) == ("passed", None)
    [attempt] = attempts(made, out).values()
    assert document(out, made, attempt, "verification.json")["isolation"] == "vm"
