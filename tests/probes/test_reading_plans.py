"""A wrong plan is refused with every problem, its position and a suggestion."""

from __future__ import annotations

import msgspec
import pytest

from proofbox.core.spec_files.problems import Problem
from proofbox.errors import PlanInvalid, PlanUnknown
from proofbox.probes.reading import load_plan, parse_plan
from proofbox.sandbox.probing.corpus import built_in_plan, built_in_plans
from proofbox.sandbox.probing.operations import OPERATIONS

GOOD = """\
[plan]
id = "mine"

[[profile]]
id = "only"

[[probe]]
id = "write"
operation = "file-write"
args = ["{victim}", "{mark}"]
expect = "deny"
reason = "hidden"
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"file-write"', '"file-wrote"', "9:1: no operation is called 'file-wrote' (did you mean file-write?)"),
        ("{victim}", "{victm}", "there is no decoy {victm} (did you mean victim?)"),
        ("{victim}", "/etc/passwd", "changes files, so it can only name the probe's decoys"),
        ("{victim}", "{outside}/secret", "changes files, so it can only name the probe's decoys"),
        ("{victim}", "{victim}/../x", "changes files, so it can only name the probe's decoys"),
        ("{victim}", "{victim", "a brace is not closed"),
        ('["{victim}", "{mark}"]', '["{victim}"]', "10:1: file-write needs path, text; 1 given"),
        ('["{victim}", "{mark}"]', '["{victim}", "a", "b"]', "10:1: file-write needs path, text; 3 given"),
        ("{mark}", "a\\tb", "an argument cannot contain control characters"),
        ('expect = "deny"', 'expect = "denied"', "11:1"),
        ('expect = "deny"', 'expects = "deny"', "has no field 'expects' (did you mean expect?)"),
        ('reason = "hidden"', "", "needs 'reason'"),
        (
            'reason = "hidden"',
            'reason = "hidden"\nprofiles = ["onl"]',
            "no profile is called 'onl' (did you mean only?)",
        ),
        ('reason = "hidden"', 'reason = "hidden"\nbaseline = "skip"', "a skipped baseline needs a baseline_reason"),
        ('id = "only"', 'id = "only"\ndisk_mb = 5', 'disk_mb needs access = "overlay"'),
        ('id = "only"', 'id = "only"\n[[profile]]\nid = "only"', "two tables [[profile]] have the id 'only'"),
        ('id = "mine"', "id = mine", "2:"),
    ],
)
def test_each_problem_has_a_position_and_a_suggestion(old: str, new: str, problem: str) -> None:
    assert parse_plan(GOOD, name="good").plan.id == "mine"
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(GOOD.replace(old, new, 1), name="bad.toml")
    problems = [msgspec.convert(each, Problem) for each in refused.value.details["problems"]]
    assert problem in "\n".join(map(str, problems))
    assert refused.value.message.startswith("bad.toml:")


def test_the_digest_covers_everything_but_the_formatting() -> None:
    digest = parse_plan(GOOD, name="one").digest
    assert parse_plan("# a comment\n" + GOOD, name="two").digest == digest
    assert parse_plan(GOOD.replace("hidden", "gone"), name="three").digest != digest


def test_built_in_plans_are_listed_and_valid() -> None:
    assert built_in_plans() == ["bubblewrap", "docker", "docker-runsc", "hostile", "off"]
    used = set()
    for name in built_in_plans():
        plan = built_in_plan(name)
        assert len(plan.probe) >= 80
        used |= {probe.operation for probe in plan.probe}
        for probe in plan.probe:
            assert len(probe.args) >= len([each for each in OPERATIONS[probe.operation].args if each != "arguments"])
    assert set(OPERATIONS) - used == {"resource-descriptors"}


def test_an_unknown_plan_names_the_known_ones() -> None:
    with pytest.raises(PlanUnknown) as refused:
        load_plan("bubblewarp")
    assert "bubblewrap" in str(refused.value.fix_hints)
