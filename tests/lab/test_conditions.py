"""Conditions in real attempts: what the agent said, called and left, held against `expect` by one run."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from suites import HEAD, attempts, conduct, document, mission, plan, say

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("conditions")]

ANSWER = '{"status":"success","answer":"fortytwo"}'


class Case(NamedTuple):
    expect: dict[str, Any]
    verified: str
    found: str = ""
    """What a condition that is not met says it found."""


SAID = {
    "nothing-asked": Case({"observed": True}, "none"),
    "no-members": Case({"result_json": {}}, "none"),
}


class Ran(NamedTuple):
    verified: dict[str, str]
    unmet: dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    base = tmp_path_factory.mktemp("conditions")
    suite = HEAD + "".join(mission(id, say(ANSWER), expect=case.expect) for id, case in SAID.items())
    made = plan(suite, base / "out", base)
    conduct(made, base / "out")
    told = {each.mission: each for each in attempts(made, base / "out").values()}
    return Ran(
        {id: each.result.verified for id, each in told.items() if each.result is not None},
        {id: document(base / "out", made, each, "verification.json")["unmet"] for id, each in told.items()},
    )


@pytest.mark.parametrize(("id", "case"), SAID.items(), ids=SAID)
def test_a_condition_holds_or_says_what_was_found(ran: Ran, id: str, case: Case) -> None:
    assert ran.verified[id] == case.verified, ran.unmet[id]
    assert [case.found in each["found"] for each in ran.unmet[id]] == [True] * (case.verified == "failed")
