"""`[suite] max_concurrent`: an attempt is limited by the provider and the strategy that will run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from suites import mission, plan, say

from proofbox.cli import main
from proofbox.errors import SuiteInvalid
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import find_run, ledger_path

PROCESS = {"process": {"command": ["/bin/sh", "-s"]}}


def head(most: str) -> str:
    return f'[suite]\nid = "test"\nmax_concurrent = {{{most}}}\n'


def at_once(most: str, out: Path, base: Path, **options: Any) -> int:
    """Return how many of four attempts may run concurrently."""
    made = plan(head(most) + mission("a", replicates=4), out, base, **options)
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        epoch = ledger.begin_epoch()
        return sum(ledger.claim("w", epoch, 60.0) is not None for _ in range(4))


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("most", "provider", "allowed"),
    [
        ("bubblewrap = 1", None, 1),
        ("bubblewrap = 1", "auto", 1),
        ("bwrap = 2", "auto", 2),
        ("bubblewrap = 1", "bwrap", 1),
        ("bwrap = 3, bubblewrap = 2", "bubblewrap", 2),
        ("bubblewrap = 1", "off", 4),
        ("process = 2", "auto", 2),
        ("process = 3, bubblewrap = 2", "auto", 2),
        ("process = 2, bubblewrap = 3", "auto", 2),
        ("scripted = 1, docker = 1", "auto", 4),
        ("docker = 1", "nobody", 4),
    ],
)
def test_lane_is_the_provider_and_strategy_that_will_run_the_attempt(
    tmp_path: Path, most: str, provider: str | None, allowed: int
) -> None:
    options = {"chain": "process", "provider": provider, "runtimes": PROCESS}
    assert at_once(most, tmp_path / "out", tmp_path, **options) == allowed


def test_provider_from_user_settings_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/proofbox").mkdir(parents=True)
    (tmp_path / "config/proofbox/config.toml").write_text('provider = "off"\n')
    assert at_once("off = 3", tmp_path / "out", tmp_path, provider=None) == 3


def test_lane_uses_the_first_usable_strategy(tmp_path: Path) -> None:
    suite, out = tmp_path / "suite.toml", tmp_path / "out"
    suite.write_text(head("scripted = 1") + mission("a", say("done")))
    main(["suite", "run", str(suite), "--out", str(out), "--strategies", "process,scripted", "--provider", "off"])
    with Ledger(ledger_path(*find_run(out))) as ledger:
        assert [each.lane for each in ledger.attempts()] == ["off scripted"]


@pytest.mark.parametrize(("name", "hint"), [("dockr", "docker"), ("script", "scripted"), ("auto", "known: ")])
def test_limit_for_an_unknown_name_is_refused(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(SuiteInvalid, match=f"'{name}' is neither a provider nor a strategy") as refused:
        plan(head(f"docker = 1, {name} = 2") + mission("a"), tmp_path / "out", tmp_path)
    (problem,) = refused.value.details["problems"]
    assert (problem["line"], problem["column"]) == (3, 31)
    assert hint in problem["fix_hint"]
