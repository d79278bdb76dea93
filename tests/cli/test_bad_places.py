"""Bad conditions of real processes: broken streams, environments and permissions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bad_files import PLACES, lines_for_pipes, lines_for_place
from bad_lines import ANSWERED, REFUSED, USAGE, Line
from bad_world import described, made_world, problems
from capabilities import OrdinaryUser

from proofbox.cli import main

SECONDS = 60.0
PROGRAM = "from proofbox.cli import entry; entry()"
PASSES = frozenset({0, 125})

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("bad-places")]


class Try(NamedTuple):
    words: tuple[str | bytes, ...]
    codes: frozenset[int] = ANSWERED
    env: Mapping[str, str | bytes | None] = {}
    """None unsets a variable."""
    script: str = 'exec "$@"'
    """The shell script to run; `$@` is the command line."""


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    with made_world() as place:
        yield place


def answer(place: Path, each: Try, python: str, env: Mapping[str, str], identity: Mapping[str, Any]) -> str:
    """Return the problems in the result; empty if there are none."""
    given = {**env, **each.env}
    done = subprocess.run(
        ["/bin/sh", "-c", each.script, "sh", python, "-P", "-c", PROGRAM, *each.words],
        cwd=place,
        env={name: value for name, value in given.items() if value is not None},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SECONDS,
        **identity,
    )
    words = tuple(map(os.fsdecode, each.words))
    line = Line(f"{dict(each.env)} {each.script}", words, each.codes)
    found = problems(line, done.returncode, done.stdout, done.stderr)
    if each.script != Try(()).script:  # the streams may be unusable
        found = [each for each in found if "JSON" not in each and "no code" not in each]
    return described(line, found, done.stdout, done.stderr) if found else ""


def answers(place: Path, tries: Sequence[Try], user: OrdinaryUser | None = None) -> None:
    python, env, identity = (user.python, user.env, user.identity) if user else (sys.executable, os.environ, {})
    with ThreadPoolExecutor(3) as pool:
        wrong = list(filter(None, pool.map(lambda each: answer(place, each, python, env, identity), tries)))
    assert not wrong, f"{len(wrong)} of {len(tries)} answers are wrong:\n" + "\n".join(wrong)


def sample(tries: Sequence[Try], number: int, count: int) -> list[Try]:
    """Return `count` of the tries, different ones for each number, so that the tests together use all of them."""
    return [tries[(number * count + each) % len(tries)] for each in range(count)]


STREAMS = (
    '"$@" <&-',
    '"$@" >&-',
    '"$@" 2>&-',
    '"$@" <&- >&- 2>&-',
    '"$@" >/dev/full',
    '"$@" 2>/dev/full',
    '"$@" >/dev/full 2>&1',
    '"$@" </proc/self/mem',
    '"$@" | true',
    '{ "$@" 2>&1 >&3 | true; } 3>&1',
)
SAYS_MUCH = (
    (("--help",), ANSWERED),
    (("nonsense",), USAGE),
    (("exec", "--provider", "off", "--", "echo", "x"), PASSES),
    (("exec", "--json", "--provider", "off", "--stdin", "-", "--", "cat"), PASSES),
    (("verify", "absent", "--json"), REFUSED),
    (("workspace", "call", "project", "read_file", "--args", "-", "--json"), ANSWERED),
    (("contract", "--json"), ANSWERED),
    (("session", "list"), ANSWERED),
    (("suite", "lint", "suite.toml"), ANSWERED),
    (("doctor", "--provider", "apple-vm"), ANSWERED),
    (("workspace", "status", "project"), ANSWERED),
    (("images", "pull", "small", "--catalogue", "images.toml"), REFUSED),
    (("runtime", "list"), ANSWERED),
    (("completion", "bash"), ANSWERED),
)


@pytest.mark.parametrize("script", STREAMS)
def test_closed_full_and_broken_streams(script: str, world: Path, rounds: Callable[[int, int], int]) -> None:
    # The exit code of a pipeline is that of its last command: 0. An unwritable stdout makes any command fail.
    shown = [
        Try(words, (codes | {0} if "|" in script else codes | {3, 125}), script=script) for words, codes in SAYS_MUCH
    ]
    answers(world, sample(shown, STREAMS.index(script), rounds(3, len(shown))))


ENVIRONMENTS: tuple[Mapping[str, str | bytes | None], ...] = (
    {"HOME": None, "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None},
    {"HOME": "/nonexistent", "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None},
    {"HOME": "", "XDG_STATE_HOME": "", "XDG_CONFIG_HOME": "relative"},
    {"XDG_STATE_HOME": "/dev/null", "XDG_CONFIG_HOME": "/dev/null"},
    {"XDG_STATE_HOME": "/proc", "XDG_CONFIG_HOME": "/proc", "XDG_CACHE_HOME": "/proc"},
    {"XDG_STATE_HOME": "/" + "n" * 300, "XDG_CONFIG_HOME": "/" + "d/" * 2500},
    {"XDG_STATE_HOME": b"/tmp/\xff\xfe/nowhere\xff", "XDG_CONFIG_HOME": b"/proc/\xff"},
    {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "xx_YY.NONSENSE", "PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1:strict"},
    {"TERM": "dumb", "COLUMNS": "0", "LINES": "0", "NO_COLOR": "1"},
    {"TERM": "", "COLUMNS": "-7", "LINES": "abc"},
    {"TERM": "\x1b[31m", "COLUMNS": "9" * 30, "FORCE_COLOR": "1"},
    {"PROOFBOX_STRATEGIES": "no-such!!,,", "PROOFBOX_TURN": "x", "PROOFBOX_FUNNEL": "x"},
    {"PATH": None},
    {"PATH": "", "TMPDIR": "/nonexistent", "TZ": "Nowhere/Nothing"},
    {"DOCKER_HOST": "nonsense://", "MOZAIKS_BACKEND_URL": "::::", "INTERNAL_API_KEY": "\n"},
    {"DOCKER_HOST": "unix:///" + "n" * 300, "CODEX_HOME": "/dev/null", "HTTP_PROXY": "::::"},
    {"DOCKER_HOST": b"tcp://\xff:x", "SOME\udcffNAME": "x", "SOURCE_DATE_EPOCH": "abc"},
)
ASKS_THE_ENVIRONMENT = (
    (("runtime", "list", "--json"), ANSWERED),
    (("session", "exec", "--help"), ANSWERED),
    (("exec", "--json", "--provider", "off", "--env", "SOME", "--", "true"), PASSES),
    (("deliver", "plan", "--app-id", "a", "--source", "folder", "--timeout", "1", "--json"), ANSWERED),
    (("session", "list", "--json"), ANSWERED),
    (("probe", "--json"), ANSWERED),
    (("workspace", "log", "project", "--json"), ANSWERED),
    (("images", "list", "--json"), ANSWERED),
    (("suite", "report", "out"), ANSWERED),
)


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: " ".join(map(ascii, env)))
def test_invalid_environment_variables(
    env: Mapping[str, str | bytes | None], world: Path, rounds: Callable[[int, int], int]
) -> None:
    tries = [Try(words, codes, env) for words, codes in ASKS_THE_ENVIRONMENT]
    answers(world, sample(tries, ENVIRONMENTS.index(env), rounds(2, len(tries))))


def test_deleted_working_directory(world: Path) -> None:
    gone = 'mkdir "gone-$$" && cd "gone-$$" && rmdir "../gone-$$" && exec "$@"'
    words: list[tuple[str, ...]] = [
        ("exec", "--json", "--provider", "off", "--", "true"),
        ("init", "--json"),
        ("workspace", "init", "--json"),
        ("suite", "run", "suite.toml", "--json"),
        ("verify", "out", "--json"),
        ("key", "new", "k", "--json"),
        ("runtime", "list", "--json"),
        ("deliver", "spec", "--enterprise-id", "e", "--json"),
        ("probe", "--json"),
    ]
    answers(world, [Try(each, PASSES if each[0] == "exec" else ANSWERED, script=gone) for each in words])


def test_arguments_that_are_not_utf8(world: Path) -> None:
    bad = b"\xff\xfe\x80"
    words: list[tuple[str | bytes, ...]] = [
        (bad,),
        ("session", bad),
        ("session", "show", bad, "--json"),
        ("verify", bad, "--json"),
        ("verify", "absent", b"--" + bad),
        ("suite", "lint", bad + b".toml", "--json"),
        ("key", "show", bad, "--json"),
        ("workspace", "status", bad, "--json"),
        ("gc", bad, b"--older-than=" + bad, "--json"),
        ("suite", "run", bad + b".toml", "--json"),
    ]
    answers(world, [Try(each, REFUSED) for each in words])
    answers(world, [Try(("exec", "--provider", "off", "--json", "--", bad), frozenset({127}))])


def test_output_paths_that_are_not_utf8(world: Path) -> None:
    """Each line succeeds or is refused before anything is created."""
    bad = b"made-\xff"
    refused: list[tuple[str | bytes, ...]] = [
        ("suite", "run", "suite.toml", "--out", bad, "--strategies", "scripted", "--json"),
        ("suite", "run", "suite.toml", "--out", bad + b"/below", "--strategies", "scripted", "--json"),
        ("demo", "--keep", bad, "--json"),
    ]
    answers(world, [Try(each, USAGE) for each in refused])
    in_it = 'mkdir "$(printf "in-\\377")" && cp suite.toml in-* && cd in-* && exec "$@"'
    answers(world, [Try(("suite", "run", "suite.toml", "--strategies", "scripted", "--json"), USAGE, script=in_it)])
    (inner,) = world.glob("in-*")
    assert [path.name for path in inner.iterdir()] == ["suite.toml"]
    assert not list(world.glob("made-*"))
    works: list[tuple[str | bytes, ...]] = [
        ("runtime", "try", "--prompt", "go", "--workspace", "folder", "--strategies", "nop", "--out", bad + b"r"),
        ("workspace", "fork", "project", "HEAD", bad + b"f"),
        ("promotion", "emit", "out", "--output", bad + b"p"),
        ("bundle", "push", "out", bad + b"s"),
        ("bundle", "pull", "store", bad + b"b"),
        ("key", "new", bad + b"k"),
    ]
    answers(world, [Try((*each, "--json"), frozenset({0})) for each in works])


def test_file_size_limit_is_reported(world: Path) -> None:
    words: list[tuple[str, ...]] = [
        ("key", "new", "tiny", "--json"),
        ("workspace", "init", "folder", "--json"),
        ("init", "--force", "--project", "project", "--memory", "64", "--json"),
        ("promotion", "emit", "out", "--output", "tiny.json", "--json"),
    ]
    answers(world, [Try(each, REFUSED, script='ulimit -f 0; exec "$@"') for each in words])


def test_endless_input_files_are_refused(world: Path) -> None:
    words = [
        "suite lint /dev/zero",
        "promotion verify /dev/zero",
        "key show /dev/zero",
        "images list --catalogue /dev/zero",
        "workspace tools project --capabilities /dev/zero",
        "backend spec /dev/zero --enterprise-id e-1 --data backend",
        "runtime try --prompt-file /dev/zero --workspace folder",
    ]
    little = 'ulimit -v 4000000; exec "$@"'  # in kB: unbounded reading would run out of memory
    answers(world, [Try((*each.split(), "--json"), REFUSED, script=little) for each in words])


def test_pipes_without_a_writer_are_refused(world: Path) -> None:
    """Anyone who works on a project can replace a file with a pipe: it must be refused without blocking."""
    answers(world, [Try(line.words, line.codes) for line in lines_for_pipes(world)])


@pytest.mark.parametrize("name", PLACES)
def test_pipes_at_implicit_paths_are_refused(name: str, world: Path) -> None:
    run = (world / "out/LATEST").read_text().strip()
    place = world / name.replace("RUN", f"out/{run}")
    aside = world / "aside"
    place.parent.mkdir(exist_ok=True)
    if place.exists():
        place.rename(aside)
    os.mkfifo(place)
    try:
        answers(world, [Try(line.words, line.codes) for line in lines_for_place(name)])
    finally:
        place.unlink()
        if aside.exists():
            aside.rename(place)


@pytest.mark.needs("unprivileged-user")
def test_permission_errors_of_an_ordinary_user(world: Path, ordinary_user: OrdinaryUser) -> None:
    """Run as an ordinary user, because root has all permissions."""
    closed = world / "closed"
    closed.mkdir(exist_ok=True)
    for name in ("suite.toml", "images.toml", "packet.json", "key.pub", "spec.json"):
        (closed / name).write_bytes((world / name).read_bytes())
        (closed / name).chmod(0)
    (closed / "folder").mkdir(exist_ok=True)
    (closed / "folder").chmod(0)
    others = {"XDG_STATE_HOME": str(world / "home/state"), "XDG_CONFIG_HOME": str(world / "home/config")}
    words: list[tuple[str, ...]] = [
        ("suite", "lint", "closed/suite.toml"),
        ("suite", "run", "suite.toml", "--out", "closed/out", "--strategies", "scripted"),
        ("images", "list", "--catalogue", "closed/images.toml"),
        ("promotion", "verify", "closed/packet.json"),
        ("promotion", "emit", "out", "--output", "closed/packet-2.json"),
        ("promotion", "emit", "out", "--sign", "key"),
        ("verify", "closed/folder"),
        ("bundle", "list", "closed/folder"),
        ("bundle", "show", "closed/folder"),
        ("bundle", "push", "out", "closed/store"),
        ("bundle", "pull", "store", "closed/pulled"),
        ("key", "new", "closed/key"),
        ("key", "show", "closed/key.pub"),
        ("init", "--project", "closed", "--memory", "64"),
        ("init", "--project", "closed/folder"),
        ("workspace", "init", "closed/folder"),
        ("backend", "spec", "closed/spec.json", "--enterprise-id", "e-1"),
        ("backend", "spec", "spec.json", "--enterprise-id", "e-1", "--data", "closed/data"),
        ("deliver", "plan", "--app-id", "a", "--source", "closed/folder"),
        ("runtime", "try", "--prompt-file", "closed/suite.toml", "--workspace", "folder"),
        ("runtime", "try", "--prompt", "go", "--workspace", "closed/folder"),
        ("attempt", "list", "closed/folder"),
        ("validate", "closed/folder"),
        ("gc", "closed/folder"),
        ("demo", "--keep", "closed/kept"),
    ]
    reads = {
        "bundle list",
        "gc",
        "workspace init",
    }  # an empty result, or a history in the user's own directory, may be correct
    tries = [
        Try((*each, "--json"), ANSWERED if " ".join(each[:2]) in reads or each[0] in reads else REFUSED)
        for each in words
    ]
    tries += [Try((*each, "--json"), REFUSED, others) for each in words[:3]]
    tries += [Try(("exec", "--project", "closed/folder", "--json", "--", "true"), frozenset({125}))]
    # If the tests run as an ordinary user, that user owns everything, and only the modes deny access.
    modes = {closed: 0o555, world / "key": 0, world / "home/state": 0o555, world / "home/config": 0o555}
    for path, mode in modes.items():
        path.chmod(mode)
    try:
        answers(world, tries, ordinary_user)
    finally:
        for path in (*modes, closed / "folder"):
            path.chmod(0o600 if path.is_file() else 0o755)


def test_ctrl_c_during_startup_prints_no_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from proofbox import cli

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    assert cli.run_to_end() == 130


def test_descriptor_errors_are_io_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The system reports a descriptor's number in place of a path."""
    monkeypatch.setattr("proofbox.evidence.bundle.listing.list_bundles", lambda *_: os.stat(1 << 20))
    assert main(["bundle", "list", str(tmp_path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "PROOFBOX_IO"
