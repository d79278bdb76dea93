"""Copies and digests the files that a suite names when a run is planned, so that later changes have no effect.

The files that attempts start with are copied as templates, and only digested here. The others are copied: prompts,
tests that no agent sees, solutions, capabilities. Everything is read through the descriptors of `SuiteFiles`, so a link
that was swapped in later is never followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from proofbox.core.digest import sha256_file, sha256_hex
from proofbox.core.files.overlaying import Identity, OverlayWriter
from proofbox.core.spec_files.problems import Problem, invalid
from proofbox.core.spec_files.text_files import Unreadable, read_text
from proofbox.errors import CapabilitiesInvalid, CapabilitiesRefused
from proofbox.lab.run.template import TemplateSource
from proofbox.lab.suite.checks import LARGEST_PROMPT
from proofbox.lab.suite.files import NamedFile, SuiteFiles, paths_of
from proofbox.lab.suite.harbor.task_tree import tree_sha256
from proofbox.lab.suite.reading import Suite, pinned_name
from proofbox.lab.suite.spec import Mission
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.compiling import refuse_execute

PINNED = "pinned"
_GIVEN = ("workspace", "files")
"""Fields whose files are part of templates."""


@contextlib.contextmanager
def source_of(mission: Mission, files: SuiteFiles, skip: tuple[Identity, ...]) -> Iterator[TemplateSource]:
    """Open the sources of a mission's template."""
    in_docker = mission.provider == "docker"
    image = (mission.image, mission.workdir) if in_docker and mission.image and mission.workdir else None
    with contextlib.ExitStack() as stack:

        def content(found: NamedFile) -> int | str:
            return stack.enter_context(_opened(files, found)) if found.link is None else found.link

        workspace = None if mission.workspace is None else files.find(mission.workspace)
        yield TemplateSource(
            image=image,
            workspace=None if workspace is None else stack.enter_context(_opened(files, workspace)),
            name=mission.workspace or "",
            files=tuple((place, content(files.find(path, keep_link=True))) for place, path in mission.files.items()),
            skip=skip,
        )


def pin(suite: Suite, files: SuiteFiles, place: Path, skip: Collection[Identity]) -> dict[str, str]:
    """Copy everything to where `suite.at` looks for it if `place` is its `pinned`. Return the digest of each file,
    including those that templates are made of."""
    named: dict[str, NamedFile] = {}
    given: dict[str, NamedFile] = {}
    for mission in suite.missions:
        for field, found in files.named_by(mission):
            (given if field[0] in _GIVEN else named)[found.path] = found
    place.mkdir(parents=True)
    digests = {path: _digest(files, given[path], skip) for path in sorted(given.keys() - named)}
    for path in sorted(named):
        copy = place / pinned_name(path)
        with _opened(files, named[path]) as fd:
            OverlayWriter(place).put(copy.name, fd, skip, name=path)
        digests[path] = tree_sha256(copy) if copy.is_dir() else sha256_file(copy)[0]
    return digests


def digest_inputs(suite: Suite, files: SuiteFiles, skip: Collection[Identity]) -> dict[str, str]:
    """Return the digests that `pin` returns, without copying anything."""
    named = {found.path: found for mission in suite.missions for _, found in files.named_by(mission)}
    return {path: _digest(files, named[path], skip) for path in sorted(named)}


def check_pinned(suite: Suite) -> None:
    """Check the prompts and capabilities of a pinned suite, which are not opened before the user has consented to it.

    Raises `SuiteInvalid`.
    """
    problems = []
    for mission in suite.missions:
        for field, path in paths_of(mission):
            try:
                if field == ("prompt_file",) and not read_text(suite.at(path), LARGEST_PROMPT):
                    problems.append(Problem(f"mission {mission.id!r}: {path!r} is empty"))
                if field == ("capabilities",):
                    refuse_execute(Capabilities.load(suite.at(path)))
            except Unreadable as why:
                problems.append(Problem(f"mission {mission.id!r}: {path!r} {why}"))
            except (CapabilitiesInvalid, CapabilitiesRefused) as error:
                problems.append(Problem(f"mission {mission.id!r}: {path!r}: {error.message}"))
    if problems:
        raise invalid(suite.id, problems)


def _digest(files: SuiteFiles, found: NamedFile, skip: Collection[Identity]) -> str:
    if found.link is not None:
        return sha256_hex(os.fsencode(found.link))
    with _opened(files, found) as fd:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return tree_sha256(found.real, trusted=True, at=fd, skip=skip)
        return sha256_file(fd)[0]


@contextlib.contextmanager
def _opened(files: SuiteFiles, found: NamedFile) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            fd = stack.enter_context(files.opened(found))
        except OSError as error:
            problem = Problem(f"{found.path!r} cannot be read: {error.strerror}")
            raise invalid(str(files.base), [problem]) from None
        yield fd
