"""An agent that creates very deep or long paths ends like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, say

from proofbox.evidence.verify.verifier import verify

pytestmark = pytest.mark.needs("bubblewrap")

NEST = 'python3 -c \'import os\nfor _ in range({levels}): os.mkdir({name}); os.chdir({name})\nopen("end", "w")\''


def nest(levels: int, name: str) -> str:
    return NEST.format(levels=levels, name=f'"{name}"')


def test_deep_tree_ends_with_evidence_and_affects_no_other_attempt(
    deep_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = {"commands": ["test -e answer"]}
    source = HEAD + "".join(
        [
            mission("deep", command(nest(1500, "a")), command("touch answer"), say("done"), verify=answer),
            mission("deeper", command(nest(5000, "a")), command("touch answer"), say("done"), verify=answer),
            mission("long", command(nest(40, "n" * 200)), command("touch answer"), say("done"), verify=answer),
            mission("both", command(nest(1500, "n" * 255)), command("touch answer"), say("done"), verify=answer),
            mission("neighbour", command("touch answer"), say("done"), verify=answer),
        ]
    ).replace("verify =", 'limits = {"disk" = 100}\nverify =')
    out = deep_path / "out"
    made = plan(source, out, deep_path, concurrency=2)
    run = conduct(made, out)
    found = attempts(made, out)
    assert {each.id: each.result and each.result.verified for each in found.values()} == {
        "deep.1": "passed",
        "deeper.1": "passed",
        "long.1": "passed",
        "both.1": "passed",
        "neighbour.1": "passed",
    }
    assert "Traceback" not in capfd.readouterr().err, "no worker died"
    for each in found.values():
        assert document(out, made, each, "artifact_index.json")["status"] == "ok"
        left = document(out, made, each, "attempt.json")["final"]["not_in_it"]
        assert len(left) == (each.id != "neighbour.1"), "paths that are too deep are listed"
    assert verify(run).ok
    assert not (out / ".work" / made.run_id).exists()
