"""Reads tasks in Harbor's format as the missions of a suite: `task.toml`, `instruction.md`, `environment/`, `tests/`
with `test.sh`, and optionally `solution/` with `solve.sh`.

The format is defined elsewhere, so unsupported fields are ignored and noted, not refused. A task that cannot run here
at all is refused with the reason. A task that runs so differently that its results must not be compared with Harbor's
is marked. docs/harbor.md describes the differences.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from proofbox.agents.environment import is_blocked
from proofbox.core.spec_files.problems import Problem, invalid
from proofbox.core.text import printable
from proofbox.errors import ImageAbsent, ProviderUnavailable, StartFailed, SuiteInvalid
from proofbox.lab.suite.harbor import task_table
from proofbox.lab.suite.harbor.dockerfile import Copy, Dockerfile, read_dockerfile
from proofbox.lab.suite.harbor.task_tree import MAX_ENTRIES, read_text, tree_sha256
from proofbox.lab.suite.reading import Suite, parse_suite
from proofbox.sandbox.containers.image_files import working_directory
from proofbox.sandbox.providers import provider_named
from proofbox.sandbox.providers.host_root import ROOT

TASK = "task.toml"
PARTS = (TASK, "instruction.md", "environment", "tests", "solution", "steps")
"""The parts of a task. Anything else in its directory, such as results of a run, is ignored."""
TESTS, SOLUTION, REWARD = "/tests", "/solution", "/logs/verifier"
USUAL_WORKDIR = "/app"
MAX_NOTES, NOTE = 200, 500
HOST_ROOT = "it ran on this host's programs, not in the task's image (--host-root)"
USE_HOST_ROOT = "or run it on this host's programs (results are not comparable): --host-root"
# Hooks of test runs that no task asks for. Other common ones, such as setup.cfg, may be part of a task.
PROTECTED = ("**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py")
_INSTALLS = re.compile(
    r"^[^#\n]*\b(?:apt-get|apt|apk|dnf|yum)\s+(?:-\S+\s+)*(?:install|add|update|upgrade)\b", re.MULTILINE
)


def read_tasks(path: Path, *, host_root: bool = False, to_run: bool = False) -> Suite:
    """Read the directory of a task, or one that contains several, as a suite. Raises `SuiteInvalid` with all problems.

    The tasks are in the directory itself, or one level below it, in directories of categories.

    With `host_root` its missions run in bubblewrap on this host's programs; otherwise in docker in the task's image.
    `to_run` looks the images up in the engine, and raises `ImageAbsent` that names all missing ones.
    """
    tasks = _tasks_in(path)
    if not tasks:
        problem = Problem(f"no {TASK} in it or in a directory below it", fix_hint="name the directory of a task")
        raise invalid(f"{path}", [problem])
    problems: list[Problem] = []
    missions: dict[Path, dict[str, Any]] = {}
    absent: dict[str, ImageAbsent] = {}
    for task in tasks:
        place = str(task.relative_to(path))
        try:
            missions[task] = _Reader(task, place, host_root=host_root).mission(to_run=to_run)
        except ImageAbsent as error:
            absent[place] = error
        except SuiteInvalid as error:
            found = msgspec.convert(error.details.get("problems", []), list[Problem])
            name = "" if task == path else f"{place}: "
            problems += [msgspec.structs.replace(each, message=name + each.message) for each in found]
    if problems:
        raise invalid(f"{path}", problems)
    if absent:
        raise _all_absent(absent)
    _name_categories(missions, path)
    document = {"suite": {"id": _id(_name(path)), "title": "Harbor tasks"}, "mission": list(missions.values())}
    return parse_suite(json.dumps(document, indent=1), base=path, name=str(path), json=True)


def _tasks_in(path: Path) -> list[Path]:
    if os.path.lexists(path / TASK):
        return [path]
    try:
        folders = [each for each in sorted(path.iterdir()) if not each.is_symlink() and each.is_dir()]
        found = [each for each in folders if os.path.exists(each / TASK)]
        if found:
            return found
        below = [each for folder in folders for each in sorted(folder.iterdir()) if not each.is_symlink()]
        return [each for each in below if os.path.exists(each / TASK)]
    except OSError as error:
        raise invalid(str(path), [Problem(f"it cannot be read: {error.strerror}")]) from None


def _all_absent(absent: Mapping[str, ImageAbsent]) -> ImageAbsent:
    """Return one error for all missing images, with the command that provides each."""
    if len(absent) == 1:
        return next(iter(absent.values()))
    hints = [error.fix_hints[0] for error in absent.values()]
    images = [error.details["image"] for error in absent.values()]
    names = ", ".join(list(absent)[:10]) + (", …" if len(absent) > 10 else "")
    return ImageAbsent(
        f"the engine lacks the images of {len(absent)} tasks: {names}",
        op="suite",
        fix_hints=[*dict.fromkeys(hints), USE_HOST_ROOT],
        details={"images": images},
    )


def _name_categories(missions: Mapping[Path, dict[str, Any]], path: Path) -> None:
    """Put the category before the ids that several categories use."""
    used = Counter(mission["id"] for mission in missions.values())
    for task, mission in missions.items():
        if used[mission["id"]] > 1 and task.parent != path:
            mission["id"] = _id(f"{task.parent.name}.{mission['id']}")


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


class _Reader:
    """Reads one task. Collects `notes` and the reasons why its results are not comparable."""

    def __init__(self, root: Path, prefix: str, *, host_root: bool) -> None:
        self._root = root
        self._prefix = prefix
        self._host_root = host_root
        self._notes: dict[str, None] = {}
        self._differs: list[str] = [HOST_ROOT] if host_root else []

    def mission(self, *, to_run: bool) -> dict[str, Any]:
        sha256 = tree_sha256(self._root, PARTS)
        self._check_files()
        table = task_table.read(read_text(self._root, TASK), self._note)
        dockerfile = self._dockerfile()
        image = None if self._host_root else table.environment.docker_image or self._image_to_build()
        workdir = self._workdir(table, dockerfile, image if to_run else None)
        id = _id((table.name or _name(self._root)).rpartition("/")[2])
        self._look_for_installs()
        self._notice(table)
        open_by_default = "none" if self._host_root else "full"
        network = table.agent.network or table.environment.network or open_by_default
        if open_by_default == network == "full" and not (table.agent.network or table.environment.network):
            self._note("it does not disable the network, so its boxes have network access, as in Harbor")
        mission = {
            "id": id,
            "prompt": read_text(self._root, "instruction.md"),
            "tags": table.tags,
            "files": self._files(dockerfile, workdir) if self._host_root else {},
            "workdir": workdir,
            "timeout": table.agent.timeout,
            "provider": "bubblewrap" if self._host_root else "docker",
            "network": network,
            "image": image,
            "limits": self._limits(table.environment),
            "env": self._env(table, dockerfile),
            "verify": {
                "commands": [f"chmod +x {TESTS}/test.sh && exec {TESTS}/test.sh"],
                "mounts": {TESTS: self._path("tests")},
                "sha256": {TESTS: tree_sha256(self._root / "tests")},
                "reward": REWARD,
                "timeout": table.verifier.timeout,
                "env": {**self._image_env(dockerfile), **table.environment.env, **table.verifier.env},
                "network": table.verifier.network or table.environment.network or open_by_default,
                "protect": PROTECTED,
            },
            "solution": self._path("solution") if (self._root / "solution/solve.sh").exists() else None,
            "solution_env": table.solution_env,
        }
        origin = {"format": "harbor", "name": _name(self._root), "sha256": sha256}
        mission["origin"] = {**origin, "notes": list(self._notes), "not_comparable": self._differs}
        return {name: value for name, value in mission.items() if value is not None}

    def _note(self, text: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes[printable(text)[:NOTE]] = None

    def _path(self, name: str) -> str:
        return str(PurePosixPath(self._prefix) / name)

    def _check_files(self) -> None:
        """Check for required files and unsupported ones."""
        problems = []
        if (self._root / "steps").is_dir():
            problems.append(Problem("it has several steps, which is not supported"))
        else:
            missing = [name for name in ("instruction.md", "tests/test.sh") if not (self._root / name).is_file()]
            problems += [Problem(f"{name} is missing") for name in missing]
        for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml"):
            if (self._root / "environment" / name).exists():
                problems.append(Problem(f"environment/{name}: several containers are not supported"))
        if problems:
            raise invalid(str(self._root), problems)

    def _dockerfile(self) -> Dockerfile | None:
        if not (self._root / "environment/Dockerfile").is_file():
            return None
        return read_dockerfile(read_text(self._root, "environment/Dockerfile"))

    def _image_to_build(self) -> str:
        """Return the name of the image to build, derived from the content of its directory."""
        if not (self._root / "environment/Dockerfile").is_file():
            raise invalid(str(self._root), [Problem("it has neither a docker_image nor an environment/Dockerfile")])
        return f"harbor-{_id(_name(self._root))}:{tree_sha256(self._root / 'environment')[:12]}"

    def _workdir(self, table: task_table.Table, dockerfile: Dockerfile | None, image: str | None) -> str:
        written = table.environment.workdir or (dockerfile.workdir if dockerfile is not None else "")
        if image is not None:
            written = table.environment.workdir or self._ask_for(image, table) or written
        elif written in ("", "/"):
            written = USUAL_WORKDIR
        place = PurePosixPath("/", written.lstrip("/"))
        taken = [PurePosixPath(each) for each in (TESTS, SOLUTION, REWARD)]
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

    def _ask_for(self, image: str, table: task_table.Table) -> str:
        try:
            return working_directory(image)
        except StartFailed as error:
            folder = self._root / "environment"
            pull = [f"docker pull {image}"] if table.environment.docker_image else []
            build = [f"docker build -t {image} {folder}"] if (folder / "Dockerfile").is_file() else []
            raise ImageAbsent(
                f"the engine has no image {image!r}, which {self._root.name} needs",
                op="suite",
                fix_hints=[*pull, *build, USE_HOST_ROOT],
                details={"image": image},
            ) from error
        except ProviderUnavailable as error:
            hints = [*error.fix_hints, USE_HOST_ROOT]
            raise ProviderUnavailable(error.message, op="suite", fix_hints=hints, details=error.details) from None

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

    def _notice(self, table: task_table.Table) -> None:
        self._differs += table.lacking

    def _look_for_installs(self) -> None:
        for name in ("tests/test.sh", "solution/solve.sh"):
            if (self._root / name).is_file() and _INSTALLS.search(read_text(self._root, name)):
                self._differs.append(f"{name} installs system packages, but the root of a box is read-only")
