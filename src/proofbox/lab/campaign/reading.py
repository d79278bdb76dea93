"""Reads a campaign file, and reports all its problems, each with line, column and a suggestion."""

from __future__ import annotations

import fnmatch
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from proofbox.core.allowlist import parse_network
from proofbox.core.nearest import nearest
from proofbox.core.plurals import counted
from proofbox.core.spec_files.positions import read_toml
from proofbox.core.spec_files.problems import Problem, Problems, invalid, refuse_other_kind, toml_problem
from proofbox.core.spec_files.shape import Shape
from proofbox.core.spec_files.text_files import Absent, Unreadable, read_text
from proofbox.errors import CampaignInvalid, NotFoundError, ProofboxError, RequestInvalid, SuiteInvalid
from proofbox.lab.campaign.checks import check_attainable, check_gate, check_runner
from proofbox.lab.campaign.spec import PROMPT, CampaignDocument, Flow, MissionChoice, other_table
from proofbox.lab.run.plan import secrets_in
from proofbox.lab.suite.checks import LARGEST_PROMPT, check_values
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.opening import open_suite
from proofbox.lab.suite.reading import Suite, parse_suite
from proofbox.lab.suite.runnable import check_provider
from proofbox.lab.suite.spec import Mission, Verify
from proofbox.workspace.capabilities.grants import PRESETS

SIZE_LIMIT: Final = 1 << 20
MAX_ATTEMPTS: Final = 100_000
"""The maximum over all flows; a typo in `replicates` is more likely than such a campaign."""
EVALUATOR: Final = "/evaluation"
"""The directory of the evaluator script in the verifier's box."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign that can be run: each flow with the suite that it gets."""

    document: CampaignDocument
    suites: Mapping[str, Suite]
    """By flow: the selected missions, with the flow's template, tools and box."""
    path: Path
    """The campaign's file."""
    source: str

    @property
    def id(self) -> str:
        return self.document.campaign.id

    @property
    def missions(self) -> tuple[str, ...]:
        """The ids of the selected missions."""
        return tuple(mission.id for mission in self.suites[self.document.flow[0].id].missions)


def read_campaign(path: Path, *, first: int | None = None) -> Campaign:
    """Read a campaign, or raise `CampaignInvalid` with every problem in it. `first` limits the number of missions."""
    try:
        text = read_text(path, SIZE_LIMIT)
    except Absent as why:
        raise NotFoundError(f"{path} {why}", op="campaign", fix_hints=["check the path"]) from None
    except Unreadable as why:
        problem = Problem(f"it {why}", why.line, min(why.line, 1))
        raise invalid(str(path), [problem], CampaignInvalid, "campaign") from None
    return parse_campaign(text, path, first=first)


def parse_campaign(text: str, path: Path, *, first: int | None = None) -> Campaign:
    """Parse the text of a campaign whose paths are relative to the directory of `path`."""
    try:
        values, positions = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise invalid(str(path), [toml_problem(error, text)], CampaignInvalid, "campaign") from None
    problems = Problems(positions, values)
    refuse_other_kind(str(path), values, problems, "campaign", CampaignInvalid)
    check_values(values, problems)
    if not problems.found:
        Shape(problems, "campaign", other_table).visit(CampaignDocument, values, ())
    suites: dict[str, Suite] = {}
    document = None
    if not problems.found:
        document = msgspec.convert(values, CampaignDocument)
        _check(document, problems)
        base = path.parent.resolve()
        chosen = _chosen(document.missions, base, problems)
        if not problems.found:
            check_attainable(document, len(chosen), problems)  # for a canary, too: it has the campaign's gates
        chosen = chosen[:first]
        _check_missions(document, chosen, base, problems)
        if not problems.found:
            suites = {flow.id: _suite(document, number, chosen, base, problems) for number, flow in _flows(document)}
            _check_secrets(document, [text, str(base), *(suite.source for suite in suites.values())], problems)
    if problems.found or document is None:
        raise invalid(str(path), problems.found, CampaignInvalid, "campaign")
    return Campaign(document=document, suites=suites, path=path.resolve(), source=text)


