"""Reads tasks in Harbor's format as the missions of a suite: `task.toml`, `instruction.md`, `environment/`, `tests/`
with `test.sh`, and optionally `solution/` with `solve.sh`.

The format is defined elsewhere, so unsupported fields are ignored and noted, not refused. A task that cannot run here
at all is refused with the reason. A task that runs so differently that its results must not be compared with Harbor's
is marked. docs/harbor.md describes the differences.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from proofbox.agents.environment import is_blocked
from proofbox.core.spec_files.problems import Problem, invalid
from proofbox.core.text import printable
from proofbox.errors import ImageAbsent, SuiteInvalid
from proofbox.lab.suite.harbor import task_table
from proofbox.lab.suite.harbor.dockerfile import Copy, Dockerfile, read_dockerfile
from proofbox.lab.suite.harbor.outside_writes import outside_writes
from proofbox.lab.suite.harbor.task_image import TaskImage, all_absent
from proofbox.lab.suite.harbor.task_tree import MAX_ENTRIES, read_text, tree_sha256
from proofbox.lab.suite.reading import Suite, parse_suite
from proofbox.lab.suite.selecting import selected
from proofbox.sandbox.containers.image_files import ImageDefaults
from proofbox.sandbox.providers import provider_named
from proofbox.sandbox.providers.host_root import ROOT

TASK = "task.toml"
PARTS = (TASK, "instruction.md", "environment", "tests", "solution", "steps")
"""The parts of a task. Anything else in its directory, such as results of a run, is ignored."""
TESTS, SOLUTION, REWARD = "/tests", "/solution", "/logs/verifier"
STEP_TESTS = "/step-tests"
USUAL_WORKDIR = "/app"
MAX_NOTES, NOTE = 200, 500
HOST_ROOT = "it ran on this host's programs, not in the task's image (--host-root)"
# Hooks of test runs that no task asks for. Other common ones, such as setup.cfg, may be part of a task.
PROTECTED = ("**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py")
SHELLS = ("sh", "bash", "dash", "env", "tini", "dumb-init")
"""Programs that start nothing else if they are the ENTRYPOINT."""


def read_tasks(
    path: Path,
    *,
    host_root: bool = False,
    to_run: bool = False,
    build: bool = False,
    missions: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Suite:
    """Read the directory of a task, or one that contains several, as a suite. Raises `SuiteInvalid` with all problems.

    The tasks are in the directory itself, and one level below it, in directories of categories.

    With `host_root` its missions run in bubblewrap on this host's programs; otherwise in docker in the task's image.
    `to_run` looks the images up in the engine, and raises `ImageAbsent` that names all missing ones. `build` builds
    missing images from the tasks' Dockerfiles first. `missions` and `tags` select tasks; others are not checked.
    """
    tasks = _tasks_in(path)
    if not tasks:
        problem = Problem(f"no {TASK} in it or in a directory below it", fix_hint="name the directory of a task")
        raise invalid(f"{path}", [problem])
    named = _named(tasks, path)
    if missions or tags:
        listed = [(named[task][0], named[task][1]) for task in tasks]
        tasks = [tasks[number] for number in selected(listed, str(path), missions, tags)]
    problems: list[Problem] = []
    read: list[dict[str, Any]] = []
    absent: dict[str, ImageAbsent] = {}
    for task in tasks:
        place = str(task.relative_to(path))
        try:
            reader = _Reader(task, place, named[task][0], host_root=host_root)
            read.append(reader.mission(to_run=to_run, build=build))
        except ImageAbsent as error:
            absent[place] = error
        except SuiteInvalid as error:
            found = msgspec.convert(error.details.get("problems", []), list[Problem])
            name = "" if task == path else f"{place}: "
            problems += [msgspec.structs.replace(each, message=name + each.message) for each in found]
    if problems:
        raise invalid(f"{path}", problems)
    if absent:
        raise all_absent(absent)
    document = {"suite": {"id": _id(_name(path)), "title": "Harbor tasks"}, "mission": read}
    return parse_suite(json.dumps(document, indent=1), base=path, name=str(path), json=True)


def _tasks_in(path: Path) -> list[Path]:
    if os.path.lexists(path / TASK):
        return [path]
    try:
        folders = [each for each in sorted(path.iterdir()) if not each.is_symlink() and each.is_dir()]
        below = [
            each
            for folder in folders
            for each in ([folder] if os.path.exists(folder / TASK) else sorted(folder.iterdir()))
        ]
        return [each for each in below if not each.is_symlink() and os.path.exists(each / TASK)]
    except OSError as error:
        raise invalid(str(path), [Problem(f"it cannot be read: {error.strerror}")]) from None


def _named(tasks: Sequence[Path], path: Path) -> dict[Path, tuple[str, tuple[str, ...]]]:
    """Return the id and tags of each task. The category is put before ids that several tasks use."""
    tables = {}
    for task in tasks:
        name, tags = _name(task), tuple[str, ...]()
        with contextlib.suppress(SuiteInvalid):  # reported if the task is selected
            table = task_table.read(read_text(task, TASK), lambda _: None)
            name, tags = table.name or name, tuple(table.tags)
        tables[task] = (_id(name.rpartition("/")[2]), tags)
    used = Counter(id for id, _ in tables.values())
    return {
        task: (_id(f"{task.parent.name}.{id}") if used[id] > 1 and task.parent != path else id, tags)
        for task, (id, tags) in tables.items()
    }


def _name(path: Path) -> str:
    """Return the name of a directory, which may be given as `.`"""
    return os.path.basename(os.path.realpath(path))


def _id(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower())[:64].strip("._-") or "task"


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the paths that a pattern matches, part by part as in a build: a wildcard never matches several parts.

    Wildcards do not match through links: links in a cycle would multiply the matches with every part.
    """
    found = [folder]
    for pattern in patterns:
        if re.search(r"[*?\[]", pattern):
            folders = [each for each in found if each.is_dir() and (each == folder or not each.is_symlink())]
            found = [path for each in folders for path in each.iterdir() if fnmatchcase(path.name, pattern)]
        else:
            found = [each / pattern for each in found if os.path.lexists(each / pattern)]
    return sorted(found)


