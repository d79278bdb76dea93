"""Long texts are redacted before they are cut, so a secret across the cut leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, mission, plan, say

from proofbox.lab.attempt.trace import PREVIEW as OUTPUT_KEPT
from proofbox.lab.attempt.verifier import KEPT as VERIFIER_KEPT

pytestmark = pytest.mark.needs("bubblewrap")

KEY = "Qx7vR2mK9pWzL4tYb8NcJ5hD3fGs6uAe1iOoTr"
LEAST = 6


def prints(dots: int, *, behind: int = 0, to: int = 1) -> str:
    """Return a command that prints the key between dots without containing it."""
    pieces = " ".join(KEY[at : at + LEAST - 1] for at in range(0, len(KEY), LEAST - 1))
    return f"{{ printf '%0{dots}d'; printf %s {pieces}; printf '%0{behind or 1}d'; }} >&{to}"


def test_secret_across_a_cut_is_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOO_API_KEY", KEY)
    kept, more = VERIFIER_KEPT, 2 * VERIFIER_KEPT
    verifier = [prints(kept - 20, behind=more, to=1), prints(more, behind=kept - 30, to=2)]
    suite = HEAD + "".join(
        [
            mission("in-outputs", command(prints(OUTPUT_KEPT - 20)), say("done"), verify={"commands": verifier}),
            mission("in-setup", say("done"), setup=[prints(5000, behind=2000 - 20, to=2) + "; false"]),
        ]
    )
    out = tmp_path / "out"
    made = plan(suite, out, tmp_path)
    conduct(made, out)
    reasons = {each.mission: each.result and each.result.reason for each in attempts(made, out).values()}
    assert reasons == {"in-outputs": "completed", "in-setup": "setup_failed"}
    parts = [KEY[at : at + LEAST].encode() for at in range(len(KEY) - LEAST + 1)]
    found = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert [path for path, data in found.items() for part in parts if part in data] == []
    assert sum(b"[redac" in data for data in found.values()) >= 3
