"""A report with members that the schema does not have is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from proofbox.cli import main
from proofbox.evidence.bundle.writer import BundleWriter

STATED: dict[str, Any] = {"schema_version": "proofbox.attempt_report/2", "attempt_id": "m.1", "mission_id": "m"}


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({}, "missing required field"),
        ({"tokens": {"gateway": {"input_tokens": "many"}}}, "attempt.report.json of "),
        ({"schema_version": "proofbox.attempt_report/9"}, "expected 'proofbox.attempt_report/2'"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_malformed_report_is_refused(
    members: dict[str, Any], problem: str, form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_json("attempt.json", {"schema_version": "proofbox.attempt/2"})
        bundle.write_json("attempt.report.json", {**STATED, **members})
    assert main(["report", str(tmp_path), *form]) == 1
    shown = "".join(capsys.readouterr())
    assert problem in shown
    assert "PROOFBOX_INTERNAL" not in shown


def test_report_with_every_member_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = next((Path(__file__).parents[2] / "schemas" / "proofbox.attempt_report").glob("*.json"))
    with BundleWriter.create(tmp_path) as bundle:
        bundle.write_json("attempt.json", {"schema_version": "proofbox.attempt/2"})
        bundle.write_json("attempt.report.json", msgspec.json.decode(example.read_bytes()))
    assert main(["report", str(tmp_path)]) == 0
    assert "TOKENS" in capsys.readouterr().out
