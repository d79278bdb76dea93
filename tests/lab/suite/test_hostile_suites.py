"""Any suite or task is either read or reported with the position of the problem; nothing else happens."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from harbor_tasks import TOML, task
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pacing import limited_time

from proofbox.core.spec_files.problems import MAX_PROBLEMS
from proofbox.errors import SuiteInvalid
from proofbox.lab.suite.harbor import task_table
from proofbox.lab.suite.harbor.tasks import read_tasks
from proofbox.lab.suite.reading import Suite, parse_suite, read_suite
from proofbox.lab.suite.spec import SuiteDocument

HEAD = '[suite]\nid = "a"\n[[mission]]\nid = "x"\n'
PROMPTED = f'{HEAD}prompt = "p"\n'

pytestmark = pytest.mark.filterwarnings("ignore:Possible nested set")


def reported(read: Callable[[], Suite]) -> list[dict[str, Any]] | None:
    """Return the problems, or None. Any other failure fails the test."""
    try:
        with limited_time():
            read()
    except SuiteInvalid as error:
        found: list[dict[str, Any]] = error.details["problems"]
        return found
    return None


def problems(text: str, base: Path = Path()) -> list[dict[str, Any]]:
    found = reported(lambda: parse_suite(text, base=base))
    assert found
    return found


def in_place(found: list[dict[str, Any]] | None) -> bool:
    return found is None or all(each["line"] >= 1 and each["column"] >= 1 for each in found)


def notes(suite: Suite) -> tuple[str, ...]:
    origin = suite.missions[0].origin
    assert origin is not None
    return origin.notes


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of things that a suite should not name."""
    place = tmp_path_factory.mktemp("odd")
    os.mkfifo(place / "pipe")
    (place / "loop").symlink_to("back")
    (place / "back").symlink_to("loop")
    (place / "nowhere").symlink_to("/nonexistent")
    (place / "folder").mkdir()
    (place / "latin").write_bytes(b"first\n\xe9t\xe9\n")
    (place / "empty").touch()
    (place / "plain").write_text("do it")
    with (place / "large").open("wb") as file:
        file.truncate((1 << 20) + 1)
    (place / "closed").write_text("x")
    (place / "closed").chmod(0)
    return place


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("limits = { cpus = inf }", "finite"),
        ("limits = { memory = 1 }", "invalid memory limit: 1 MBgive 4 MB or more"),
        ('limits = { memory = "0g" }', "invalid memory limit"),
        ("limits = { cpus = 0.001 }", "invalid cpus limit"),
        ("limits = { pids = 1 }", "invalid pids limit"),
        ('limits = { disk = "0m" }', "invalid disk limit"),
        ("script = { step = [{ say = nan }] }", "finite"),
        ("timeout = nan", "finite"),
        ("expect = { result_json = { a = 9007199254740992 } }", "integer"),
        (f"replicates = 0x{'f' * 9000}", "integer"),
        (f"replicates = {'9' * 5000}", "can't be read"),
        (f"timeout = {'9' * 400}", "integer"),
        (f"script = {{ step = [{{ args = {'[' * 150}{']' * 150} }}] }}", "nested"),
        (f"expect.result_json = {'{a=' * 150}1{'}' * 150}", "nested"),
        (f"expect.result_json.{'.'.join('a' * 90)} = 1", "nested"),
        (f"expect.result_json.{'.'.join('a' * 9000)} = 1", "parts"),
        ("expect = { result_json = { a = 1979-05-27 } }", "date"),
        ('verify.commands = [{ run = "x", stdout = "a{99999999999}" }]', "regular expression"),
        (f'expect.result = "{"(" * 3000}{")" * 3000}"', "regular expression"),
        ('expect.commands = ["ok", "(?L)x"]', "regular expression"),
        (f'workspace = "{"w" * 5000}"', "cannot be accessed"),
        ('workspace = "a\\u0000b"', "NUL"),
        ('env = ["A=\\u0000"]', "NUL"),
        ('verify.env = { "A\\u0000" = "b" }', "NUL"),
        ('workspace = "pipe"', "neither a file nor a directory"),
        ('workspace = "/dev/zero"', "neither a file nor a directory"),
        ('workspace = "loop"', "cannot be accessed"),
        ('verify.files = "plain"', "must be a directory"),
        ('verify.mounts = { "/x" = "nowhere" }', "does not exist"),
        ('capabilities = "pipe"', "neither"),
        ('capabilities = "folder"', "neither a preset nor a file"),
        ('files = { "../a" = "plain" }', "not a path in the workspace"),
        (f'files = {{ "{"n" * 256}" = "plain" }}', "too long"),
    ],
)
def test_unusable_value_is_reported_with_its_position(odd: Path, line: str, word: str) -> None:
    found = problems(PROMPTED + line + "\n", odd)
    assert all(each["line"] == 6 and each["column"] >= 1 for each in found)
    assert word in " ".join(each["message"] + each.get("fix_hint", "") for each in found)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("latin", "not UTF-8: byte 6"),
        ("folder", "must be a file"),
        ("large", "larger than 1 MiB"),
        ("empty", "is empty"),
        ("pipe", "neither a file"),
        ("loop", "cannot be accessed"),
    ],
)
def test_unreadable_prompt_is_reported_before_the_run(odd: Path, name: str, word: str) -> None:
    (found,) = problems(f'{HEAD}prompt_file = "{name}"\n', odd)
    assert (found["line"], found["column"]) == (5, 1)
    assert word in found["message"]


