"""Checks a suite file or Harbor tasks without running anything."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from proofbox.config.consent import Widening
from proofbox.core.results import Document, ErrorBody
from proofbox.core.spec_files.problems import Problem
from proofbox.errors import SuiteInvalid
from proofbox.lab.run.plan import box_settings
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.opening import open_suite
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.warnings import warnings_of
from proofbox.lab.suite.widening import widenings


class SuiteLint(Document, frozen=True, kw_only=True):
    """The problems of a suite. `ok`: it is valid."""

    schema: str = "proofbox.suite_lint/1"
    suite: str | None
    missions: int
    sha256: str | None
    """The digest of the suite's content, independent of its formatting; null: the suite is invalid."""
    problems: tuple[Problem, ...]
    notes: Mapping[str, tuple[str, ...]] = {}
    """For each mission written for another system, what is left out or done differently here."""
    warnings: Mapping[str, tuple[str, ...]] = {}
    """For each mission, how an agent could pass verification without doing the work."""
    widenings: tuple[Widening, ...] = ()
    """What the suite asks for beyond your settings. `suite run` needs your consent to it."""
    error: ErrorBody | None = None


def lint_suite(spec: str | os.PathLike[str], *, host_root: bool = False) -> SuiteLint:
    """Return every problem of a suite file or of Harbor tasks, and everything they ask for beyond your settings.

    For example:

        found = proofbox.lint_suite("suite.toml")
        for each in found.problems:
            print(each)

    `host_root`: Harbor tasks run on this machine's files instead of their images. A missing file raises
    `NotFoundError`.
    """
    try:
        suite = open_suite(Path(spec), host_root=host_root)
    except SuiteInvalid as invalid:
        problems = msgspec.convert(invalid.details.get("problems", []), tuple[Problem, ...])
        error = ErrorBody.of(invalid)
        return SuiteLint(ok=False, suite=None, missions=0, sha256=None, problems=problems, error=error)
    with SuiteFiles(suite.base) as files:
        warnings = {mission.id: tuple(warnings_of(mission, files)) for mission in suite.missions}
        asked = widenings(suite, files, box_settings(), provider=None)
    return SuiteLint(
        suite=suite.id,
        missions=len(suite.missions),
        sha256=suite.sha256,
        problems=(),
        notes=_notes(suite),
        warnings={id: found for id, found in warnings.items() if found},
        widenings=asked,
    )


def _notes(suite: Suite) -> dict[str, tuple[str, ...]]:
    return {
        mission.id: (*(f"not comparable: {each}" for each in mission.origin.not_comparable), *mission.origin.notes)
        for mission in suite.missions
        if mission.origin is not None
    }
