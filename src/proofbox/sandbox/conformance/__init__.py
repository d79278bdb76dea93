"""The conformance suite: checks on this machine that a provider really enforces what it claims.

Every provider runs the same checks. A check of something that the provider does not claim to enforce is
`not_applicable`, with the reason the provider gives; the claim, not the provider's name, decides. Another check
(`policy.refusals`) tests that the provider refuses such policies.

    report = run_conformance("bubblewrap")
    report.ok, [result.detail for result in report.of("failed")]

The checks start boxes, attack them from inside, and use the network only on 127.0.0.1. They clean up after themselves.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from proofbox.config.settings import Settings
from proofbox.errors import IdmapUnsupported, UsageError
from proofbox.sandbox.conformance.check import (
    LIMIT,
    CheckResult,
    Failed,
    NotApplicable,
    NotChecked,
    Outcome,
    ProviderCheck,
    Report,
)
from proofbox.sandbox.conformance.checks import (
    agent_attacks,
    commands,
    confinement,
    detached,
    filesystem,
    kernel,
    killing,
    limits,
    loss,
    network,
    policy,
    reach,
    streams,
)
from proofbox.sandbox.conformance.context import CheckContext, own_directories
from proofbox.sandbox.contract import Enforcement, Policy, Provider
from proofbox.sandbox.providers import provider_named

T = TypeVar("T")

__all__ = ["CHECKS", "CheckResult", "Outcome", "ProviderCheck", "Report", "run_conformance"]

CHECKS: tuple[ProviderCheck, ...] = tuple(
    check
    for module in (
        commands,
        streams,
        killing,
        policy,
        network,
        limits,
        filesystem,
        reach,
        confinement,
        kernel,
        agent_attacks,
        loss,
        detached,
    )
    for check in module.subject.checks
)


def run_conformance(
    provider: str,
    only: Collection[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
    settings: Settings | None = None,
) -> Report:
    """Check a provider by name; `only` selects checks or whole subjects, `settings` the image or runtime to check with.

    Raises `UsageError` for an unknown check and `ProviderUnknown` for an unknown provider. Errors inside a check are
    recorded in its result. Changes this process's environment while it runs (see `own_directories`).
    """
    known = {name for check in CHECKS for name in (check.name, check.subject)}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise UsageError(
            f"unknown check {unknown[0]!r}", op="conformance", fix_hints=[f"known: {', '.join(sorted(known))}"]
        )
    chosen = provider_named(provider)
    enforcement = chosen.enforcement(Policy(runtime=settings.runtime if settings is not None else None))
    results = []
    with own_directories(settings or Settings()):
        for check in CHECKS:
            if only is None or check.name in only or check.subject in only:
                result = _run(check, chosen, enforcement)
                results.append(result)
                if on_result is not None:
                    on_result(result)
    return Report(chosen.name, enforcement.isolation, os.geteuid(), enforcement, tuple(results))


def _run(check: ProviderCheck, provider: Provider, enforcement: Enforcement) -> CheckResult:
    unmet = check.needs.unmet(provider.name, enforcement)
    if unmet is not None:
        return CheckResult(check.name, check.subject, "not_applicable", unmet)
    began = time.monotonic()
    try:
        context = CheckContext(provider, enforcement)
    except OSError as error:
        return CheckResult(check.name, check.subject, "not_checked", f"cannot create the check's directories: {error}")
    # Run in a thread, so that a box that hangs its client blocks neither the caller nor the remaining checks.
    outcome: Outcome = "failed"
    seconds = context.patience(check.seconds)
    detail = f"still running after {seconds:g} s"
    finished = _bounded(lambda: _attempt(check, context), seconds)
    if finished is not None:
        outcome, detail = finished
    problems = _bounded(context.close, LIMIT)
    if problems is None:
        problems = [f"the boxes could not be stopped within {LIMIT:g} s"]
    if problems:
        outcome, detail = "failed", "; ".join([*([detail] if detail else []), *problems])
    return CheckResult(check.name, check.subject, outcome, detail, round((time.monotonic() - began) * 1000, 1))


def _attempt(check: ProviderCheck, context: CheckContext) -> tuple[Outcome, str]:
    try:
        check.run(context)
    except Failed as error:
        return "failed", str(error)
    except NotApplicable as error:
        return "not_applicable", str(error)
    except NotChecked as error:
        return "not_checked", str(error)
    except IdmapUnsupported as error:  # concerns the checks' own directories, not the provider
        return "not_checked", f"{error.message}; set TMPDIR to a directory on another file system"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in last if Path(frame.filename).is_relative_to(Path(__file__).parent)]
        where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        return "failed", f"{type(error).__name__}{where}: {error}"
    return "passed", ""


def _bounded(work: Callable[[], T], seconds: float) -> T | None:
    """Return the result of `work`, or None on timeout; the abandoned thread then ends with its boxes."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="proofbox-conformance", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
