"""The runtime that `new runtime` writes: it passes the conformance suite, and its package names its class."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import pytest

from proofbox.agents.conformance import run_conformance
from proofbox.agents.registry import GROUP, Registry
from proofbox.agents.runtimes import echo_agent
from proofbox.errors import UsageError
from proofbox.lab.examples import new_runtime


def test_new_runtime_conforms() -> None:
    report = run_conformance("echo_agent", registry=Registry({"echo_agent": echo_agent.EchoRuntime}))
    assert report.ok, [result.detail for result in report.of("failed")]
    assert len(report.of("passed")) >= 5
    assert report.version == "1"


def test_new_runtime_is_a_package_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = new_runtime(tmp_path / "echo")
    assert made.files == ("echo_agent.py", "pyproject.toml")
    declared = tomllib.loads((tmp_path / "echo/pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    monkeypatch.syspath_prepend(tmp_path / "echo")
    for id, target in declared.items():
        module, _, name = target.partition(":")
        assert getattr(importlib.import_module(module), name).id == id
    with pytest.raises(UsageError, match="already exists"):
        new_runtime(tmp_path / "echo")
    with pytest.raises(UsageError, match="not a directory"):
        new_runtime(tmp_path / "echo/echo_agent.py")