def _flows(document: CampaignDocument) -> enumerate[Flow]:
    return enumerate(document.flow)


def _check(document: CampaignDocument, problems: Problems) -> None:
    ids = [flow.id for flow in document.flow]
    campaign = document.campaign
    for number, flow in _flows(document):
        if flow.id in ids[:number]:
            problems.add(("flow", number, "id"), f"duplicate flow id {flow.id!r}", "ids must be unique")
        check_runner(flow.runner, ("flow", number, "runner"), problems)
        if flow.provider is not None:
            try:
                check_provider(flow.provider)
            except ProofboxError as error:
                problems.add(("flow", number, "provider"), error.message, _hint(error))
        try:
            parse_network(flow.network)
        except RequestInvalid as error:
            problems.add(("flow", number, "network"), error.message, _hint(error))
        for place, name in enumerate(flow.env):
            if not _VARIABLE.fullmatch(name):
                hint = "write only the name: the value is taken from your environment"
                before, stated, _ = name.partition("=")  # a value may be a secret
                shown = before[:200] + ("=…" if stated else "")
                problems.add(("flow", number, "env", place), f"{shown!r} is not the name of a variable", hint)
        if flow.prompt_template is not None:
            at: tuple[str | int, ...] = ("flow", number, "prompt_template")
            if campaign.prompt_mode == "mission_only":
                problems.add(at, 'prompt_mode = "mission_only" allows no template', "remove one of them")
            elif PROMPT not in flow.prompt_template:
                problems.add(at, f"the template has no {PROMPT}", f"write {PROMPT} where the mission's prompt belongs")
    if campaign.against is not None and campaign.against not in ids:
        at = ("campaign", "against")
        problems.add(at, f"no flow is called {campaign.against!r}", nearest(campaign.against, ids))
    for number, gate in enumerate(document.gate):
        check_gate(gate, ("gate", number), ids, campaign.against, problems)
    priced = [flow.runner.model or flow.id for flow in document.flow]
    for number, each in enumerate(document.price):
        at = ("price", number, "model")
        if each.model not in priced:
            problems.add(at, f"no flow uses the model {each.model[:200]!r}", nearest(each.model, priced))
        elif each.model in [earlier.model for earlier in document.price[:number]]:
            problems.add(at, f"duplicate price of {each.model!r}", "a model has one price")


def _check_secrets(document: CampaignDocument, sources: list[str], problems: Problems) -> None:
    """Refuse a campaign that contains a secret known to this process: its text becomes part of the evidence, and so do
    its path and the texts of its missions."""
    texts = [*(source.encode() for source in sources), msgspec.json.encode(document)]
    found = secrets_in(texts, document.key_names, os.environ)
    if found is not None:
        names = ", ".join(found)
        what = f"the campaign or its path contains the value of {names}, but evidence must not contain secrets"
        problems.add(("campaign",), what, f"remove it, or if it is not secret: unset {' '.join(found)}")


# Missions


class _Chosen(msgspec.Struct, frozen=True):
    mission: Mission
    suite: Suite
    number: int
    """The index of the [[missions]] table that chose it."""


def _chosen(choices: tuple[MissionChoice, ...], base: Path, problems: Problems) -> list[_Chosen]:
    found: list[_Chosen] = []
    for number, choice in enumerate(choices):
        try:
            suite = open_suite(base / choice.suite)
        except ProofboxError as error:
            problems.add(("missions", number, "suite"), error.message, _hint(error))
            continue
        ids = [mission.id for mission in suite.missions]
        tags = sorted({tag for mission in suite.missions for tag in mission.tags})
        for place, pattern in enumerate(choice.ids):
            if not fnmatch.filter(ids, pattern):
                problems.add(
                    ("missions", number, "ids", place), f"no mission matches {pattern!r}", nearest(pattern, ids)
                )
        for place, tag in enumerate(choice.tags):
            if tag not in tags:
                problems.add(("missions", number, "tags", place), f"no mission has the tag {tag!r}", nearest(tag, tags))
        for mission in suite.missions:
            named = not choice.ids or any(fnmatch.fnmatchcase(mission.id, pattern) for pattern in choice.ids)
            tagged = not choice.tags or set(choice.tags) & set(mission.tags)
            if named and tagged:
                if any(each.mission.id == mission.id for each in found):
                    what = f"mission {mission.id!r} is selected twice"
                    problems.add(("missions", number), what, "select it once with ids")
                found.append(_Chosen(mission, suite, number))
    if not found and not problems.found:
        problems.add(("missions",), "no mission is selected", "a mission must match one of ids and one of tags")
    return found


