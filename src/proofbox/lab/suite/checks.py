"""Checks what the types of a suite cannot express: duplicate names, missing files, invalid patterns."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from proofbox.core.canonical import MAX_DEPTH, MAX_INTEGER
from proofbox.core.spec_files.positions import Path
from proofbox.core.spec_files.problems import Problems
from proofbox.core.spec_files.text_files import Unreadable
from proofbox.errors import CapabilitiesRefused, ProofboxError
from proofbox.lab.suite.files import SuiteFiles, paths_of
from proofbox.lab.suite.spec import CommandCondition, Mission, SuiteFields, VerifyCommand, verifiers_of
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.compiling import refuse_execute
from proofbox.workspace.capabilities.grants import PRESETS, SIZE_LIMIT, parse

LARGEST_PROMPT = 1 << 20
MAX_NESTING = MAX_DEPTH // 2  # stored records nest parts of a suite more deeply, so they have a separate limit
LONGEST_NAME = 255
MAX_GROUPS = 100
"""The maximum in one pattern: Python's compiler recurses as deeply as they are nested."""
_KINDS: Mapping[tuple[str | int, ...], tuple[str, ...]] = {
    ("prompt_file",): ("file",),
    ("verify", "files"): ("directory",),
}
"""Fields that must name a file or a directory."""
_FREE = ("prompt", "script", "expect", "title")
"""Fields with free text. All other texts become paths, commands and variables, which cannot contain a NUL."""


def check_values(values: dict[str, Any], problems: Problems) -> None:
    """Check for values that no record can hold, anywhere in the suite."""
    waiting: list[tuple[Path, Any]] = [((), values)]
    while waiting and not problems.enough:
        path, value = waiting.pop()
        if isinstance(value, dict | list):
            if len(path) >= MAX_NESTING:
                problems.add(path, f"nested deeper than {MAX_NESTING} levels")
                continue
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [((*path, name), each) for name, each in inner]
            if any(isinstance(name, str) and "\0" in name for name in value) and not _is_free(path):
                problems.add(path, f"{problems.shown(path) or 'the suite'} has a name that contains a NUL")
        elif isinstance(value, float) and not math.isfinite(value):
            problems.add(path, f"{problems.shown(path)}: {value} is not supported", "use a finite number")
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            problems.add(path, f"{problems.shown(path)}: the integer is outside ±(2**53-1)", "write it as a string")
        elif isinstance(value, datetime.date | datetime.time):
            problems.add(path, f"{problems.shown(path)}: dates and times are not supported", "write it as a string")
        elif isinstance(value, str) and "\0" in value and not _is_free(path):
            problems.add(path, f"{problems.shown(path)} contains a NUL")


def _is_free(path: Path) -> bool:
    return any(part in _FREE for part in path)


def check_meaning(
    suite: SuiteFields | None, missions: Mapping[int, Mission], files: SuiteFiles | None, problems: Problems
) -> None:
    """Check missions, given by their index in the file. `files` is None if their files were checked before."""
    seen: set[str] = set()
    for number, mission in missions.items():
        at: Path = ("mission", number)
        if problems.enough:
            return
        if mission.id in seen:
            problems.add((*at, "id"), f"duplicate mission id {mission.id!r}", "ids must be unique")
        seen.add(mission.id)
        if mission.prompt is None and mission.prompt_file is None:
            problems.add(at, f"mission {mission.id!r} needs prompt or prompt_file", "state the task for the agent")
        elif mission.prompt is not None and mission.prompt_file is not None:
            problems.add(
                (*at, "prompt_file"), f"mission {mission.id!r} has both prompt and prompt_file", "remove one of them"
            )
        if files is not None:
            _check_files(mission, files, problems, at)
        if mission.capabilities is not None:
            _check_capabilities(suite, mission, files, problems, (*at, "capabilities"))
        for index, condition in enumerate(mission.expect.file):
            if _leaves(condition.path) or not condition.names:
                problems.add(
                    (*at, "expect", "file", index, "path"),
                    f"{condition.path[:200]!r} is not a path in the workspace",
                    "write it relative to the root of the workspace, without ..",
                )
        for place in mission.files:
            if _leaves(place):
                problems.add(
                    (*at, "files", place), f"{place[:200]!r} is not a path in the workspace", "write it from its root"
                )
        mounts = [((*field, "mounts"), verify.mounts) for field, verify in verifiers_of(mission)]
        for field, places in ((("files",), mission.files), *mounts):
            for place in places:
                if any(len(name.encode()) > LONGEST_NAME for name in place.split("/")) or len(place) > 1024:
                    problems.add((*at, *field, place), "the path is too long")
        kinds = {(bool(verify.commands), verify.reward is not None) for _, verify in verifiers_of(mission)}
        if len(kinds) > 1:
            what = f"mission {mission.id!r}: some turns have commands in verify, or a reward, and others do not"
            problems.add((*at, "then"), what, "verify every turn in the same way")
        for path, command in _commands(mission, at):
            if not (command if isinstance(command, str) else "".join(command[:1])).strip():
                problems.add(path, f"{problems.shown(path)} is an empty command", "add a command or remove it")
        for path, pattern in _patterns(mission, at):
            _check_pattern(path, pattern, problems)


