"""`plan`: measure what a sandbox enforces, by a plan of probes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import passing_line, watched
from proofbox.core.plurals import counted
from proofbox.core.spec_files.problems import Problem
from proofbox.core.text import printable
from proofbox.errors import PlanInvalid, PlanMismatch
from proofbox.sandbox.probing.plan import Probe, ProbePlan, Profile
from proofbox.sandbox.probing.results import ChangedDecision, ProbeResult

MANY = 3
"""As many unknown results with the same detail are shown as one."""
PlanName = Annotated[str, Parameter(help="A built-in plan (see `plan list`), or a file.")]


class PlanFacts(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The plan's id."""
    description: str
    """What the plan measures."""
    profiles: int
    """The number of profiles."""
    probes: int
    """Probes in all profiles together."""


class PlanListDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.plan_list/1"
    plans: tuple[PlanFacts, ...]
    """The built-in plans."""


class PlanDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.plan_shown/1"
    id: str
    """The plan's id."""
    digest: str
    """The SHA-256 of the plan's file; for a built-in plan, of the digests of its file and the corpus."""
    profiles: tuple[Profile, ...]
    """The profiles that the probes run in."""
    probes: tuple[Probe, ...]
    """The probes."""


class PlanLintDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.plan_lint/1"
    plan: str | None
    """The plan's id; null: the file is invalid."""
    digest: str | None = None
    """The SHA-256 of the plan's file; null: the file is invalid."""
    profiles: int = 0
    """The number of profiles."""
    probes: int = 0
    """The number of probes, each counted once."""
    problems: tuple[Problem, ...] = ()
    error: ErrorBody | None = None


class PlanRunDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.plan_run/1"
    plan_id: str
    """The plan's id."""
    plan_digest: str
    """The SHA-256 of the plan's file; for a built-in plan, of the digests of its file and the corpus."""
    run_id: str
    path: str | None
    """The bundle; null for a dry run."""
    probes: int
    """The number of results."""
    allowed: int
    denied: int
    """The number of denied operations."""
    unknown: int
    """The number of results that are not clear."""
    mismatches: tuple[ProbeResult, ...]
    """The results that differ from the plan."""
    error: ErrorBody | None
    """The error, if `ok` is false."""


class PlanComparisonDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.plan_comparison/1"
    first: str
    """The id of the first run."""
    second: str
    """The id of the second run."""
    facts: dict[str, tuple[str, str]]
    """Versions, kernels and other facts that differ."""
    decisions: tuple[ChangedDecision, ...]
    """Probes whose decision differs; null: only the other run has the probe."""
    same: int
    """The number of probes with the same decision in both."""


def list_(*, json: flags.Json = False) -> int:
    """List the built-in plans. Each states what the security model promises of a provider.

    For example:
      proofbox plan list
    """
    from proofbox.sandbox.probing.corpus import built_in_plan, built_in_plans

    plans = [built_in_plan(name) for name in built_in_plans()]
    document = PlanListDocument(
        plans=tuple(
            PlanFacts(id=p.id, description=p.plan.description, profiles=len(p.profile), probes=_count(p)) for p in plans
        )
    )
    rows = [[each.id, f"{each.probes} probes", each.description] for each in document.plans]
    show(document, lambda: columns(rows), as_json=json)
    return 0


def show_(plan: PlanName, *, json: flags.Json = False) -> int:
    """Show a plan: its profiles, and what every probe expects.

    For example:
      proofbox plan show bubblewrap
      proofbox plan show my-plan.toml --json
    """
    document = _loaded(plan)
    show(document, lambda: _plan_text(document), as_json=json)
    return 0


def lint(plan: PlanName, *, json: flags.Json = False) -> int:
    """Check a plan, and report every problem with its line. Exit 1 on any.

    For example:
      proofbox plan lint my-plan.toml
    """
    try:
        found = _loaded(plan)
    except PlanInvalid as invalid:
        problems = msgspec.convert(invalid.details["problems"], tuple[Problem, ...])
        wrong = PlanLintDocument(ok=False, plan=None, problems=problems, error=ErrorBody.of(invalid))
        show(wrong, lambda: printable("\n".join(f"{plan}:{each}" for each in problems)), as_json=json)
        return 1
    profiles, probes = len(found.profiles), len(found.probes)
    document = PlanLintDocument(plan=found.id, digest=found.digest, profiles=profiles, probes=probes)
    text = f"{found.id}: {counted(probes, 'probe')} in {counted(profiles, 'profile')}, no problems"
    show(document, lambda: printable(text), as_json=json)
    return 0