def _check_missions(document: CampaignDocument, chosen: list[_Chosen], base: Path, problems: Problems) -> None:
    attempts = len(chosen) * len(document.flow) * document.campaign.replicates
    if attempts > MAX_ATTEMPTS:
        what = f"{counted(attempts, 'attempt')} are more than {MAX_ATTEMPTS}"
        problems.add(("campaign", "replicates"), what, "use fewer replicates or missions")
    evaluation, exam = document.evaluation, document.campaign.prompt_mode == "exam"
    if evaluation.script is not None:
        script = base / evaluation.script
        if not script.is_file() or not os.access(script, os.X_OK):
            what = f"{evaluation.script[:200]!r} is not an executable file"
            problems.add(("evaluation", "script"), what, f"check the path, or: chmod +x {evaluation.script[:200]}")
    for each in chosen:
        mission, at = each.mission, ("missions", each.number)
        verify, expect = _verify(document, mission), evaluation.expect or mission.expect
        if mission.then:
            what = f"mission {mission.id!r} has several turns, which campaigns do not support"
            problems.add(at, what, "choose other missions with ids or tags, and run this one with `proofbox suite run`")
        if not verify.commands and not expect.asks:
            hint = "define when it is done: verify.commands, or expect"
            problems.add(at, f"nothing verifies mission {mission.id!r}", hint)
        if exam:
            prefix = each.suite.base if evaluation.verify is None and evaluation.script is None else base
            oracle = oracle_files(verify, prefix) | oracle_files(Verify(), each.suite.base, mission.solution)
            for what in _given_oracle(oracle, mission, each.suite.base):
                problems.add(at, f"mission {mission.id!r}: {what}", "an exam keeps its oracle out of the agent's reach")
    for number, flow in _flows(document) if exam else ():
        if flow.provider == "off" or any(each.mission.provider == "off" for each in chosen):
            problems.add(("flow", number), f"flow {flow.id!r}: an exam needs a sandbox", 'remove provider = "off"')
        if flow.isolation == "shared":  # its box contains the directories of all attempts, even while they are verified
            what = f"flow {flow.id!r}: an exam needs a process per attempt"
            problems.add(("flow", number, "isolation"), what, 'remove isolation = "shared"')


def oracle_files(verify: Verify, base: Path, solution: str | None = None) -> dict[str, Path]:
    """Return the files that decide a mission's result or contain its solution, by their names in the suite."""
    named = {"verify.files": verify.files, "solution": solution}
    named |= {f"verify.mounts {place}": path for place, path in verify.mounts.items()}
    return {field: Path(os.path.realpath(base / path)) for field, path in named.items() if path is not None}


def _given_oracle(oracle: Mapping[str, Path], mission: Mission, base: Path) -> Iterator[str]:
    """Yield the files of the oracle that are also among those given to the agent."""
    given = [os.path.realpath(base / path) for path in (mission.workspace, *mission.files.values()) if path is not None]
    for field, path in oracle.items():
        if any(path.is_relative_to(other) or Path(other).is_relative_to(path) for other in given):
            yield f"{field} is inside the files that the agent gets"