def _leaves(place: str) -> bool:
    return place.startswith("/") or ".." in place.split("/") or "\0" in place


def _check_files(mission: Mission, files: SuiteFiles, problems: Problems, at: Path) -> None:
    """Check that the files that a mission names exist and have the right kind. Nothing outside the suite is opened."""
    for path, value in paths_of(mission):
        if path == ("capabilities",):  # checked with its content
            continue
        kinds = _KINDS.get(path[2:] if path[0] == "then" else path, ("file", "directory"))
        wrong = ""
        try:
            found = files.find(value)
            kind = files.kind(found)
            if kind not in kinds:
                wrong = f"is a {kind} but must be a {kinds[0]}"
            elif path == ("prompt_file",) and not found.outside and not files.read(found, LARGEST_PROMPT):
                wrong = "is empty"
        except Unreadable as why:
            wrong = str(why)
        if wrong:
            problems.add((*at, *path), f"{value[:200]!r} {wrong}", f"paths are relative to {files.base}")


def _check_capabilities(
    suite: SuiteFields | None, mission: Mission, files: SuiteFiles | None, problems: Problems, at: Path
) -> None:
    """Check capabilities: they set the network, so nothing else may, and they apply to one workspace per box."""
    if mission.network is not None:
        problems.add(at, "capabilities and network both set the network", "remove one of them")
    if suite is not None and suite.isolation == "shared":
        problems.add(at, "capabilities cannot be enforced in a process that attempts share", 'isolation = "process"')
    if files is None or mission.capabilities is None:
        return
    named = mission.capabilities
    try:
        grants = capabilities_of(mission, files)
        if grants is not None:
            refuse_execute(grants)
    except Unreadable as why:
        problems.add(at, f"{named[:200]!r} is neither a preset nor a file: it {why}", _usable_presets())
    except ProofboxError as error:
        problems.add(at, f"{named[:200]!r}: {error.message}", _usable_presets())


def capabilities_of(mission: Mission, files: SuiteFiles) -> Capabilities | None:
    """Read the capabilities of a mission; None if it has no capabilities, or a file outside the suite's directory.

    Raises `Unreadable` or `CapabilitiesInvalid`.
    """
    named = mission.capabilities
    if named is None or named in PRESETS:
        return None if named is None else Capabilities.load(named)
    found = files.find(named)
    if found.outside:
        files.kind(found)
        return None
    return Capabilities(parse(files.read(found, SIZE_LIMIT)))


def _usable_presets() -> str:
    """Return a hint with the presets that a box can enforce."""
    found = []
    for name in PRESETS:
        with contextlib.suppress(CapabilitiesRefused):
            refuse_execute(Capabilities.load(name))
            found.append(name)
    return f"presets: {', '.join(found)}"


def _commands(mission: Mission, at: Path) -> Iterator[tuple[Path, str | tuple[str, ...]]]:
    for field, commands in (("setup", mission.setup), ("cleanup", mission.cleanup)):
        for number, words in enumerate(commands):
            yield (*at, field, number), words
    for path, verify in verifiers_of(mission):
        for number, command in enumerate(verify.commands):
            place = (*at, *path, "commands", number)
            yield ((*place, "run"), command.run) if isinstance(command, VerifyCommand) else (place, command)


def _patterns(mission: Mission, at: Path) -> Iterator[tuple[Path, str]]:
    if mission.expect.result is not None:
        yield (*at, "expect", "result"), mission.expect.result
    for number, condition in enumerate(mission.expect.commands):
        place = (*at, "expect", "commands", number)
        yield ((*place, "match"), condition.match) if isinstance(condition, CommandCondition) else (place, condition)
    for number, each in enumerate(mission.expect.no_commands):
        yield (*at, "expect", "no_commands", number), each
    for field, verify in verifiers_of(mission):
        for number, command in enumerate(verify.commands):
            if isinstance(command, VerifyCommand) and command.stdout is not None:
                yield (*at, *field, "commands", number, "stdout"), command.stdout


def _check_pattern(path: Path, pattern: str, problems: Problems) -> None:
    why = f"it has more than {MAX_GROUPS} groups" if pattern.count("(") > MAX_GROUPS else ""
    try:
        if not why:
            re.compile(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        why = str(error)
    if why:
        problems.add(path, f"{problems.shown(path)} is not a valid regular expression: {why}")