def test_malformed_json_is_reported_with_its_position() -> None:
    (found,) = reported(lambda: parse_suite('{"suite":\n  {"id": }}', base=Path(), json=True)) or []
    assert (found["line"], found["column"]) == (2, 10)


def test_suite_that_is_a_pipe_does_not_block(odd: Path) -> None:
    for name in ("pipe", "folder"):
        with pytest.raises(SuiteInvalid), limited_time():
            read_suite(odd / name)
    with pytest.raises(SuiteInvalid) as caught:
        read_suite(odd / "latin")
    assert caught.value.details["problems"][0]["line"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 400_000 + "".join(f"k{number} = 1\n" for number in range(50_000)),
        f"{PROMPTED}{'.'.join('a' * 500_000)} = 1",
        f"{PROMPTED}x = {{ {'.'.join('a' * 500_000)} = 1 }}",
        PROMPTED + 'expect.commands = ["' + "(a" * 100_000 + '"]',
        f"{PROMPTED}{'n' * 2_000_000} = 1",
        PROMPTED + "".join(f'[[mission]]\nid = "{number}"\n' for number in range(20_000)),
        f"{PROMPTED}expect.commands = [{'5,' * 200_000}]",
        'a = "',
        "a = [\n" * 3000,
    ],
)
def test_many_problems_are_reported_quickly(text: str) -> None:
    found = problems(text)
    assert len(found) <= MAX_PROBLEMS
    assert all(each["line"] >= 1 for each in found)


def fields(kind: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield every path in a suite where a value can be, by its types."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for option in get_args(bare) if get_origin(bare) in (Union, UnionType) else (bare,):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            for field in msgspec.structs.fields(option):
                yield (*at, field.name)
                yield from fields(field.type, (*at, field.name))
        elif get_origin(option) is tuple:
            yield (*at, 0)
            yield from fields(get_args(option)[0], (*at, 0))
        elif get_origin(option) is dict:
            yield (*at, "/k")
            yield (*at, "\0")


PLACES = sorted({path for path in fields(SuiteDocument) if path != ("mission",)}, key=str)
DEEP = "[" * 150 + "]" * 150
HOSTILE = [
    *("inf", "-inf", "nan", "0", "-1", "1e308", "9007199254740991", "9007199254740993", "1" + "0" * 400),
    *("0x" + "f" * 5000, "true", "[]", "{}", "[[[[]]]]", "[1, 'a', {}]", "{a = {b = [{c = 1}]}}", "1979-05-27"),
    *("07:32:00", DEEP, f'{{a = {DEEP}, run = "x"}}'),
    *(
        '""',
        '" "',
        '"\\u0000"',
        '"\\uE000\\u202e\\u001b[2J"',
        f'"{"x" * 5000}"',
        f'"{"../" * 3000}"',
        f'"{"a/" * 3000}"',
    ),
    *('"/"', '"/x"', '"."', '".."', '"/dev/zero"', '"/dev/full"', '"/proc/self/mem"'),
    *(f'"{name}"' for name in ("pipe", "loop", "nowhere", "folder", "latin", "empty", "plain", "large", "closed")),
    *(f'"{"(" * 3000}{")" * 3000}"', f'"{"(" * 99}{")" * 99}"', '"a{99999999999}"', '"x{65536}{65536}"', '"("'),
    *('"(?L)x"', "'[[a]'", "'(?P<a>x)(?P<a>y)'", "'\\Z\\1'"),
    *('["pipe"]', '{"/x" = "pipe"}', '{"/x" = "plain"}', '{x = "loop"}', '[{run = "x", stdout = "("}]'),
    *("{step = [{say = inf}]}", "{result_json = {a = 1e400}}"),
]


def put(document: Any, path: tuple[str | int, ...], raw: str) -> None:
    """Set a path to `raw`, a TOML value, replacing what is there."""
    for part, following in zip(path, (*path[1:], None), strict=True):
        made: Any = raw if following is None else [] if isinstance(following, int) else {}
        if isinstance(part, int):
            if not document or following is None or type(document[0]) is not type(made):
                document[:] = [made]
            document = document[0]
        else:
            if following is None or type(document.get(part)) is not type(made):
                document[part] = made
            document = document[part]


def toml(value: Any) -> str:
    if isinstance(value, dict):
        names = ("".join(f"\\u{ord(char):04X}" for char in name) for name in value)
        inner = (f'"{name}" = {toml(each)}' for name, each in zip(names, value.values(), strict=True))
        return "{" + ", ".join(inner) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else str(value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(HOSTILE)), min_size=1, max_size=3))
