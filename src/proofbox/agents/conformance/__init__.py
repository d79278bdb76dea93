"""The conformance suite of agent runtimes: checks whether a runtime implements the contract, by driving it.

The checks are the same for every runtime. The *rig* of a runtime (`rig.py`) makes it play small scenes, with a script,
a program or a fake model. A check of a capability that the runtime does not claim passes if the runtime refuses with
`RUNTIME_CAPABILITY_UNSUPPORTED`. A check whose scene a rig can't stage is `not_applicable`.

    report = run_conformance("scripted")
    report.ok, [result.detail for result in report.of("failed")]
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

import anyio
import msgspec

from proofbox.agents.conformance import cleanup, control, threads, turns
from proofbox.agents.conformance.context import RuntimeCheck, RuntimeCheckContext
from proofbox.agents.conformance.rigs import rig_for
from proofbox.agents.contract import AgentRuntime, RuntimeCapabilities
from proofbox.agents.registry import Registry, installed
from proofbox.core.documents import stored
from proofbox.errors import StrategyUnavailable, UsageError
from proofbox.sandbox.conformance.check import CheckResult, Failed, Measured, NotApplicable, NotChecked, Outcome

__all__ = ["CHECKS", "RuntimeCheck", "RuntimeReport", "run_conformance"]

SCHEMA = "proofbox.runtime_conformance/1"
CHECKS: tuple[RuntimeCheck, ...] = tuple(
    check for module in (turns, control, threads, cleanup) for check in module.subject.checks
)


@stored(SCHEMA, at="the result of `run_conformance`, if the caller stores it")
class RuntimeReport(Measured, msgspec.Struct, frozen=True):
    """The results for one runtime on this machine. `msgspec.to_builtins` converts it for JSON."""

    strategy: str
    version: str
    capabilities: RuntimeCapabilities
    results: tuple[CheckResult, ...]
    schema_version: str = SCHEMA


def run_conformance(
    strategy: str,
    *,
    provider: str | None = None,
    only: Collection[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
    registry: Registry | None = None,
) -> RuntimeReport:
    """Check a runtime in boxes of a provider. Failures of a check are reported in its result.

    Raises `UsageError` for an unknown check, `StrategyUnsupported` for an unknown runtime, and `StrategyUnavailable`
    for a runtime that is not available here.
    """
    known = {name for check in CHECKS for name in (check.name, check.subject)}
    unknown = sorted(set(only or ()) - known)
    if unknown:
        raise UsageError(
            f"unknown check {unknown[0]!r}", op="runtime check", fix_hints=[f"known: {', '.join(sorted(known))}"]
        )
    runtime = (registry or installed()).runtime(strategy)
    version = anyio.run(_find, runtime)
    results = []
    for check in CHECKS:
        if only is None or check.name in only or check.subject in only:
            result, seen = _run(check, runtime, provider)
            version = seen or version  # only checks that open a session see it
            results.append(result)
            if on_result is not None:
                on_result(result)
    return RuntimeReport(runtime.id, version, runtime.capabilities, tuple(results))


async def _find(runtime: AgentRuntime) -> str:
    """Return the version of a runtime that can be checked here."""
    with tempfile.TemporaryDirectory(prefix="proofbox-runtime-") as scratch:
        try:
            async with rig_for(runtime).stage([[]], Path(scratch)) as settings:
                probe = await runtime.probe(settings)
        except NotApplicable as error:
            raise StrategyUnavailable(
                f"{runtime.id} can't be checked: its rig does not support an empty scene: {error}",
                op="runtime check",
                fix_hints=["change the rig's `stage` to accept empty scenes"],
            ) from None
    if not probe.available or not probe.compatible:
        raise StrategyUnavailable(
            f"{runtime.id} can't be checked: {probe.reason}",
            op="runtime check",
            fix_hints=probe.fix_hints,
            details={"because": probe.code},
        )
    return probe.version


def _run(check: RuntimeCheck, runtime: AgentRuntime, provider: str | None) -> tuple[CheckResult, str]:
    began = time.monotonic()
    context = RuntimeCheckContext(runtime, rig_for(runtime), provider)
    seconds = max(check.seconds, 3 * context.timeout)  # a check waits for several things, one after the other

    async def bounded() -> None:
        try:
            with anyio.fail_after(seconds):
                await check.run(context)
        except BaseExceptionGroup as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise error from None

    outcome: Outcome = "passed"
    detail = ""
    try:
        anyio.run(bounded)
    except Failed as error:
        outcome, detail = "failed", str(error)
    except NotApplicable as error:
        outcome, detail = "not_applicable", str(error)
    except NotChecked as error:
        outcome, detail = "not_checked", str(error)
    except TimeoutError:
        outcome, detail = "failed", f"timed out after {seconds:g} s"
    except Exception as error:
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "conformance" in frame.filename]
        where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        outcome, detail = "failed", f"{type(error).__name__}{where}: {error}"
    left = context.close()
    if left:
        outcome, detail = "failed", "; ".join([*([detail] if detail else []), *left])
    took = round((time.monotonic() - began) * 1000, 1)
    return CheckResult(check.name, check.subject, outcome, detail, took), context.version
