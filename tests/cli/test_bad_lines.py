"""Bad command lines never print a stack trace: they are refused with a code, a message and hints."""

from __future__ import annotations

import io
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from bad_files import PLACES, READERS, bad_contents, lines_for_place, lines_for_reader
from bad_lines import GOOD, Line, every_line, lines_for, lines_without_a_command
from bad_world import described, enter, made_world, problems

from proofbox.cli import COMMANDS, Command, main

SEED = 1
SAMPLE, FULL = 12, 2000
SECONDS = 30.0
pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("bad-lines")]


@pytest.fixture(scope="module")
def world() -> Iterator[Path]:
    with made_world() as place:
        yield place


Throw = Callable[[Iterable[Line]], None]


@pytest.fixture
def throw(world: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Throw:
    """Return a function that runs lines in this process and fails with all problems found."""
    enter(world, monkeypatch)
    monkeypatch.setenv("INTERNAL_API_KEY", "Zq4mT7pWx2Rv9LsN5cKd8HbJ")  # must not look like a placeholder

    def answer(line: Line) -> str:
        capfdbinary.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        began = time.monotonic()
        try:
            code = main(line.words)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return described(line, [f"{error!r:.300} escaped"], *capfdbinary.readouterr())
        out, err = capfdbinary.readouterr()
        found = problems(line, code, out, err)
        if (took := time.monotonic() - began) > SECONDS:
            found.append(f"it took {took:.0f} s")
        assert Path.cwd() == world, line.words
        return described(line, found, out, err) if found else ""

    def run(lines: Iterable[Line]) -> None:
        wrong = list(filter(None, map(answer, lines)))
        assert not wrong, f"{len(wrong)} answers are wrong:\n" + "\n".join(wrong)

    return run


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.path)
def test_bad_command_lines_are_refused(command: Command, throw: Throw, rounds: Callable[[int, int], int]) -> None:
    throw(lines_for(command, SEED, rounds(SAMPLE, FULL)))


def test_bad_lines_without_a_command_are_refused(throw: Throw) -> None:
    throw(lines_without_a_command())


def test_enough_bad_lines_are_generated() -> None:
    lines = every_line(SEED, SAMPLE)
    assert len({line.words for line in lines if 0 not in line.codes}) >= 300
    assert lines == every_line(SEED, SAMPLE)
    assert set(GOOD) <= {command.path for command in COMMANDS}


@pytest.mark.parametrize("reader", READERS)
def test_malformed_input_files_are_refused(reader: str, throw: Throw, world: Path) -> None:
    throw(lines_for_reader(reader, world))


@pytest.mark.parametrize("name", PLACES)
def test_malformed_files_at_implicit_paths_are_refused(
    name: str, throw: Throw, world: Path, rounds: Callable[[int, int], int]
) -> None:
    """Covers files that commands read implicitly: settings, locks, the files of a run."""
    run = (world / "out/LATEST").read_text().strip()
    place = world / name.replace("RUN", f"out/{run}")
    before = place.read_bytes() if place.is_file() else None
    place.parent.mkdir(exist_ok=True)
    try:
        contents = list(bad_contents().values())
        for content in random.Random(f"{SEED} {name}").sample(contents, rounds(12, len(contents))):  # noqa: S311
            place.write_bytes(content)
            throw(lines_for_place(name))
        place.unlink()
        place.symlink_to(place.name)
        throw(lines_for_place(name))
        place.unlink()
        place.mkdir()
        throw(lines_for_place(name))
    finally:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        if before is not None:
            place.write_bytes(before)
