"""The evidence names every environment variable that the agent received."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan

pytestmark = pytest.mark.needs("bubblewrap")

TELLS = "env -0 | sed -z 's/=.*//' | tr '\\0' '\\n' > names"
OF_THE_SHELL = {"_", "PWD", "OLDPWD", "SHLVL"}


@pytest.mark.parametrize("chain", ["process", "scripted"])
def test_every_variable_of_the_agent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain: str) -> None:
    monkeypatch.setenv("MY_OWN", "1")
    monkeypatch.setenv("FORWARDED", "1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/proofbox").mkdir(parents=True)
    (tmp_path / "config/proofbox/config.toml").write_text('env = ["FORWARDED", "ABSENT"]\n')
    out = tmp_path / "out"
    source = HEAD + mission("a", command(TELLS), env=["MY_OWN"], verify={"commands": ["cat names"]})
    source = source.replace('"do it"', f"'''{TELLS}'''")
    made = plan(source, out, tmp_path, trust=True, chain=chain, runtimes={"process": {"command": ["/bin/sh", "-s"]}})
    conduct(made, out)
    attempt = attempts(made, out)["a.1"]
    record = document(out, made, attempt, "attempt.json")
    had = set(record["verification"]["commands"][0]["stdout"].split()) - OF_THE_SHELL
    kept = record["environment"]
    assert {"HOME", "PATH", "FORWARDED"} <= set(kept["boxed"])
    assert kept["asked"] == ["MY_OWN"]
    assert {*kept["boxed"], *kept["allowed"], *kept["asked"], *kept["granted"]} == had