def test_any_value_in_any_field(odd: Path, changes: list[tuple[tuple[str | int, ...], str]]) -> None:
    document: dict[str, Any] = {"suite": {"id": '"a"'}, "mission": [{"id": '"x"', "prompt": '"p"'}]}
    for path, raw in changes:
        put(document, path, raw)
    text = "".join(f"{name} = {toml(value)}\n" for name, value in document.items())
    assert in_place(reported(lambda: parse_suite(text, base=odd)))


LINES = [
    *("[suite]", "[[mission]]", 'id = "a"', 'prompt = "p"', "mission = [{}]", "[defaults]", "[mission.verify]"),
    *(
        "a.b.c = 1",
        '"" = 1',
        "'\\' = 1",
        'x = """\n\\\n"""',
        "x = [ # ]\n]",
        "[[mission.script.step]]",
        "[suite.max_concurrent]",
    ),
    *("\r", "{", "}"),
]


@given(
    st.one_of(st.text(max_size=200), st.lists(st.sampled_from(LINES), max_size=8).map("\n".join)),
    st.booleans(),
)
def test_any_text(text: str, json: bool) -> None:
    found = reported(lambda: parse_suite(text, base=Path(), json=json))
    assert found != []
    assert json or in_place(found)


SECTIONS = [(section, name) for section, names in task_table._KNOWN.items() for name in (*names, "unknown", "\0")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(SECTIONS), st.sampled_from(HOSTILE)), min_size=1, max_size=3), st.booleans())
def test_any_value_in_any_field_of_a_task(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[tuple[str, str], str]], host_root: bool
) -> None:
    document: dict[str, Any] = {}
    for path, raw in changes:
        put(document, path, raw)
    text = "".join(f"{name} = {toml(value)}\n" for name, value in document.items())
    root = task(tmp_path_factory.mktemp("t") / "t", toml=text)
    assert reported(lambda: read_tasks(root, host_root=host_root)) != []


DOCKERFILE = [
    *("COPY src** /app/", "COPY **/x /app/", "COPY [a /app/", "COPY ][ /app/", "COPY * /app/", "COPY */*/*/* /app/"),
    *("COPY . .", "COPY \\", f"ADD {'a/' * 3000} .", f"COPY {'x' * 5000} /app", "COPY \0 /app", "COPY ../x /app"),
    *(f"COPY {'[' * 5000}", 'COPY ["a", 5, "b"]', "COPY --from=x a b", f"COPY {'/'.join(['l*'] * 30)} /app/"),
    *("ENV", "ENV =", "ENV A", "ENV A=\0", "RUN <<EOF", "FROM x"),
    *("WORKDIR \0", f"WORKDIR {'/w' * 3000}", "WORKDIR ../.."),
]


@given(st.lists(st.sampled_from(DOCKERFILE), max_size=6))
def test_any_dockerfile(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    root = task(tmp_path_factory.mktemp("t") / "t", dockerfile="\n".join(lines))
    for name in ("l1", "l2", "l3"):
        (root / "environment" / name).symlink_to(".")
    (root / "environment/srcs").mkdir()
    assert reported(lambda: read_tasks(root, host_root=True)) != []


def test_wildcard_matches_one_part_of_a_path(tmp_path: Path) -> None:
    root = task(
        tmp_path / "t", dockerfile="WORKDIR /app\nCOPY src** /app/\nCOPY d*/*.txt /app/texts/\nCOPY a[bc] /app/\n"
    )
    for name in ("src1/one", "src2/deep/two", "d1/x.txt", "d1/.y.txt", "d1/e/z.txt", "ab", "ac", "ad"):
        path = root / "environment" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    files = read_tasks(root, host_root=True).missions[0].files
    assert sorted(files) == ["ab", "ac", "deep", "one", "texts/.y.txt", "texts/x.txt"]


@pytest.mark.parametrize(
    "text", ["RUN \\\n" + "a \\\n" * 200_000, "RUN a\n" * 150_000, "ENV " + "A=b " * 200_000, "COPY . /app/\n" * 300]
)
def test_long_dockerfile_is_read_quickly(tmp_path: Path, text: str) -> None:
    root = task(tmp_path / "t", dockerfile=text)
    for number in range(200):
        (root / f"environment/{number}").touch()
    with contextlib.suppress(SuiteInvalid), limited_time():
        assert len(notes(read_tasks(root, host_root=True))) <= 200


def test_number_of_notes_is_bounded(tmp_path: Path) -> None:
    root = task(tmp_path / "t", toml=TOML + "".join(f"x{number} = 1\n" for number in range(60_000)))
    with limited_time():
        assert len(notes(read_tasks(root))) <= 200


def test_unreadable_task_is_reported(tmp_path: Path) -> None:
    root = task(tmp_path / "t")
    (root / "tests/loop").symlink_to("back")
    (root / "tests/back").symlink_to("loop")
    assert read_tasks(root, host_root=True)
    (root / "instruction.md").write_bytes(b"first\n\xff")
    with pytest.raises(SuiteInvalid, match="not UTF-8") as caught:
        read_tasks(root)
    assert caught.value.details["problems"][0]["line"] == 2
    (root / "instruction.md").unlink()
    os.mkfifo(root / "instruction.md")
    with pytest.raises(SuiteInvalid, match="neither"), limited_time():
        read_tasks(root)
