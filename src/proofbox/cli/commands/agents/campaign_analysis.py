"""`campaign plan`, `compare` and `publish-check`: what a campaign can show, and whether its numbers hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from proofbox.cli import flags
from proofbox.cli.output import columns, show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import printable

SpecPath = Annotated[Path, Parameter(help="The campaign file (TOML).")]
OutPath = Annotated[Path, Parameter(help="The --out directory of a campaign.")]


def plan(
    spec: SpecPath,
    *,
    mde: Annotated[
        str | None, Parameter(name="--mde", help="A difference of pass rates that must be detected: 5pt.")
    ] = None,
    past: Annotated[
        Path | None, Parameter(name="--past", help="The directory of an earlier campaign, for estimates.")
    ] = None,
    json: flags.Json = False,
) -> int:
    """Show the number of attempts, estimates from an earlier campaign, and the difference that can be detected.

    For example:
      proofbox campaign plan campaign.toml --mde 5pt
    """
    from proofbox.cli.health import wrapped
    from proofbox.lab.campaign.planning import plan_campaign

    found = plan_campaign(spec, mde=mde, past=past)

    def text() -> str:
        design = f"{counted(found.flows, 'flow')} x {counted(found.missions, 'mission')} x {found.replicates}"
        lines = [f"{found.campaign}: {design} = {counted(found.attempts, 'attempt')}"]
        if found.detectable_difference is None:
            lines.append(f"{counted(found.missions, 'mission')} can never show a difference: use at least six")
        else:
            points = f"{found.detectable_difference * 100:.1f} points"
            lines.append(f"detects a difference of {points}, with {found.power * 100:.0f} % power")
        if found.mde is not None:
            ways = [counted(found.missions_needed or 0, "mission")]
            ways += [] if found.replicates_needed is None else [counted(found.replicates_needed, "replicate")]
            often = "half" if found.rate == 0.5 else f"{found.rate:.0%}"
            assumed = f"assuming that flows pass {often} of the time and missions are equally hard"
            lines.append(f"{found.mde * 100:g} points need {' or '.join(ways)} ({assumed})")
        if found.seconds is not None:
            lines.append(f"about {found.seconds:.0f} s")
        if found.tokens is not None:
            lines.append(f"about {found.tokens:.0f} tokens")
        if found.cost is not None:
            lines.append(f"about {found.cost:.2f} {found.currency or ''}".rstrip())
        return "\n".join(map(wrapped, lines))

    show(found, text, as_json=json)
    return 0


def compare(
    first: Annotated[Path, Parameter(help="The --out directory of the earlier campaign.")],
    second: Annotated[Path, Parameter(help="The --out directory of the later campaign.")],
    *,
    json: flags.Json = False,
) -> int:
    """Compare the flows of a campaign with those of an earlier one. Exit 1 if a flow has become worse.

    Pass rates, time, tokens, cost and friction are compared on the same missions. Only the verdict on the pass rate and
    findings in the evidence affect the exit code.

    For example:
      proofbox campaign compare earlier out
    """
    from proofbox.cli.health import wrapped
    from proofbox.lab.campaign.comparing import compare_campaigns
    from proofbox.lab.reports.campaigns.text import regression_notes, regression_tables

    found = compare_campaigns(first, second)

    def text() -> str:
        lines = [line for rows in regression_tables(found) for line in (columns(rows), "")]
        return "\n".join([*lines, *map(wrapped, regression_notes(found))])

    show(found, text, as_json=json)
    return 0 if found.ok else 1


def publish_check(
    out: OutPath = Path("out"),
    *,
    sign: Annotated[Path | None, Parameter(name="--sign", help="Sign the packet with this private key.")] = None,
    json: flags.Json = False,
) -> int:
    """Check whether the results can be published, and if so, write the promotion packet. Exit 1 if they cannot.

    This requires the whole campaign, a score for every attempt, all gates passed, strict validation of every bundle,
    and that what was run is exactly what was registered.

    For example:
      proofbox campaign publish-check out
    """
    from proofbox.cli.health import wrapped
    from proofbox.lab.campaign.publishing import check_publishable

    found = check_publishable(out, sign=sign)

    def text() -> str:
        lines = [f"{found.campaign} can{'' if found.ok else 'not'} be published"]
        lines += [wrapped(f"{each.code}: {each.detail}") for each in found.reasons]
        lines.append(f"registered: {found.sha256}")
        if found.packet is not None:
            lines.append(f"packet: {found.packet}")
        return printable("\n".join(lines))

    show(found, text, as_json=json)
    return 0 if found.ok else 1


def regrade(
    campaign: OutPath,
    spec: SpecPath,
    *,
    out: Annotated[
        Path, Parameter(name="--out", converter=flags.place, help="The directory for the new bundle.")
    ] = Path("regraded"),
    trust: Annotated[
        bool, Parameter(name="--trust", help="Consent to everything the file asks for beyond your settings.")
    ] = False,
    json: flags.Json = False,
) -> int:
    """Verify the final files of a campaign with the verifiers of another campaign file, without running agents again.

    The results are a new bundle that names the campaign as its parent. The campaign itself stays as it is.

    For example:
      proofbox campaign regrade out stricter.toml --out regraded
    """
    from proofbox.lab.campaign.regrading import regrade_campaign
    from proofbox.lab.reports.campaigns.text import comparison_rows, rate_row

    done = regrade_campaign(campaign, spec, out=out, trust=trust)

    def text() -> str:
        rows = [["FLOW", "PASSED", "RATE", "95 % INTERVAL"]]
        rows += [[flow, *rate_row(rate)] for flow, rate in done.regrade.rates.items()]
        lines = [columns(rows), ""]
        if done.regrade.comparisons:
            lines += [columns(comparison_rows(done.regrade.comparisons)), ""]
        lines.append(f"{counted(done.changed, 'result')} changed, of {counted(len(done.regrade.attempts), 'attempt')}")
        return printable("\n".join([*lines, f"evidence: {done.bundle}"]))

    show(done, text, as_json=json)
    return 0