def _verify(document: CampaignDocument, mission: Mission) -> Verify:
    """Return the verifier of a mission: its own, or the campaign's."""
    evaluation = document.evaluation
    if evaluation.script is None:
        return evaluation.verify or mission.verify
    verify = evaluation.verify or Verify(timeout=mission.verify.timeout)
    place = f"{EVALUATOR}/{Path(evaluation.script).name}"
    return msgspec.structs.replace(
        verify, commands=(*verify.commands, (place,)), mounts={**verify.mounts, place: evaluation.script}
    )


def _suite(document: CampaignDocument, number: int, chosen: list[_Chosen], base: Path, problems: Problems) -> Suite:
    """Return the suite of a flow: the chosen missions, changed as the flow and the campaign state."""
    flow = document.flow[number]
    missions = []
    for each in chosen:
        try:
            missions.append(_mission(document, flow, each, base))
        except Unreadable as why:
            problems.add(("missions", each.number), f"the prompt of mission {each.mission.id!r} {why}")
    fields = {"id": document.campaign.id, "isolation": flow.isolation}
    source = msgspec.json.encode({"suite": fields, "mission": missions}, order="deterministic").decode()
    try:
        return parse_suite(source, base=base, name=f"flow {flow.id}", json=True)
    except ProofboxError as error:
        problems.add(("flow", number), error.message.replace(f"flow {flow.id}:", f"flow {flow.id}: ", 1), _hint(error))
        return chosen[0].suite


def _hint(error: ProofboxError) -> str:
    """Return the hint of an error; of an invalid suite, the one of the problem in its message."""
    if isinstance(error, SuiteInvalid) and (found := error.details.get("problems")):
        return str(found[0].get("fix_hint", ""))
    return next(iter(error.fix_hints), "")


def _mission(document: CampaignDocument, flow: Flow, each: _Chosen, base: Path) -> dict[str, Any]:
    mission = _rebased(each.mission, os.path.relpath(each.suite.base.resolve(), base))
    changes: dict[str, Any] = {
        name: value
        for name, value in (
            ("expect", document.evaluation.expect),
            ("timeout", document.campaign.attempt_timeout),
            ("hook_timeout", document.campaign.hook_timeout),
            ("watchdog", document.campaign.watchdog),
            ("tools", flow.tools),
            ("provider", flow.provider),
            ("network", flow.network),
        )
        if value is not None
    }
    if flow.prompt_template is not None:
        prompt = mission.prompt
        if prompt is None:
            with SuiteFiles(base) as files:
                found = files.find(mission.prompt_file or "")
                if found.outside:
                    raise Unreadable("is outside the campaign's directory, so no template can be applied to it")
                prompt = files.read(found, LARGEST_PROMPT)
        changes |= {"prompt": flow.prompt_template.replace(PROMPT, prompt), "prompt_file": None}
    env = (*mission.env, *(name for name in flow.env if name not in mission.env))
    changes |= {"verify": _verify(document, mission), "cleanup": (*mission.cleanup, *document.campaign.cleanup)}
    changed = msgspec.structs.replace(mission, **changes, env=env, replicates=document.campaign.replicates)
    values: dict[str, Any] = msgspec.to_builtins(changed)
    return values


def _rebased(mission: Mission, prefix: str) -> Mission:
    """Return the mission with its paths relative to the campaign's directory instead of its suite's."""

    def moved(path: str | None) -> str | None:
        return path if path is None or prefix == "." or path.startswith("/") else f"{prefix}/{path}"

    def all_moved(paths: Mapping[str, str]) -> dict[str, str]:
        return {place: moved(path) or "" for place, path in paths.items()}

    preset = mission.capabilities in PRESETS
    return msgspec.structs.replace(
        mission,
        workspace=moved(mission.workspace),
        prompt_file=moved(mission.prompt_file),
        solution=moved(mission.solution),
        capabilities=mission.capabilities if preset else moved(mission.capabilities),
        files=all_moved(mission.files),
        verify=msgspec.structs.replace(
            mission.verify, files=moved(mission.verify.files), mounts=all_moved(mission.verify.mounts)
        ),
    )
