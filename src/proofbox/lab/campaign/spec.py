"""The specification of a campaign: a TOML file of flows to compare, the missions they get, and gates.

    [campaign]
    id = "first"
    replicates = 5
    [[missions]]
    suite = "suite.toml"
    [[flow]]
    id = "baseline"
    runner = { type = "codex_app_server", model = "gpt-5" }
    [[flow]]
    id = "careful"
    runner = { type = "codex_app_server", model = "gpt-5" }
    prompt_template = "{prompt}\\n\\nRun the tests before you finish."

`reading.py` reads and lints such a file. Paths are relative to it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from proofbox.core.documents import stored
from proofbox.core.spec_files.shape import fields_of
from proofbox.lab.campaign.prices import Price
from proofbox.lab.statistics.comparison import ComparisonVerdict
from proofbox.lab.suite.spec import Count, Expect, Isolation, Name, Seconds, Text, ToolPolicy, Verify

SCHEMA = "proofbox.campaign/1"
PROMPT = "{prompt}"

PromptMode = Literal["default", "mission_only", "exam"]
GateKind = Literal[
    "coverage", "pass_rate", "infra", "trace", "tool_policy", "semantic", "cleanup", "budget", "comparison"
]
Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class CampaignFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values for the whole campaign."""

    id: Name
    """The name of the campaign in reports."""
    title: str = ""
    """For people; nothing depends on it."""
    replicates: Count = 1
    """Attempts of each flow at each mission."""
    margin: Share = 0.05
    """Flows whose pass rates differ by less than this are equivalent: 0.05 is 5 points."""
    alpha: Share = 0.05
    """The chance of a wrong verdict `better` or `worse` over all comparisons."""
    seed: int = 0
    """The seed of sampled tests, so that a report can be repeated."""
    against: str | None = None
    """Compare every flow only with this one. None: compare all pairs."""
    prompt_mode: PromptMode = "default"
    """`default`: the flow's template around the mission's prompt. `mission_only`: the mission's prompt alone.
    `exam`: like `default`, and missions whose oracle the agent could reach are refused."""
    concurrency: Count = 4
    """Maximum concurrent attempts."""
    retries: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Retries after infrastructure failures; failed missions are not retried."""
    timeout: Seconds | None = None
    """Seconds after which a call of `campaign run` or `campaign resume` stops. The campaign can then be resumed."""
    currency: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z]{1,8}$")] = "USD"
    """The currency of prices."""
    attempt_timeout: Seconds | None = None
    """Timeout of an agent's turn. None: that of the mission."""
    hook_timeout: Seconds | None = None
    """Seconds for all setup commands of an attempt, and for all its cleanup commands. None: those of the mission."""
    watchdog: Seconds | None = None
    """Seconds without any event of the agent after which its turn is stopped. None: those of the mission."""
    cleanup: tuple[str | tuple[str, ...], ...] = ()
    """Commands that run in a box after every attempt, after those of its mission. They never change a result."""


class MissionChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Missions of one suite: those that match an id and a tag, if any are given."""

    suite: Text
    """A suite file, or a directory of Harbor tasks."""
    ids: tuple[Text, ...] = ()
    """Ids, or globs of ids. Empty: all."""
    tags: tuple[Text, ...] = ()
    """Tags; a mission must have one of them. Empty: all."""


class Runner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The agent of a flow."""

    type: Text
    """A strategy: `codex_app_server`, `process`, `scripted`, or another of `proofbox runtime list`."""
    model: Text | None = None
    """The model, if the strategy has such a setting."""
    base_url: Text | None = None
    """The endpoint of the model. You are asked for your consent to it."""
    api_key_env: Text | None = None
    """The variable that holds the model's key. You are asked for your consent to it."""
    settings: dict[str, Any] = {}
    """Other settings of the strategy, in addition to those of `config.toml`. You are asked for your consent to them."""


class Flow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One configuration under comparison."""

    id: Name
    """Unique in the campaign."""
    runner: Runner
    """The agent."""
    prompt_template: Text | None = None
    """The text that the agent gets, with `{prompt}` in place of the mission's prompt. None: the mission's prompt."""
    tools: ToolPolicy | None = None
    """Which of the agent's calls may be made. None: as the mission states."""
    env: tuple[str, ...] = ()
    """Names of variables that the agent receives in addition to the mission's."""
    isolation: Isolation = "process"
    """One agent process per attempt, or one shared by all."""
    provider: str | None = None
    """The sandbox. None: as the mission states."""
    network: str | None = None
    """The network of the agent's box. None: as the mission states."""


class Evaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The evaluation of all missions, in place of their own."""

    script: Text | None = None
    """An executable file that decides the result, in a fresh box on the agent's final files: exit code 0 is passed. The
    agent never sees it. It runs after the commands of `verify`, if these are given, and otherwise in place of the
    mission's commands."""
    verify: Verify | None = None
    """Commands that run in a fresh box. None: those of each mission."""
    expect: Expect | None = None
    """Conditions on what the agent said, did and left. None: those of each mission."""


class Gate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A condition that the results must meet to be published."""

    type: GateKind
    """`coverage`: the share of attempts with a score, at least `min` (1). `pass_rate`: the lower end of the 95 %
    interval, at least `min`. `infra`: the share of attempts lost to infrastructure, at most `max` (0). `trace`:
    contradictions in the agents' events, at most `max` (0). `tool_policy`: declined calls, at most `max` (0).
    `semantic`: attempts with a claim that the verifier contradicts, at most `max` (0). `cleanup`: attempts whose
    cleanup failed, at most `max` (0). `budget`: tokens of all attempts, at most `max`. `comparison`: the verdict on
    `flow` against `against` is one of `verdicts`."""
    flow: str | None = None
    """The flow that must meet it. None: every flow."""
    min: float | None = None
    """The smallest value that passes."""
    max: float | None = None
    """The largest value that passes."""
    against: str | None = None
    """The other flow of a comparison."""
    verdicts: tuple[ComparisonVerdict, ...] = ()
    """The verdicts of a comparison that pass."""


@stored(SCHEMA, at="a campaign's TOML file, and BUNDLE/campaign.toml of a campaign")
class CampaignDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A campaign: missions, flows and gates. The file itself does not state its schema."""

    campaign: CampaignFields
    """Values for the whole campaign."""
    missions: Annotated[tuple[MissionChoice, ...], msgspec.Meta(min_length=1)]
    """The missions, from one or more suites; their ids must be unique."""
    flow: Annotated[tuple[Flow, ...], msgspec.Meta(min_length=1)]
    """The flows to compare."""
    evaluation: Evaluation = Evaluation()
    """The evaluation of all missions, in place of their own."""
    gate: tuple[Gate, ...] = ()
    """Conditions that the results must meet."""
    price: tuple[Price, ...] = ()
    """The prices of models. Costs without a price are unknown."""

    @property
    def comparisons(self) -> int:
        """The number of pairs of flows that are compared."""
        flows = len(self.flow)
        return flows - 1 if self.campaign.against else flows * (flows - 1) // 2

    @property
    def key_names(self) -> tuple[str, ...]:
        """The variables that hold keys of the flows' models."""
        return tuple(flow.runner.api_key_env for flow in self.flow if flow.runner.api_key_env is not None)


def other_table(struct: type[msgspec.Struct], name: str) -> str:
    """Return a hint for a field that is valid in another table of a campaign."""
    for kind, table in ((CampaignFields, "[campaign]"), (Runner, "runner of a [[flow]]"), (Flow, "[[flow]]")):
        if struct is not kind and name in fields_of(kind):
            return f"write it in {table}: {name} = ..."
    return ""