class _Turn(NamedTuple):
    """A part of a task that is given to the agent at once: the whole task, or one of its steps."""

    place: str
    """Its directory in the task, with a trailing slash; empty for the task itself."""
    timeout: float
    verifier_timeout: float
    env: Mapping[str, str]
    min_reward: float | None


class _Reader:
    """Reads one task. Collects `notes` and the reasons why its results are not comparable."""

    def __init__(self, root: Path, prefix: str, id: str, *, host_root: bool) -> None:
        self._root = root
        self._id = id
        self._prefix = prefix
        self._host_root = host_root
        self._notes: dict[str, None] = {}
        self._differs: list[str] = [HOST_ROOT] if host_root else []

    def mission(self, *, to_run: bool, build: bool) -> dict[str, Any]:
        sha256 = tree_sha256(self._root, PARTS)
        table = task_table.read(read_text(self._root, TASK), self._note)
        self._check_files(table)
        dockerfile = self._dockerfile()
        image = None if self._host_root else TaskImage(self._root, _id(_name(self._root)), table.environment)
        defaults = image.defaults(build=build) if image is not None and to_run else None
        workdir = self._workdir(table, dockerfile, defaults)
        entrypoint = defaults.entrypoint if defaults is not None else dockerfile.entrypoint if dockerfile else ()
        turns = self._turns(table)
        self._look_for_outside_writes(workdir, turns)
        self._look_at_entrypoint(entrypoint)
        self._differs += table.lacking
        open_by_default = "none" if self._host_root else "full"
        network = table.agent.network or table.environment.network or open_by_default
        if open_by_default == network == "full" and not (table.agent.network or table.environment.network):
            self._note("it does not disable the network, so its boxes have network access, as in Harbor")
        verify = {
            "reward": REWARD,
            "env": {**self._image_env(dockerfile), **table.environment.env, **table.verifier.env},
            "network": table.verifier.network or table.environment.network or open_by_default,
            "protect": PROTECTED,
        }
        first, *further = [self._turn(turn, verify) for turn in turns]
        mission = {
            "id": self._id,
            **first,
            "then": further,
            "turn_rewards": table.turn_rewards,
            "tags": table.tags,
            "files": self._files(dockerfile, workdir) if self._host_root else {},
            "workdir": workdir,
            "provider": "bubblewrap" if self._host_root else "docker",
            "network": network,
            "image": image.name if image is not None else None,
            "limits": self._limits(table.environment),
            "env": self._env(table, dockerfile),
            "solution_env": table.solution_env,
        }
        origin = {"format": "harbor", "name": _name(self._root), "sha256": sha256}
        mission["origin"] = {**origin, "notes": list(self._notes), "not_comparable": self._differs}
        return {name: value for name, value in mission.items() if value is not None}

    def _turns(self, table: task_table.Table) -> list[_Turn]:
        """Return the parts of the task that are given to the agent one after the other."""
        if not table.steps:
            return [_Turn("", table.agent.timeout, table.verifier.timeout, table.verifier.env, None)]
        return [
            _Turn(f"steps/{step.name}/", step.agent_timeout, step.verifier_timeout, step.env, step.min_reward)
            for step in table.steps
        ]

    def _turn(self, turn: _Turn, verify: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a mission, or of its further turns, that belong to one turn."""
        own, shared = f"{turn.place}tests", bool(turn.place) and (self._root / "tests").is_dir()
        mounts = {TESTS: "tests"} if shared else {}
        run = f"chmod +x {TESTS}/test.sh && exec {TESTS}/test.sh"
        if shared and (self._root / own).is_dir():  # a step's files replace those of the task
            mounts[STEP_TESTS] = own
            run = f"cp -R {STEP_TESTS}/. {TESTS}/ && {run}"
        mounts.setdefault(TESTS, own)
        fields = {
            "prompt": read_text(self._root, f"{turn.place}instruction.md"),
            "timeout": turn.timeout,
            "solution": self._path(f"{turn.place}solution") if self._has(f"{turn.place}solution/solve.sh") else None,
            "verify": {
                **verify,
                "commands": [run],
                "mounts": {place: self._path(path) for place, path in mounts.items()},
                "sha256": {place: tree_sha256(self._root / path) for place, path in mounts.items()},
                "timeout": turn.verifier_timeout,
                "env": {**verify["env"], **turn.env},
                **({"min_reward": turn.min_reward} if turn.min_reward is not None else {}),
            },
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _has(self, name: str) -> bool:
        return (self._root / name).is_file()

    def _note(self, text: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes[printable(text)[:NOTE]] = None

    def _path(self, name: str) -> str:
        return str(PurePosixPath(self._prefix) / name)

    def _check_files(self, table: task_table.Table) -> None:
        """Check for required files and unsupported ones."""
        problems = []
        if (self._root / "steps").is_dir() and not table.steps:
            problems.append(Problem("task.toml names none of the steps in steps/"))
        for turn in self._turns(table):
            missing = [f"{turn.place}instruction.md"] if not self._has(f"{turn.place}instruction.md") else []
            if not self._has(f"{turn.place}tests/test.sh") and not (turn.place and self._has("tests/test.sh")):
                missing.append(f"{turn.place}tests/test.sh")
            problems += [Problem(f"{name} is missing") for name in missing]
            if turn.place and (self._root / turn.place / "workdir").exists():
                problems.append(Problem(f"{turn.place}workdir: files that are added before a step are not supported"))
        for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
            if (self._root / "environment" / name).exists():
                problems.append(Problem(f"environment/{name}: several containers are not supported"))
        if problems:
            raise invalid(str(self._root), problems)

    def _dockerfile(self) -> Dockerfile | None:
        if not (self._root / "environment/Dockerfile").is_file():
            return None
        return read_dockerfile(read_text(self._root, "environment/Dockerfile"))

    def _workdir(self, table: task_table.Table, dockerfile: Dockerfile | None, defaults: ImageDefaults | None) -> str:
        written = table.environment.workdir or (dockerfile.workdir if dockerfile is not None else "")
        if defaults is not None:
            written = table.environment.workdir or defaults.workdir or written
        elif written in ("", "/"):
            written = USUAL_WORKDIR
        place = PurePosixPath("/", written.lstrip("/"))
        taken = [PurePosixPath(each) for each in (TESTS, STEP_TESTS, SOLUTION, REWARD)]
        problem = ""
        if place == PurePosixPath("/"):
            problem = "its image has no WORKDIR; changes are only kept there, so it cannot be /"
        elif ".." in place.parts or ":" in str(place) or "$" in str(place):
            problem = f"WORKDIR {written!r} cannot be mounted"
        elif any(place.is_relative_to(each) or each.is_relative_to(place) for each in taken):
            problem = f"WORKDIR {place} overlaps with its tests, solution or reward"
        elif self._host_root and place.parts[1] in (*ROOT, "etc"):
            problem = f"WORKDIR {place} is a directory of this host and cannot be used with --host-root"
        if problem:
            raise invalid(str(self._root), [Problem(problem)])
        return str(place)

    def _files(self, dockerfile: Dockerfile | None, workdir: str) -> dict[str, str]:
        """Return the files that a build would copy below the working directory."""
        found: dict[str, str] = {}
        if dockerfile is None:
            return found
        copied = (each for copy in dockerfile.copies for each in self._copied(copy))
        for number, (dest, source) in enumerate(copied):
            if number >= MAX_ENTRIES:
                problem = Problem(f"environment/Dockerfile: it copies more than {MAX_ENTRIES} files")
                raise invalid(str(self._root), [problem])
            if dest.is_relative_to(workdir):
                found[str(dest.relative_to(workdir))] = self._path(str(source))
            else:
                self._note(f"environment/Dockerfile: {dest} is outside {workdir} and was omitted")
        for line in dockerfile.unread:
            self._note(f"environment/Dockerfile: not executed: {line}")
        return found

    def _copied(self, copy: Copy) -> Iterator[tuple[PurePosixPath, Path]]:
        """Yield destinations and their files, relative to the task's root. For a directory, its entries are copied."""
        context = self._root / "environment"
        dest = PurePosixPath(copy.dest)
        for pattern in copy.sources:
            relative = pattern.lstrip("/").removeprefix("./").rstrip("/")
            if ".." in PurePosixPath(relative).parts:
                self._note(f"environment/Dockerfile: {pattern} is outside environment/ and was omitted")
                continue
            matches = _matching(context, PurePosixPath(relative).parts)
            if not matches:
                self._note(f"environment/Dockerfile: {pattern} does not exist")
            for path in matches:
                if path.is_dir():
                    yield from ((dest / each.name, each.relative_to(self._root)) for each in sorted(path.iterdir()))
                else:
                    into = copy.dest.endswith("/") or len(matches) > 1
                    yield dest / path.name if into else dest, path.relative_to(self._root)

    def _limits(self, requested: task_table.Environment) -> dict[str, float]:
        wanted = {"memory": requested.memory_mb, "cpus": requested.cpus, "disk": requested.storage_mb}
        limits = {name: value for name, value in wanted.items() if value is not None}
        if self._host_root:
            can = provider_named("bubblewrap").enforcement()
            for name, enforced in (("memory", can.memory), ("cpus", can.cpus)):
                if name in limits and not enforced:
                    self._differs.append(f"{name} = {limits.pop(name):g} cannot be enforced here")
        return limits

    def _image_env(self, dockerfile: Dockerfile | None) -> dict[str, str]:
        """Return the variables of the task's image, if it does not run in that image."""
        return dockerfile.env if self._host_root and dockerfile is not None else {}

    def _env(self, table: task_table.Table, dockerfile: Dockerfile | None) -> list[str]:
        values = {**self._image_env(dockerfile), **table.environment.env}
        for name in [name for name in values if is_blocked(name)]:
            del values[name]
            self._differs.append(f"{name} is not passed to the agent's box: its name is on the block list")
        return [f"{name}={value}" for name, value in values.items()]

    def _look_for_outside_writes(self, workdir: str, turns: Sequence[_Turn]) -> None:
        scripts = [f"{turn.place}{name}" for turn in turns for name in ("tests/test.sh", "solution/solve.sh")]
        for name in dict.fromkeys([*scripts, "tests/test.sh"]):
            if self._has(name):
                self._differs += (f"{name} {what}" for what in outside_writes(read_text(self._root, name), workdir))

    def _look_at_entrypoint(self, entrypoint: Sequence[str]) -> None:
        """Mark a task whose image starts something: a box starts its own program instead."""
        plain = entrypoint and PurePosixPath(entrypoint[0]).name in SHELLS
        if entrypoint and not (plain and all(each.startswith("-") for each in entrypoint[1:])):
            shown = printable(" ".join(entrypoint))[:200]
            self._differs.append(f"its image's ENTRYPOINT is replaced, so what it starts does not run: {shown}")
