"""Read a plan, and report every problem with its position."""

from __future__ import annotations

import os
import re
import string
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from proofbox.core.digest import digest_of, sha256_hex
from proofbox.core.nearest import nearest
from proofbox.core.spec_files.positions import read_toml
from proofbox.core.spec_files.problems import Problem, Problems, invalid, refuse_other_kind, toml_problem
from proofbox.core.spec_files.shape import Shape
from proofbox.core.spec_files.text_files import Unreadable, read_text
from proofbox.errors import PlanInvalid, PlanUnknown
from proofbox.sandbox.probing.corpus import built_in_digests, built_in_plan, built_in_plans
from proofbox.sandbox.probing.decoys import PLACEHOLDERS
from proofbox.sandbox.probing.harm import harms
from proofbox.sandbox.probing.operations import OPERATIONS
from proofbox.sandbox.probing.plan import ProbePlan

MAX_BYTES: Final = 1 << 20
_BUILT_IN: Final = re.compile(r"[a-z0-9-]+")


class LoadedPlan(msgspec.Struct, frozen=True):
    """A plan with the digest of every byte that it was read from."""

    plan: ProbePlan
    digest: str
    """The SHA-256 of its file; of a built-in plan, that of the digests of its file and the corpus."""
    path: Path | None
    """None for a built-in plan."""


def load_plan(plan: str | os.PathLike[str]) -> LoadedPlan:
    """Load a built-in plan by its id, or a plan from a file."""
    name = os.fspath(plan)
    if _BUILT_IN.fullmatch(name) and name in built_in_plans():
        return LoadedPlan(built_in_plan(name), digest_of(built_in_digests(name)), None)
    path = Path(name)
    if not path.exists():
        known = built_in_plans()
        raise PlanUnknown(
            f"{name} is neither a file nor a built-in plan",
            op="plan",
            fix_hints=[f"name a file, or a built-in plan ({nearest(name, known)})"],
        )
    try:
        text = read_text(path, MAX_BYTES)
    except Unreadable as error:
        raise invalid(name, [Problem(f"it {error}", error.line, min(error.line, 1))], PlanInvalid, "plan") from None
    return parse_plan(text, name=name, path=path.resolve())


def parse_plan(text: str, *, name: str, path: Path | None = None) -> LoadedPlan:
    """Parse a plan. Raises `PlanInvalid` with all of its problems."""
    try:
        values, positions = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid(name, [toml_problem(error, text)], PlanInvalid, "plan") from None
    problems = Problems(positions, values)
    refuse_other_kind(name, values, problems, "plan", PlanInvalid)
    Shape(problems, "plan").visit(ProbePlan, values, ())
    if problems.found:
        raise invalid(name, problems.found, PlanInvalid, "plan")
    plan = msgspec.convert(values, ProbePlan)
    _check(plan, problems)
    if problems.found:
        raise invalid(name, problems.found, PlanInvalid, "plan")
    return LoadedPlan(plan, sha256_hex(text.encode()), path)


def _check(plan: ProbePlan, problems: Problems) -> None:
    profiles = [profile.id for profile in plan.profile]
    _check_unique("profile", profiles, problems)
    _check_unique("probe", [probe.id for probe in plan.probe], problems)
    for number, profile in enumerate(plan.profile):
        if profile.disk_mb is not None and profile.access != "overlay":
            problems.add(("profile", number, "disk_mb"), 'disk_mb needs access = "overlay"')
    for number, probe in enumerate(plan.probe):
        at: tuple[str | int, ...] = ("probe", number)
        for place, name in enumerate(probe.profiles):
            if name not in profiles:
                problems.add((*at, "profiles", place), f"no profile is called {name!r}", nearest(name, profiles))
        operation = OPERATIONS.get(probe.operation)
        if operation is None:
            hint = nearest(probe.operation, OPERATIONS) or f"one of {', '.join(OPERATIONS)}"
            problems.add((*at, "operation"), f"no operation is called {probe.operation!r}", hint)
            continue
        fixed = [name for name in operation.args if name != "arguments"]
        if len(probe.args) < len(fixed) or (len(probe.args) > len(fixed) and fixed == list(operation.args)):
            problems.add((*at, "args"), f"{probe.operation} needs {', '.join(fixed)}; {len(probe.args)} given")
            continue
        for place, argument in enumerate(probe.args):
            _check_argument(argument, (*at, "args", place), problems)
        for reason in harms(probe):
            problems.add((*at, "args"), reason)
        if probe.expect == "baseline" and (probe.baseline == "skip" or operation.host_wide):
            problems.add((*at, "expect"), "there is no baseline to compare with")
        if probe.baseline == "skip" and not probe.baseline_reason:
            problems.add((*at, "baseline"), "a skipped baseline needs a baseline_reason")


def _check_argument(argument: str, at: tuple[str | int, ...], problems: Problems) -> None:
    if re.search(r"[\x00-\x1f]", argument):
        problems.add(at, "an argument cannot contain control characters")
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(argument) if name is not None]
    except ValueError:
        problems.add(at, "a brace is not closed", "write {{ or }} for a brace")
        return
    for name in names:
        if name not in PLACEHOLDERS:
            known = sorted(PLACEHOLDERS)
            problems.add(at, f"there is no decoy {{{name}}}", nearest(name, known) or f"one of {', '.join(known)}")


def _check_unique(table: str, ids: list[str], problems: Problems) -> None:
    for number, id in enumerate(ids):
        if id in ids[:number]:
            problems.add((table, number, "id"), f"two tables [[{table}]] have the id {id!r}")
