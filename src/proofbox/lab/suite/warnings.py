"""Lint warnings for missions that can run, but might pass verification without having been solved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from proofbox.lab.attempt.runner_files import unprotected
from proofbox.lab.suite.files import NamedFile, SuiteFiles
from proofbox.lab.suite.spec import Mission

MAX_FILES = 10_000
"""The maximum number of `verify.files` that are searched for scripts that the verifier runs."""


def warnings_of(mission: Mission, files: SuiteFiles) -> Iterator[str]:
    """Yield a warning for each verifier file that the agent can see or change. Files outside the suite are not read."""
    verify = mission.verify
    if not verify.commands:
        return
    hidden = [(field, found) for field, found in files.named_by(mission) if _is_hidden(field)]
    given = [(field, found) for field, found in files.named_by(mission) if field[0] in ("workspace", "files")]
    for field, secret in hidden:
        for source, found in given:
            if not found.outside and found.link is None and secret.real.is_relative_to(found.real):
                yield (
                    f"{_dotted(source)} contains {_dotted(field)} ({secret.path}), so the agent can see what it is "
                    "verified with: move it outside"
                )
    laid = files.find(verify.files) if verify.files is not None else None
    yield from unprotected(verify, _paths_below(laid))


def _dotted(field: tuple[str | int, ...]) -> str:
    return ".".join(map(str, field))


def _is_hidden(field: tuple[str | int, ...]) -> bool:
    return field == ("solution",) or field[0] in ("verify", "then")


def _paths_below(found: NamedFile | None) -> list[str]:
    if found is None or found.outside:
        return []
    paths: list[str] = []
    for folder, _, names in os.walk(found.real):
        paths += [str(Path(folder, name).relative_to(found.real)) for name in names]
        if len(paths) > MAX_FILES:
            break
    return paths
