"""Suite files: valid ones are read, and problems are reported with their position."""

from __future__ import annotations

import json
import tarfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.cli import main
from proofbox.core.spec_files.positions import key_positions
from proofbox.errors import NotFoundError, SuiteInvalid
from proofbox.lab.suite.reading import parse_suite, read_suite
from proofbox.lab.suite.spec import VerifyCommand

SMALLEST = """\
[suite]
id = "first"
[[mission]]
id = "answer"
prompt = "Write 42 into answer.txt"
verify = { commands = ["grep -qx 42 answer.txt"] }
[[mission.script.step]]            # what the scripted agent plays; other strategies ignore it
tool = "write_file"
args = { path = "answer.txt", content = "42\\n" }
[[mission.script.step]]
say = "done"
"""


def problems(text: str, base: Path = Path()) -> list[dict[str, object]]:
    with pytest.raises(SuiteInvalid) as caught:
        parse_suite(text, base=base)
    found: list[dict[str, object]] = caught.value.details["problems"]
    return found


def test_the_smallest_suite_reads() -> None:
    suite = parse_suite(SMALLEST, base=Path())
    (mission,) = suite.missions
    assert (suite.id, mission.id, mission.replicates) == ("first", "answer", 1)
    assert suite.prompt_of(mission) == "Write 42 into answer.txt"
    assert mission.verify.commands == ("grep -qx 42 answer.txt",)
    assert [sorted(step) for step in mission.script.step] == [["args", "tool"], ["say"]]


def test_defaults_fill_in_missing_mission_fields() -> None:
    suite = parse_suite(
        '[suite]\nid="a"\n[defaults]\ntimeout=5\nprovider="off"\n[[mission]]\nid="x"\nprompt="p"\n'
        '[[mission]]\nid="y"\nprompt="p"\ntimeout=7\n',
        base=Path(),
    )
    assert [(each.timeout, each.provider) for each in suite.missions] == [(5.0, "off"), (7.0, "off")]


def test_equivalent_json_has_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "suite.json").write_text(json.dumps(tomllib.loads(SMALLEST)))
    assert read_suite(tmp_path / "suite.json").sha256 == parse_suite(SMALLEST, base=tmp_path).sha256


@pytest.mark.parametrize("kind", ["suite", "campaign", "plan"])
@pytest.mark.parametrize("wanted", ["suite", "campaign", "plan"])
def test_file_of_another_kind_is_refused_with_its_command(
    kind: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.toml"
    file.write_text(f'# a comment\n[{kind}]\nid = "a"\n')
    assert main([wanted, "run", str(file)]) == 1
    told = capsys.readouterr().err
    expected = f"{file}:2:2: this is a {kind}, not a {wanted}\n  fix: proofbox {kind} run {file}\n"
    assert (expected in told) == (kind != wanted)
    assert main([wanted, "lint", str(file)]) == 1
    assert (f"this is a {kind}" in capsys.readouterr().out) == (kind != wanted)


def test_unknown_field_is_refused_with_its_position_and_the_nearest_name() -> None:
    text = SMALLEST.replace('id = "answer"', 'id = "answer"\ntimeuot = 5')
    (problem,) = problems(text)
    assert (problem["line"], problem["column"]) == (5, 1)
    assert "timeuot" in str(problem["message"])
    assert problem["fix_hint"] == "did you mean timeout?"


def test_an_unknown_field_in_an_inline_table_is_found_there() -> None:
    (problem,) = problems(SMALLEST.replace("verify = { commands", "verify = { comands"))
    assert (problem["line"], problem["column"]) == (6, 12)
    assert problem["fix_hint"] == "did you mean commands?"


def test_all_problems_are_reported_together() -> None:
    found = problems('[suite]\nid = "A b"\n[[mission]]\nid = "x"\nprompt = "p"\ntimeout = -1\nreplicates = "two"\n')
    assert [each["line"] for each in found] == [2, 6, 7]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[suite]\nid="a"\n', "mission"),
        ('[suite]\nid="a"\nmission=[]\n', "mission"),
        ('mission = 5\n[suite]\nid="a"\n', "mission"),
        ('[suite]\nid="a"\n[[mission]]\nid="x"\n', "prompt"),
        ('[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\n[[mission]]\nid="x"\nprompt="p"\n', "duplicate mission id"),
        ('[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\nworkspace="nowhere"\n', "nowhere"),
        ('[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\nexpect={result="("}\n', "regular expression"),
        ('[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\ncapabilities="some"\n', "neither a preset"),
        (
            '[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\ncapabilities="agent"\nnetwork="none"\n',
            "both set the network",
        ),
        ('[suite]\nid="a"\nisolation="shared"\n[[mission]]\nid="x"\nprompt="p"\ncapabilities="agent"\n', "share"),
        ('[suite]\nid="../a"\n[[mission]]\nid="x"\nprompt="p"\n', "suite.id"),
        ("[suite\n", "Expected"),
    ],
)
def test_invalid_suites_are_refused(text: str, word: str) -> None:
    assert any(word in str(each["message"]) for each in problems(text))


