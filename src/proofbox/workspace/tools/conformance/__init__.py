"""The conformance suite of tool environments: one set of checks for all, as plain functions that raise `Failed`.

    results = run_conformance(make)     # make(guard) is a context manager that yields a `ToolFixture`

An environment without a directory on the host sets `ToolFixture.host` to None, and one without commands raises
CommandsUnavailable; the checks that need them are then `not_applicable`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

from proofbox.sandbox.conformance.check import CheckResult, Failed, NotApplicable
from proofbox.workspace.tools.conformance import changes, commands, files, guards, links, search
from proofbox.workspace.tools.conformance.fixture import CHECKS, GUARDED, Check, SecretGuard, ToolFixture
from proofbox.workspace.tools.tree import AllowAll, Guard

__all__ = ["CHECKS", "GUARDED", "MODULES", "Make", "SecretGuard", "ToolFixture", "run_conformance"]

MODULES = (files, changes, search, commands, links, guards)  # importing them registers their checks
Make = Callable[[Guard], AbstractContextManager[ToolFixture]]


def run_conformance(make: Make, only: Collection[str] | None = None) -> list[CheckResult]:
    """Run every check, or those in `only`, each in a new fixture. Errors are reported in the check's result."""
    checks: list[tuple[str, Check, Guard]] = [(name, check, AllowAll()) for name, check in CHECKS.items()]
    checks += [(name, check, SecretGuard()) for name, check in GUARDED.items()]
    return [_run(name, check, make, guard) for name, check, guard in checks if only is None or name in only]


def _run(name: str, check: Check, make: Make, guard: Guard) -> CheckResult:
    try:
        with make(guard) as fixture:
            check(fixture)
    except Failed as error:
        return CheckResult(name, "tools", "failed", str(error))
    except NotApplicable as error:
        return CheckResult(name, "tools", "not_applicable", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return CheckResult(name, "tools", "failed", f"{type(error).__name__} at {where.name}:{where.lineno}: {error}")
    return CheckResult(name, "tools", "passed")
