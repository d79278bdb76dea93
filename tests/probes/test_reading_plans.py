"""A wrong plan is refused with every problem, its position and a suggestion."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from proofbox.cli import main
from proofbox.core.digest import sha256_file
from proofbox.core.spec_files.problems import Problem
from proofbox.errors import PlanInvalid, PlanUnknown
from proofbox.probes.reading import load_plan, parse_plan
from proofbox.sandbox.probing import corpus
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


def test_the_digest_covers_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    assert load_plan(str(tmp_path / "mine.toml")).digest == sha256_file(tmp_path / "mine.toml")[0]
    before = load_plan("off").digest
    copy = Path(shutil.copytree(corpus._directory(), tmp_path / "plans"))
    monkeypatch.setattr(corpus, "_directory", lambda: copy)
    assert load_plan("off").digest == before
    with (copy / "corpus.toml").open("a") as file:
        file.write("# a comment\n")
    assert load_plan("off").digest != before


def test_built_in_plans_are_listed_and_valid() -> None:
    assert built_in_plans() == ["bubblewrap", "docker", "docker-runsc", "hostile", "off", "vm"]
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


def test_lint_lists_every_problem_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = GOOD.replace('"file-write"', '"zzz"') + '[[probe]]\nid = "b"\nargs = []\nexpect = "deny"\n'
    wrong += 'reason = "x"\noperation = "yyy"\n'
    (tmp_path / "bad.toml").write_text(wrong)
    assert main(["plan", "lint", str(tmp_path / "bad.toml")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0].removeprefix(f"{tmp_path}/") for line in lines] == [
        "bad.toml:9:1: no operation is called 'zzz'",
        "bad.toml:18:1: no operation is called 'yyy'",
    ]
    assert main(["plan", "lint", str(tmp_path / "bad.toml"), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2
    assert main(["plan", "run", str(tmp_path / "bad.toml")]) == 1
    assert capsys.readouterr().err.count("known: dir-list") == 1


def test_lint_of_a_good_plan_and_of_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "good.toml").write_text(GOOD)
    assert main(["plan", "lint", str(tmp_path / "good.toml")]) == 0
    assert capsys.readouterr().out == "mine: 1 probe in 1 profile, no problems\n"
    assert main(["plan", "lint", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml is neither a file nor a built-in plan" in capsys.readouterr().err