def test_command_can_require_output() -> None:
    suite = parse_suite(
        '[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\n'
        '[[mission.verify.commands]]\nrun="pytest -q"\nstdout="3 passed"\n',
        base=Path(),
    )
    assert suite.missions[0].verify.commands == (VerifyCommand(run="pytest -q", stdout="3 passed"),)


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('verify={commands=[""]}', 19),
        ('verify={commands=["true", " "]}', 27),
        ("verify={commands=[[]]}", 19),
        ('verify={commands=[[""]]}', 19),
        ('verify={commands=[{run=""}]}', 20),
        ("verify={commands=[{run=[]}]}", 20),
        ('setup=[""]', 8),
        ('setup=["true", []]', 16),
    ],
)
def test_empty_command_is_refused_with_its_position(line: str, column: int) -> None:
    (found,) = problems(f'[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\n{line}\n')
    assert "empty command" in str(found["message"])
    assert (found["line"], found["column"]) == (6, column)


@pytest.mark.parametrize("path", ["/a", "../a", "a/../../b", ".", "./", "a\\u0000b"])
def test_condition_on_a_path_outside_the_workspace_is_refused_with_its_position(path: str) -> None:
    (found,) = problems(f'[suite]\nid="a"\n[[mission]]\nid="x"\nprompt="p"\nexpect.file=[{{path="{path}"}}]\n')
    assert "not a path in the workspace" in str(found["message"])
    assert (found["line"], found["column"]) == (6, 15)


def test_missing_or_non_text_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_suite(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(SuiteInvalid):
        read_suite(tmp_path / "bad.toml")


_keys = st.one_of(st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True), st.text(max_size=4))
_values = st.recursive(
    st.one_of(st.integers(-9, 9), st.booleans(), st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_keys, inner, max_size=3)),
    max_leaves=8,
)


