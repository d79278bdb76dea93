"""Checks the flows and gates of a campaign before it is run: the settings of agents, the fields of gates, and whether
the campaign's design allows a gate to pass at all."""

from __future__ import annotations

import math
from typing import Final

from proofbox.agents.registry import installed
from proofbox.core.nearest import nearest
from proofbox.core.plurals import counted
from proofbox.core.spec_files.positions import Path
from proofbox.core.spec_files.problems import Problems
from proofbox.core.spec_files.shape import Shape, fields_of
from proofbox.errors import StrategyUnavailable
from proofbox.lab.campaign.spec import CampaignDocument, Gate, Runner
from proofbox.lab.statistics import highest_lower_end, missions_for_lower_end, missions_for_verdict

_SHARES: Final = ("coverage", "pass_rate", "infra")


def check_runner(runner: Runner, at: Path, problems: Problems) -> None:
    """Check a runner. Its strategy may be one of several of a kind, such as `process.NAME`.

    Whether the strategy works here is checked before a run: a campaign can be read on any machine.
    """
    known = installed()
    if runner.type not in known:
        what = f"no strategy is called {runner.type[:200]!r}"
        problems.add((*at, "type"), what, nearest(runner.type, known.ids))
        return
    if runner.type == "scripted" and "script" in runner.settings:
        what = "the script of a flow is not used: each mission has its own"
        problems.add((*at, "settings", "script"), what, "move its steps to [[mission.script.step]]")
        return
    try:
        fields = fields_of(known.runtime(runner.type).settings)
    except StrategyUnavailable:  # the preflight reports it
        return
    stated: dict[Path, object] = {("settings", name): value for name, value in runner.settings.items()}
    stated |= {(name,): getattr(runner, name) for name in ("model", "base_url", "api_key_env")}
    for path, value in stated.items():
        name = str(path[-1])
        if value is not None and name in fields:
            Shape(problems, "campaign").visit(fields[name].type, value, (*at, *path))
        elif value is not None:
            hint = nearest(name, fields) if fields and runner.type != "scripted" else "remove it"
            problems.add((*at, *path), f"{runner.type} has no setting {name[:80]!r}", hint)


def check_gate(
    gate: Gate, at: tuple[str | int, ...], flows: list[str], reference: str | None, problems: Problems
) -> None:
    """Check a gate. `reference` is the flow that all others are compared with; None: all pairs are compared."""
    for field, name in (("flow", gate.flow), ("against", gate.against)):
        if name is not None and name not in flows:
            problems.add((*at, field), f"no flow is called {name!r}", nearest(name, flows))
    if gate.type == "comparison":
        if gate.flow is None or gate.against is None or not gate.verdicts:
            problems.add(
                at, "a comparison gate needs flow, against and verdicts", 'verdicts = ["better", "equivalent"]'
            )
        elif gate.flow == gate.against:
            problems.add((*at, "against"), "a flow cannot be compared with itself")
        elif reference is not None and reference not in (gate.flow, gate.against):
            what = (
                f"{gate.flow!r} and {gate.against!r} are not compared: all flows are compared only with {reference!r}"
            )
            problems.add((*at, "against"), what, f"write against = {reference!r}, or remove `against` from [campaign]")
        return
    for field in ("against", "verdicts"):
        if getattr(gate, field):
            problems.add((*at, field), f"a {gate.type} gate has no {field}", "only a comparison gate has it: remove it")
    bound, other = ("min", "max") if gate.type in ("coverage", "pass_rate") else ("max", "min")
    if getattr(gate, other) is not None:
        problems.add((*at, other), f"a {gate.type} gate has no {other}", f"write {bound} = ...")
    if gate.type in ("pass_rate", "budget") and getattr(gate, bound) is None:
        problems.add(at, f"a {gate.type} gate needs {bound}", f"write {bound} = ...")
    value = getattr(gate, bound)
    if value is not None and not 0 <= value <= (1 if gate.type in _SHARES else math.inf):
        hint = "write a share between 0 and 1: 0.95" if gate.type in _SHARES else "write a number of at least 0"
        problems.add((*at, bound), f"{bound} = {value} is out of range", hint)


def check_attainable(document: CampaignDocument, missions: int, problems: Problems) -> None:
    """Report the gates that always fail, because there are too few missions."""
    fields = document.campaign
    replicates, alpha = fields.replicates, fields.alpha / max(1, document.comparisons)
    highest = highest_lower_end(missions, replicates)
    have = counted(missions, "mission")
    for number, gate in enumerate(document.gate):
        if gate.type == "pass_rate" and gate.min is not None and gate.min > highest:
            design = f"{have} and {counted(replicates, 'replicate')}"
            what = f"min = {gate.min:g} can never be reached: with {design}, the lower end is at most {highest:.3f}"
            enough = f"write min = {math.floor(highest * 1000) / 1000:g} or less"
            if gate.min < 1:
                enough += f", or use at least {missions_for_lower_end(gate.min)} missions"
            problems.add(("gate", number, "min"), what, enough)
        if gate.type == "comparison":
            needed = min(missions_for_verdict(each, replicates, fields.margin, alpha) for each in gate.verdicts)
            if missions < needed:
                what = f"{have} can never show {' or '.join(gate.verdicts)}"
                problems.add(("gate", number, "verdicts"), what, f"use at least {needed} missions")
