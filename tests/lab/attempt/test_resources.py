"""The report of an attempt has the requested, enforced and observed resources."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, say

pytestmark = pytest.mark.needs("bubblewrap", "root")

EATS = "python3 -c 'x = bytearray(600 << 20); x[::4096] = x[::4096]'"


def test_out_of_memory_is_reported(tmp_path: Path) -> None:
    source = HEAD + mission("eats", command(EATS), say("done"), limits={"memory": 200, "cpus": 1.0})
    made = plan(source, tmp_path / "out", tmp_path)
    conduct(made, tmp_path / "out")
    (attempt,) = attempts(made, tmp_path / "out").values()
    resources = document(tmp_path / "out", made, attempt, "attempt.report.json")["resources"]
    assert resources["requested"]["memory_mb"] == 200
    assert resources["enforced"]["memory_mb"] == 200
    assert resources["observed"]["oom_kills"] >= 1
    assert 150 << 20 < resources["observed"]["peak_memory_bytes"] <= 200 << 20
    assert resources["observed"]["cpu_throttled_periods"] is not None