def written(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[ # ]\n" + ",\n".join(written(each) for each in value) + "\n]"
    return json.dumps(value, ensure_ascii=True).replace("\\u007f", "\\u007F")


def paths(value: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [each for key, inner in value.items() for each in [(*at, key), *paths(inner, (*at, key))]]
    if isinstance(value, list):
        return [each for n, inner in enumerate(value) for each in [(*at, n), *paths(inner, (*at, n))]]
    return []


@given(st.dictionaries(_keys, _values, max_size=4))
def test_every_key_of_any_document_has_a_position(document: dict[str, object]) -> None:
    text = "".join(f"{json.dumps(key)} = {written(value)}  # = [x]\n" for key, value in document.items())
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # an escape that is valid in JSON but not in TOML
        return
    found = key_positions(text)
    assert set(found) == set(paths(parsed))
    lines = text.split("\n")
    for path, (line, column) in found.items():
        if isinstance(path[-1], str):
            assert lines[line - 1][column - 1 :].startswith(json.dumps(path[-1]))


MISSION = '[suite]\nid = "a"\n{suite}\n[[mission]]\nid = "x"\nprompt = "p"\n{mission}\n'


@pytest.mark.parametrize(
    ("suite", "mission", "place", "message", "hint"),
    [
        ("", 'script = { step = [{ tol = "write_file" }] }', (7, 22), "no field 'tol'", "did you mean tool?"),
        (
            "",
            'script = { step = [{ tool = "write_fil" }] }',
            (7, 22),
            "unknown tool 'write_fil'",
            "did you mean write_file?",
        ),
        ("", 'script = { step = [{ fault = "crahs" }] }', (7, 22), "unknown fault 'crahs'", "did you mean crash?"),
        ("", 'script = { step = [{ fault = "explode" }] }', (7, 22), "unknown fault 'explode'", "known: crash, "),
        ("", 'script = { step = [{ say = "a" }, {}] }', (7, 35), "found none", ""),
        ("", 'script = { step = [{ say = "a", think = "b" }] }', (7, 33), "found say, think", ""),
        ("", 'script = { step = [{ delay = "long" }] }', (7, 22), "Expected `float", ""),
        ("", 'provider = "dokcer"', (7, 1), "unknown provider 'dokcer'", "did you mean docker?"),
        (
            "max_concurrent = { dokcer = 2 }",
            "",
            (3, 20),
            "'dokcer' is neither a provider nor a",
            "did you mean docker?",
        ),
        ("most = { docker = 2 }", "", (3, 1), "no field 'most'", "did you mean max_concurrent?"),
        ("", 'network = "wat"', (7, 1), "unknown network mode 'wat'", "choose none, full or allow:"),
        ("", 'verify = { network = "allow:" }', (7, 12), "the allowlist has no hosts", "allow:example.org"),
        ('strategies = ["scriptd"]', "", (3, 15), "unknown strategy 'scriptd'", "did you mean scripted?"),
        ('strategies = ["scripted!!"]', "", (3, 15), "is not a strategy id", "did you mean scripted?"),
        ('strategies = ["nop", "nop"]', "", (3, 1), "nop is listed twice", ""),
        ('strategies = ["mine!", "scripted"]', "", (3, 15), "unknown strategy 'mine'", "known: "),
        ("", 'env = ["LANG", "BAD NAME"]', (7, 16), "'BAD NAME' is not a variable name", "one by one"),
        ("", 'env = ["OPENAI_API_KEY"]', (7, 8), "its name is on the block list", "remove it"),
        ("", 'verify = { env = { "A=B" = "x" } }', (7, 20), "'A=B' is not a valid name", "write NAME=VALUE"),
        ("", 'solution_env = { "" = "x" }', (7, 18), "'' is not a valid name", "write NAME=VALUE"),
        ("", "expect = { min_tool_calls = 3, max_tool_calls = 2 }", (7, 12), "min_tool_calls 3 is more than", ""),
    ],
)
def test_missions_that_could_never_run_are_refused(
    suite: str, mission: str, place: tuple[int, int], message: str, hint: str
) -> None:
    (problem,) = problems(MISSION.format(suite=suite, mission=mission))
    assert (problem["line"], problem["column"]) == place
    assert message in str(problem["message"])
    assert hint in str(problem.get("fix_hint", ""))


@pytest.mark.parametrize(
    ("suite", "mission"),
    [
        ('strategies = ["of_another_machine", "scripted"]', ""),
        ('strategies = ["nop!"]', 'provider = "auto"'),
        ("max_concurrent = { docker = 1 }", 'provider = "bwrap"\nnetwork = "allow:example.org:443"\nenv = ["LANG=C"]'),
        ("max_concurrent = { 'process.quick' = 1 }", ""),
        ("", 'script = { step = [{ fault = "stall" }, { tool = "run_command", args = { command = "true" } }] }'),
    ],
)
def test_values_accepted_by_runtimes_are_accepted(suite: str, mission: str) -> None:
    assert parse_suite(MISSION.format(suite=suite, mission=mission), base=Path()).id == "a"


def test_planned_run_stays_readable_after_stricter_checks(tmp_path: Path) -> None:
    text = MISSION.format(suite="", mission='provider = "of-another-time"')
    assert parse_suite(text, base=Path(), pinned=tmp_path).missions[0].provider == "of-another-time"


def test_torn_archive_is_found_only_when_unpacking(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "a").write_bytes(b"a" * 5000)
    with tarfile.open(tmp_path / "whole.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "whole" / "a", "a")
    data = (tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "torn.tar.gz").write_bytes(data[: len(data) // 2])
    file = tmp_path / "suite.toml"
    file.write_text(MISSION.format(suite="", mission='workspace = "whole.tar.gz"'))
    assert read_suite(file, unpacking=True).id == "a"
    file.write_text(MISSION.format(suite="", mission='workspace = "torn.tar.gz"'))
    with pytest.raises(SuiteInvalid) as caught:
        read_suite(file, unpacking=True)
    (problem,) = caught.value.details["problems"]
    assert (problem["line"], problem["column"]) == (7, 1)
    assert "'torn.tar.gz' cannot be unpacked" in problem["message"]


def test_malformed_part_does_not_hide_problems_of_other_parts() -> None:
    text = (
        '[suite]\nid = "a"\nstrategies = ["scriptd"]\nnonsense = 1\n[[mission]]\nid = "x"\ntimeuot = 1\nprompt = "p"\n'
        '[[mission]]\nid = "y"\nprompt_file = "nowhere"\n[[mission]]\nid = "y"\nprompt = "p"\n'
    )
    found = problems(text)
    assert [each["line"] for each in found] == [4, 7, 11, 13]


@pytest.mark.parametrize(
    ("suite", "mission", "place", "message", "hint"),
    [
        ("", 'timeout = "long"', (7, 1), "timeout of mission 'x': Expected", ""),
        ("", "timeuot = 1", (7, 1), "mission 'x' has no field 'timeuot'", "did you mean timeout?"),
        ("", 'expect = { commands = ["("] }', (7, 24), "expect.commands[0] of mission 'x' is not a valid regular", ""),
        ('isolation = "maybe"', "", (3, 1), "Invalid enum value 'maybe'", "known: process, shared"),
        ("", 'expect = { claimed = "sucess" }', (7, 12), "claimed of mission 'x'", "did you mean success?"),
        ("", 'capabilities = "minimal"', (7, 1), "no box can enforce these", "presets: sandbox, developer"),
        ("", 'prompt_file = "p"', (7, 1), "has both prompt and prompt_file", "remove one of them"),
    ],
)
def test_problems_use_the_names_of_the_suite(
    tmp_path: Path, suite: str, mission: str, place: tuple[int, int], message: str, hint: str
) -> None:
    (tmp_path / "p").write_text("do it")
    (problem,) = problems(MISSION.format(suite=suite, mission=mission), tmp_path)
    assert (problem["line"], problem["column"]) == place
    assert message in str(problem["message"])
    assert hint in str(problem.get("fix_hint", ""))


def test_byte_order_mark_is_reported_as_such() -> None:
    (problem,) = problems("\ufeff" + SMALLEST)
    assert (problem["line"], problem["column"], problem["fix_hint"]) == (1, 1, "save it as UTF-8 without one")
    assert "byte order mark" in str(problem["message"])


def test_limits_have_the_names_and_units_of_the_flags() -> None:
    def with_limits(limits: str) -> str:
        return SMALLEST.replace("[[mission]]", f"[defaults]\nlimits = {{ {limits} }}\n[[mission]]")

    (mission,) = parse_suite(with_limits('memory = "2g", disk = 512'), base=Path()).missions
    assert (mission.limits.memory_mb, mission.limits.disk_mb) == (2048, 512)
    for old, new in (("memory_mb", "memory"), ("disk_mb", "disk")):
        (problem,) = problems(with_limits(f"{old} = 64"))
        assert f"has no field '{old}'" in str(problem["message"])
        assert (problem["line"], problem["fix_hint"]) == (4, f"did you mean {new}?")
    assert len(problems(with_limits('memory = "2", disk = true'))) == 2