def run(
    plan: PlanName,
    *,
    out: Annotated[
        Path, Parameter(name="--out", converter=flags.place, help="The output directory for the evidence.")
    ] = Path("plan-runs"),
    provider: Annotated[
        str | None, Parameter(name="--provider", help="Measure this provider instead of those in the profiles.")
    ] = None,
    adapter: Annotated[
        str | None,
        Parameter(
            name="--adapter",
            help="Measure another sandbox: bwrap, docker-run, firejail, srt, systemd-run, or a command line"
            " with {command} for the driver and {project} for the project's directory.",
        ),
    ] = None,
    image: Annotated[str | None, Parameter(name="--image", help="The image for providers that run images.")] = None,
    channel: Annotated[
        Literal["clean", "direct"],
        Parameter(name="--channel", help="Measure from a freshly made process, or directly from this one."),
    ] = "clean",
    only_profile: Annotated[
        tuple[str, ...], Parameter(name="--only-profile", help="Run only this profile. Repeatable.")
    ] = (),
    only_probe: Annotated[
        tuple[str, ...],
        Parameter(name="--only-probe", help="Run only this probe, and the controls. Repeatable."),
    ] = (),
    dry: Annotated[bool, Parameter(name="--dry", help="Check everything, and run nothing.")] = False,
    trust: Annotated[bool, Parameter(name="--trust", help="Consent to what the plan asks for, now and later.")] = False,
    lock_mode: flags.LockMode = "fail",
    lock_timeout: flags.LockTimeout = 30.0,
    json: flags.Json = False,
) -> int:
    """Run the probes of a plan in a sandbox and without one, and keep the results as evidence.

    Exit 1 if a result differs from what the plan expects, unless the plan explains it.

    For example:
      proofbox plan run bubblewrap
      proofbox plan run docker --image debian:12 --out measured
      proofbox plan run hostile --adapter bwrap
    """
    from proofbox.probes.run import run_plan

    with passing_line(shown=watched(as_json=json)) as show_line:
        done = run_plan(
            plan,
            out,
            provider=provider,
            adapter=adapter,
            image=image,
            channel=channel,
            only_profiles=only_profile,
            only_probes=only_probe,
            dry=dry,
            trust=trust,
            lock_mode=lock_mode,
            lock_timeout=lock_timeout,
            progress=lambda *lane: show_line(_bar(*lane)),
        )
    wrong = [result for result in done.results if not result.matched]
    error = None
    if not done.ok:
        left = done.unexplained
        error = PlanMismatch(f"{len(left)} of {done.summary.probes} probes differ from the plan", op="plan run")
    document = PlanRunDocument(
        ok=done.ok,
        plan_id=done.plan_id,
        plan_digest=done.plan_digest,
        run_id=done.run_id,
        path=None if done.path is None else str(done.path),
        probes=done.summary.probes,
        allowed=done.summary.allowed,
        denied=done.summary.denied,
        unknown=done.summary.unknown,
        mismatches=tuple(wrong),
        error=None if error is None else ErrorBody.of(error),
    )
    show(document, lambda: _run_text(document), as_json=json)
    return 0 if done.ok else 1


def compare(
    first: Annotated[Path, Parameter(help="A plan run: its bundle, or an output directory.")],
    second: Annotated[Path, Parameter(help="Another plan run.")],
    *,
    json: flags.Json = False,
) -> int:
    """Show what changed between two plan runs: versions, kernels, tools, decisions. Exit 1 if a decision changed.

    For example:
      proofbox plan compare before after
    """
    from proofbox.probes.comparison import compare_plan_runs

    found = compare_plan_runs(first, second)
    document = PlanComparisonDocument(
        ok=not found.decisions,
        first=found.first,
        second=found.second,
        facts={each.name: (each.first, each.second) for each in found.facts},
        decisions=found.decisions,
        same=found.same,
    )
    show(document, lambda: _comparison_text(document), as_json=json)
    return 0 if document.ok else 1


def _loaded(name: str) -> PlanDocument:
    from proofbox.probes.reading import load_plan

    loaded = load_plan(name)
    return PlanDocument(id=loaded.plan.id, digest=loaded.digest, profiles=loaded.plan.profile, probes=loaded.plan.probe)


def _count(plan: ProbePlan) -> int:
    return sum(len(plan.probes_of(profile.id)) for profile in plan.profile)


def _bar(lane: str, number: int, total: int) -> str:
    return f"[{'#' * number}{'-' * (total - number)}] {number + 1} of {total}: {lane}"


def _plan_text(document: PlanDocument) -> str:
    rows = [[each.id, each.provider or "any", each.description] for each in document.profiles]
    probes = [[each.id, each.expect, each.operation, each.reason] for each in document.probes]
    return f"plan {document.id}\n\n{columns(rows)}\n\n{columns(probes)}"


def _run_text(document: PlanRunDocument) -> str:
    if document.path is None:
        return f"plan {document.plan_id}: everything is ready, nothing was run"
    lines = [
        f"{document.probes} probes: {document.allowed} allowed, {document.denied} denied, {document.unknown} unknown",
    ]
    own = [each for each in document.mismatches if each.mismatch != "control_failed"]
    times = Counter(each.detail for each in own if each.decision == "unknown")
    rows = [
        [
            f"{each.profile}/{each.probe_id}",
            f"expected {each.expected}",
            f"found {each.decision}",
            f"{each.detail}; known: {each.explained}" if each.explained else each.detail,
        ]
        for each in own
        if times[each.detail] < MANY or each.decision != "unknown"
    ]
    lines += [columns(rows)] if rows else []
    lines += [f"{number} results are unknown: {printable(why)}" for why, number in times.items() if number >= MANY]
    if len(own) < len(document.mismatches):
        lines.append(f"{len(document.mismatches) - len(own)} other results do not count, because a control failed")
    lines.append("as the plan expects" if document.ok else "not as the plan expects")
    lines.append(f"evidence: {document.path}")
    return "\n".join(lines)


def _comparison_text(document: PlanComparisonDocument) -> str:
    lines = [columns([[name, one, "->", two] for name, (one, two) in document.facts.items()])] if document.facts else []
    rows = [[f"{e.profile}/{e.probe_id}", e.first or "absent", "->", e.second or "absent"] for e in document.decisions]
    lines += [columns(rows)] if rows else []
    lines.append(f"{document.same} probes with the same decision, {len(rows)} changed")
    return "\n".join(lines)
