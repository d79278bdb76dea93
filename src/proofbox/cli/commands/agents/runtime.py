"""`runtime list` and `runtime check`: the agent runtimes, whether each works here, and their conformance checks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.output import ErrorBody, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import passing_line, watched
from proofbox.core.plurals import counted
from proofbox.core.text import printable
from proofbox.errors import RuntimeChecksFailed

if TYPE_CHECKING:
    from proofbox.agents.conformance import RuntimeReport
    from proofbox.agents.runtimes.listing import RuntimeFacts
    from proofbox.cli.commands.agents.runtime_documents import RuntimesDocument
    from proofbox.sandbox.conformance.check import CheckResult


def list_(*, project: flags.Project = Path(), json: flags.Json = False) -> int:
    """List the agent runtimes, their capabilities, and whether each works here.

    Recommendations of native runtimes are based on measurements on this machine: reliability, overhead and cross-talk.

    For example:
      proofbox runtime list
      proofbox runtime list --json
    """
    from proofbox.agents.health.recommendation import default_chain
    from proofbox.agents.runtimes.listing import list_runtimes
    from proofbox.agents.settings import RuntimeSettings
    from proofbox.agents.strategies import decide_chain
    from proofbox.cli.commands.agents.runtime_documents import RuntimesDocument
    from proofbox.config.settings import load

    found = list_runtimes(project)
    settings = load(project.resolve())
    default = partial(default_chain, RuntimeSettings(settings.runtimes))
    chain = decide_chain(config=settings.strategies, default=default)
    document = RuntimesDocument(runtimes=found, chain=str(chain), chain_origin=chain.origin)
    show(document, lambda: _table(document), as_json=json)
    return 0


def check(
    strategy: Annotated[str, Parameter(help="The runtime's id.")],
    /,
    *,
    provider: flags.Provider = None,
    only: Annotated[tuple[str, ...], Parameter(name="--only", help="A check, or a group of checks. Repeatable.")] = (),
    json: flags.Json = False,
) -> int:
    """Run the conformance suite on a runtime. Exit code 1 when a check fails.

    For example:
      proofbox runtime check scripted
      proofbox runtime check process --provider bubblewrap --only turns
    """
    from proofbox.agents.conformance import CHECKS, run_conformance
    from proofbox.cli.commands.agents.runtime_documents import RuntimeCheckDocument

    done: list[CheckResult] = []
    with passing_line(shown=watched(as_json=json)) as show_line:

        def on_result(result: CheckResult) -> None:
            done.append(result)
            show_line(f"{len(done)}/{len(CHECKS)} {result.check}")

        report = run_conformance(strategy, provider=provider, only=only or None, on_result=on_result)
    failed = report.of("failed")
    what = f"{counted(len(failed), 'check')} of {strategy} failed"
    error = RuntimeChecksFailed(what, op="runtime check") if failed else None
    document = RuntimeCheckDocument(
        ok=report.ok,
        strategy=report.strategy,
        version=report.version,
        capabilities=report.capabilities,
        passed=len(report.of("passed")),
        failed=len(failed),
        results=report.results,
        error=ErrorBody.of(error) if error else None,
    )
    show(document, lambda: _report(report), as_json=json)
    return 0 if report.ok else 1


def _table(document: RuntimesDocument) -> str:
    from proofbox.cli.health import health_table, recommendation_line

    rows = [("strategy", "version", "usable here", "cannot do")]
    for each in document.runtimes:
        usable = "yes" if each.available and each.compatible else "no"
        first, *others = _missing(each)
        rows.append((each.strategy, each.version or "-", usable, first))
        rows += [("", "", "", other) for other in others]
    notes = [
        line
        for each in document.runtimes
        if not (each.available and each.compatible)
        for line in (f"{each.strategy}: {each.reason}", *(f"  fix: {hint}" for hint in each.fix_hints))
    ]
    notes += [
        recommendation_line(each.strategy, each.recommendation)
        for each in document.runtimes
        if each.recommendation is not None
    ]
    notes.append(f"without --strategies: {document.chain} (source: {document.chain_origin})")
    health = health_table([each.health for each in document.runtimes])
    return "\n\n".join(filter(None, [columns(rows), health, printable("\n".join(notes))]))


def _missing(runtime: RuntimeFacts) -> list[str]:
    """Return the capabilities that a runtime lacks, in lines of a narrow column."""
    import textwrap

    from msgspec.structs import asdict

    found = asdict(runtime.capabilities)
    missing = [name.removeprefix("supports_") for name, supported in found.items() if not supported]
    return textwrap.wrap(", ".join(missing), 36, break_on_hyphens=False) or ["-"]


def _report(report: RuntimeReport) -> str:
    passed, failed = len(report.of("passed")), report.of("failed")
    lines = [f"{report.strategy} {report.version}: {passed} of {passed + len(failed)} checks passed"]
    lines += [f"FAILED {result.check}: {result.detail}" for result in failed]
    others = [*report.of("not_applicable"), *report.of("not_checked")]
    lines += [f"{result.outcome} {result.check}: {result.detail}" for result in others]
    return printable("\n".join(lines))
