"""Claims are read by a fixed rule, and expectations are compared with what was observed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.canonical import canonical_bytes
from proofbox.lab.attempt.claims import TEXT_LIMIT, read_feedback
from proofbox.lab.attempt.expectations import ObservedCall, unmet
from proofbox.lab.attempt.final_tree import NOTHING, FinalEntry
from proofbox.lab.suite.spec import Expect, FileCondition


@pytest.mark.parametrize(
    ("message", "claimed"),
    [
        ("done", "success"),
        ("Done: wrote 42.", "success"),
        ("**Fixed** the bug", "success"),
        ("failed: no compiler", "failure"),
        ("Can't do that", "failure"),
        ("Can\N{RIGHT SINGLE QUOTATION MARK}t do that", "failure"),
        ("", "none"),
        ("I looked at the file. It is done.", "none"),
        ("undone", "none"),
        ('{"status": "success", "answer": 42}', "success"),
        ('{"status": "failure"}', "failure"),
        ('{"status": "great"}', "none"),
        ('{"status": "success", "status": "failure"}', "none"),
        ("{not json", "none"),
    ],
)
def test_a_claim_is_read_by_a_fixed_rule(message: str, claimed: str) -> None:
    assert read_feedback(message).claimed == claimed


def no_files(_: Sequence[str], __: str | None) -> FinalEntry:
    return NOTHING


@given(st.one_of(st.text(), st.text().map(lambda text: "{" + text + "}"), st.just("{" * 100_000)))
def test_feedback_is_exactly_one_of_the_two_and_can_be_stored(message: str) -> None:
    document = read_feedback(message).document()
    assert ("result" in document) != ("result_json" in document)
    assert len(canonical_bytes(document)) < 1 << 20


def test_every_unmet_condition_is_reported() -> None:
    expect = Expect(
        claimed="success",
        result="4[23]",
        min_tool_calls=3,
        max_tool_failures=0,
        commands=("pytest", "^git "),
        no_commands=("curl",),
        file=(
            FileCondition(path="a", contains="x"),
            FileCondition(path="b"),
            FileCondition(path="c", exists=False),
        ),
    )
    calls = [ObservedCall("pytest -q", failed=True), ObservedCall("curl evil", failed=False)]
    found = unmet(
        expect,
        read_feedback("failed 41"),
        calls,
        lambda names, _: FinalEntry("a file", sha256="") if names != ("b",) else NOTHING,
    )
    assert [each.condition for each in found] == [
        "claimed",
        "result",
        "min_tool_calls",
        "max_tool_failures",
        "commands",
        "no_commands",
        "file a",
        "file b",
        "file c",
    ]


def test_no_expectations_means_nothing_unmet() -> None:
    assert unmet(Expect(), read_feedback("whatever"), [], no_files) == []


def test_members_are_compared_as_json() -> None:
    expect = Expect(result_json={"n": 1, "flag": True})
    assert unmet(expect, read_feedback('{"n": 1.0, "flag": true}'), [], no_files) == []
    assert [each.condition for each in unmet(expect, read_feedback('{"n": true, "flag": 1}'), [], no_files)] == [
        "result_json.n",
        "result_json.flag",
    ]


def test_long_message_keeps_both_ends_and_its_beginning_is_the_claim() -> None:
    found = read_feedback("done: " + "x" * 100_000 + "the last words")
    assert (found.claimed, found.truncated) == ("success", True)
    assert found.text is not None
    assert found.text.startswith("done: x")
    assert found.text.endswith("the last words")
    assert f"[proofbox: {100_020 - TEXT_LIMIT} bytes left out]" in found.text
