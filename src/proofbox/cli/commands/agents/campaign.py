"""`campaign`: compare flows on the same missions, with intervals and verdicts that hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from proofbox.cli import flags
from proofbox.cli.commands.agents.suite import consents
from proofbox.cli.output import READER_LEFT, Document, columns, show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import printable
from proofbox.errors import ConsentRequired

if TYPE_CHECKING:
    from proofbox.lab.reports.campaigns.results import CampaignReport
    from proofbox.lab.run.events import OnSuiteEvent

SpecPath = Annotated[Path, Parameter(help="The campaign file (TOML).")]
OutPath = Annotated[Path, Parameter(help="The --out directory of a campaign.")]
NewOut = Annotated[Path, Parameter(name="--out", converter=flags.place, help="The directory for the evidence.")]
Trust = Annotated[
    bool,
    Parameter(
        name="--trust",
        help="Consent to everything the campaign asks for beyond your settings; `campaign lint` lists it.",
    ),
]
Jsonl = Annotated[bool, Parameter(name="--jsonl", help="Print events as they happen, one JSON object per line.")]


SHOWN_DIGITS = 12
"""Digits of the registered hash that are shown; the JSON document has all of them."""


class CampaignSchemaDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.campaign_schema/1"
    json_schema: dict[str, Any]
    """The JSON Schema of campaign files, in draft 2020-12."""


def lint(spec: SpecPath, *, trust: Trust = False, json: flags.Json = False) -> int:
    """Check a campaign file and list every problem, and what prevents its flows from running here. Exit 1 on any.

    Checking a runtime may run a program that the campaign names. So runtimes and sandboxes are checked only after you
    have consented to everything that the campaign asks for beyond your settings.

    For example:
      proofbox campaign lint campaign.toml
    """
    from proofbox.config.consent import describe
    from proofbox.lab.campaign.linting import lint_campaign

    found = lint_campaign(spec, trust=trust)

    def text() -> str:
        if found.campaign is None:
            return printable("\n".join(f"{spec}:{each}" for each in found.problems))
        sizes = f"{counted(len(found.flows), 'flow')}, {counted(len(found.missions), 'mission')}"
        lines = [f"{spec}: campaign {found.campaign}, {sizes}, {counted(found.attempts, 'attempt')}"]
        for each in found.failures:
            lines.append(f"{f'flow {each.flow}: ' if each.flow else ''}{each.message} ({each.code})")
            lines += [f"  fix: {hint}" for hint in each.fix_hints]
        lines += [f"asks for {each}" for each in describe(found.widenings)]
        if found.error is not None and found.error.code == ConsentRequired.code:
            lines.append("not checked without your consent to that: runtimes and sandboxes")
            lines += [f"  fix: {hint}" for hint in found.error.fix_hints]
        return printable("\n".join(lines))

    show(found, text, as_json=json)
    return 0 if found.ok else 1


def schema(*, json: flags.Json = False) -> int:
    """Print the JSON Schema of campaign files, for editors that complete and check TOML.

    For example:
      proofbox campaign schema > campaign.schema.json
    """
    from proofbox.cli.schemas import json_schema
    from proofbox.lab.campaign.spec import CampaignDocument as CampaignFile

    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "proofbox campaign"}
    found = {**dialect, **json_schema(CampaignFile)}
    document = CampaignSchemaDocument(json_schema=found)
    show(document, lambda: msgspec.json.format(msgspec.json.encode(found)).decode(), as_json=json)
    return 0


def run(
    spec: SpecPath,
    *,
    out: NewOut = Path("out"),
    engine: flags.Engine = None,
    per_node: flags.PerNode = None,
    resource: flags.Resource = (),
    trust: Trust = False,
    jsonl: Jsonl = False,
    json: flags.Json = False,
) -> int:
    """Register a campaign, run every flow on its missions, and commit the results.

    Exit 1 unless every attempt has a score, all gates passed and the evidence holds.
    The campaign file and everything that it refers to are hashed before the first attempt. A campaign that was
    interrupted or killed can be resumed with `campaign resume`, which refuses changed files.

    For example:
      proofbox campaign run campaign.toml --out out
      proofbox campaign run campaign.toml --engine ray:10.0.0.1:6379 --per-node 8
    """
    from proofbox.lab.campaign.running import run_campaign

    def start(on_event: OnSuiteEvent) -> CampaignReport:
        return run_campaign(
            spec, out=out, engine=engine, per_node=per_node, resources=resource, trust=trust, on_event=on_event
        )

    return _run(start, out, jsonl=jsonl, json=json)


def canary(
    spec: SpecPath,
    *,
    out: NewOut = Path("canary"),
    missions: Annotated[int, Parameter(name=["-n", "--missions"], help="The number of missions to run.")] = 1,
    trust: Trust = False,
    jsonl: Jsonl = False,
    json: flags.Json = False,
) -> int:
    """Run the first missions of a campaign with every flow, as a trial. The results can never be published.

    For example:
      proofbox campaign canary campaign.toml -n 2
    """
    from proofbox.lab.campaign.running import run_canary

    def start(on_event: OnSuiteEvent) -> CampaignReport:
        return run_canary(spec, out=out, missions=missions, trust=trust, on_event=on_event)

    return _run(start, out, jsonl=jsonl, json=json)


def resume(
    out: OutPath = Path("out"), *, engine: flags.OtherEngine = None, jsonl: Jsonl = False, json: flags.Json = False
) -> int:
    """Resume a campaign that was interrupted or killed: run the attempts without a result, and no others.

    A campaign whose file, missions or oracles were changed since it was registered is refused. Without --engine, it
    continues on the engine that it was started with. Exit 1 unless every attempt has a score, all gates passed and the
    evidence holds.

    For example:
      proofbox campaign resume out
    """
    from proofbox.lab.campaign.running import resume_campaign

    def start(on_event: OnSuiteEvent) -> CampaignReport:
        return resume_campaign(out, engine=engine, on_event=on_event)

    return _conduct(start, out, json=json, jsonl=jsonl)


def status(out: OutPath = Path("out"), *, json: flags.Json = False) -> int:
    """Show a campaign's progress. Exit 1 unless every attempt has a score, all gates passed and the evidence holds.

    For example:
      proofbox campaign status out
    """
    from proofbox.lab.reports.campaigns.loading import campaign_status

    found = campaign_status(out)
    show(found, lambda: _status_text(found), as_json=json)
    return 0 if found.ok else 1


def report(
    out: OutPath = Path("out"),
    *,
    markdown: Annotated[bool, Parameter(name="--markdown", help="Print Markdown, for a pull request.")] = False,
    html: flags.Html = None,
    json: flags.Json = False,
) -> int:
    """Show the pass rate of every flow with its interval, and the verdict of every comparison.

    Attempts lost to infrastructure are excluded from rates; the bounds show what they could change. Exit 1 unless every
    attempt has a score, all gates passed and the evidence holds.

    For example:
      proofbox campaign report out
      proofbox campaign report out --markdown > comment.md
      proofbox campaign report out --html report.html
    """
    from proofbox.lab.reports.campaigns.loading import load_campaign

    if html is not None:
        from proofbox.cli.commands.evidence.view import write_html

        write_html(out, html)
    return _show(load_campaign(out), json=json, markdown=markdown, html=html)


def _run(start: Callable[[OnSuiteEvent], CampaignReport], out: Path, *, jsonl: bool, json: bool) -> int:
    try:
        return _conduct(start, out, json=json, jsonl=jsonl)
    except ConsentRequired as required:
        if json or jsonl or not consents(required):
            raise
        return _conduct(start, out, json=json, jsonl=jsonl)


def _conduct(conduct: Callable[[OnSuiteEvent], CampaignReport], out: Path, *, json: bool, jsonl: bool) -> int:
    from proofbox.cli.live import following
    from proofbox.lab.campaign.running import resume_hint

    found: CampaignReport | None = None
    with following(lambda _: resume_hint(out), "campaign", json=json, jsonl=jsonl) as on_event:
        found = conduct(on_event)
    return READER_LEFT if found is None else _show(found, json=json or jsonl)


def _show(found: CampaignReport, *, json: bool, markdown: bool = False, html: Path | None = None) -> int:
    from proofbox.lab.reports.campaigns.text import as_markdown

    written = "" if html is None else printable(f"\nwritten: {html}")
    show(found, lambda: as_markdown(found).rstrip() if markdown else _text(found) + written, as_json=json)
    return 0 if found.ok else 1


def _text(found: CampaignReport) -> str:
    from proofbox.cli.health import wrapped
    from proofbox.lab.reports.campaigns.text import notes, tables

    lines = [line for rows in tables(found) for line in (columns(rows), "")]
    lines += map(wrapped, notes(found))
    return "\n".join([*lines, *_footer(found)])


def _status_text(found: CampaignReport) -> str:
    from proofbox.cli.health import health_table

    rows = [["FLOW", "STRATEGY", "DONE", "PASSED", "LOST"]]
    for flow in found.flows:
        done = f"{flow.ended}/{flow.planned}"
        rows.append([flow.flow, flow.strategy, done, str(flow.rate.passed), str(flow.bounds.lost)])
    lines = [columns(rows)]
    if found.error is not None:
        lines.append(printable(f"{found.error.message} ({found.error.code})"))
    if health := health_table(found.health):
        lines += ["", health, ""]
    return "\n".join([*lines, *_footer(found)])


def _footer(found: CampaignReport) -> list[str]:
    from proofbox.lab.campaign.layout import FLOWS
    from proofbox.lab.campaign.running import resume_hint

    state = (
        ""
        if found.committed
        else " (under way)"
        if found.running
        else f" (not committed: {resume_hint(Path(found.out))})"
    )
    digest = found.results.sha256[:SHOWN_DIGITS]
    return [
        f"registered (hash of the campaign and its files): {digest}…",
        f"evidence: {found.bundle}{state}",
        f"explain an attempt: proofbox attempt explain ID --run {quote(found.out)}/{FLOWS}/FLOW",
    ]
