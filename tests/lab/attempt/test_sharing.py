"""Shared isolation refuses missions that cannot use the same box and session, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suites import HEAD, attempts, mission, plan

import proofbox
from proofbox.errors import SuiteInvalid, UsageError

PROCESS = {"process": {"command": ["/bin/sh", "-s"]}}


@pytest.mark.parametrize(
    ("fields", "options", "named"),
    [
        ({"network": "none"}, {}, "network"),
        ({"limits": {"memory": 64}}, {}, "limits"),
        ({"provider": "docker"}, {"provider": None}, "provider"),
        ({"image": "alpine"}, {}, "image"),
        ({"env": ["LANG"]}, {}, "env"),
        ({"tools": {"decline": ["rm *"]}}, {}, "tools"),
        ({"solution": "solve.sh"}, {"chain": "process,oracle"}, "solution"),
    ],
)
def test_missions_that_need_different_boxes_cannot_share(
    tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    (tmp_path / "solve.sh").touch()
    source = HEAD + mission("first") + mission("second") + mission("third", **fields)
    options = {"chain": "process", "isolation": "shared", "runtimes": PROCESS, **options}
    with pytest.raises(SuiteInvalid, match=f"'first' and 'third' differ in {named}") as refused:
        plan(source, tmp_path / "out", tmp_path, trust=True, **options)
    assert refused.value.details["missions"] == ["first", "third"]
    assert list(refused.value.details["differs"]) == [named]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fields", [{"capabilities": "agent"}, {"workdir": "/app"}])
def test_fields_that_need_a_box_per_attempt_cannot_be_shared(tmp_path: Path, fields: dict[str, Any]) -> None:
    source = HEAD + mission("only", **fields)
    with pytest.raises(SuiteInvalid, match=f"'only' sets {next(iter(fields))}"):
        plan(source, tmp_path / "out", tmp_path, chain="process", isolation="shared", runtimes=PROCESS)


def test_per_attempt_fields_may_differ(tmp_path: Path) -> None:
    ours = {"timeout": 5, "limits": {"disk": 9}, "provider": "docker", "solution": "solve.sh"}
    (tmp_path / "solve.sh").touch()
    source = HEAD + mission("first") + mission("second", **ours)
    made = plan(source, tmp_path / "out", tmp_path, chain="process", isolation="shared", runtimes=PROCESS)
    assert set(attempts(made, tmp_path / "out")) == {"first.1", "second.1"}


def test_run_that_shares_a_process_cannot_be_resumed_on_a_cluster(tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = plan(HEAD + mission("only"), out, tmp_path, chain="process", isolation="shared", runtimes=PROCESS)
    with pytest.raises(UsageError, match="cannot share one agent process"):
        proofbox.resume_suite(out, engine="ray:127.0.0.1:9")
    assert {each.state for each in attempts(made, out).values()} == {"planned"}
    assert not (out / made.run_id).exists(), "nothing was started"
