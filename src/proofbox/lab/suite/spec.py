"""The specification of a suite: a TOML file of missions, or a JSON file if a program writes it.

    [suite]
    id = "first"
    [[mission]]
    id = "answer"
    prompt = "Write 42 into answer.txt"
    verify = { commands = ["grep -qx 42 answer.txt"] }

These are the fields and what they mean; `reading.py` reads and lints a file of them. What a mission leaves out it takes
from `[defaults]`. Paths are relative to the suite's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from proofbox.core.documents import stored
from proofbox.core.size import PATTERN, megabytes
from proofbox.core.spec_files.shape import fields_of

SCHEMA = "proofbox.suite/1"

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$")]
"""A name that is used for files and directories of the run: lower case, digits, and `.`, `_`, `-` between them."""
GuestPath = Annotated[str, msgspec.Meta(pattern=r"^(?:/(?!\.\.?(?:/|$))[^/\0:]+)+$")]
"""An absolute path in a box, below its root."""
Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Count | Annotated[str, msgspec.Meta(pattern=PATTERN)]
"""An amount of memory or disk space: a number of MB, or text with a unit."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=7 * 86400)]
Isolation = Literal["process", "shared"]


class VerifyCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One command of a verifier. It passes if it exits with the expected code and, if `stdout` is set, prints a match.

    Code that a command imports can fake an exit code by ending the process early; a required line at the end of the
    output cannot be faked that way, only by code written for it.
    """

    run: str | tuple[str, ...]
    """A line for `/bin/sh`, or a program and its arguments."""
    exit_code: int = 0
    """The expected exit code."""
    stdout: str | None = None
    """A regular expression that a line of the output must match (RE2 syntax that Python's `re` also supports)."""


class Verify(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Commands that decide the result after the agent has ended, in a fresh box on its final files.

    `files` is a directory copied over them, which the agent never saw; it may overwrite anything. `take` limits which
    of the agent's changes are kept (all other files have their original content). `protect` are paths that programs
    load automatically: what the agent created or changed there is restored before anything runs, and reported.
    """

    commands: tuple[str | tuple[str, ...] | VerifyCommand, ...] = ()
    """Run in this order, up to the first that does not pass; a plain one passes with exit code 0."""
    files: str | None = None
    """A directory that is copied over the agent's files and that the agent never saw."""
    take: tuple[str, ...] = ()
    """Globs of the agent's changes to keep; empty: keep all of them."""
    protect: tuple[str, ...] | None = None
    """Globs of paths that are restored to their original content before any command runs. None: the hooks and
    configuration files that the test runners in `commands` load."""
    timeout: Seconds = 300.0
    """Seconds for all commands together."""
    mounts: dict[GuestPath, str] = {}
    """Paths in the verifier's box, and the files or directories that are copied there."""
    sha256: dict[GuestPath, str] = {}
    """Digests of mounted directories, computed by `task_tree.py`; a directory that has changed is not used."""
    env: dict[str, str] = {}
    """Environment variables of its commands."""
    reward: GuestPath | None = None
    """A directory, initially empty, where the commands write a reward: `reward.txt` with a number, or `reward.json`
    with an object of numbers. The reward then decides instead of exit codes: 1.0 or more is passed, less is failed, and
    without a valid number the result is unknown."""
    min_reward: float | None = None
    """With a lower reward, the turns after this one do not count: their reward is 0."""
    network: str | None = None
    """The network of the verifier's box. None: the provider's default, which is no network if that can be enforced."""


class FileCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions on one file of the final tree."""

    path: Text
    """Relative to the root of the final tree. Links are not followed."""
    exists: bool = True
    """Whether anything must exist at the path, of any kind; false: nothing may exist there."""
    contains: str | None = None
    """Text that it must contain; it must be a regular file."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """The digest that its content must have; it must be a regular file."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parts of the path: `./a//b` is `a/b`."""
        return tuple(name for name in self.path.split("/") if name not in ("", "."))


class CommandCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that must have been made, and how it must have ended."""

    match: str
    """A regular expression, as in `commands`."""
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    """The exit code that one of the matching calls must have; by default any code, including failures."""


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions on what the agent said, did and left. All must be met; each one that is not is reported."""

    claimed: Literal["success", "failure", "none"] | None = None
    """The claim that the agent must make."""
    result: str | None = None
    """A regular expression that must match somewhere in the text of the final message, JSON or not."""
    result_json: dict[str, Any] | None = None
    """Members that the final message must have as a JSON object."""
    min_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The minimum number of tool calls."""
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The maximum number of tool calls."""
    max_tool_failures: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The maximum number of failed calls: not completed, or with a nonzero exit code."""
    commands: tuple[str | CommandCondition, ...] = ()
    """Regular expressions that must each match a call that was run: a command line or, for other tools,
    `NAME ARGUMENTS`. A call that was declined, or whose program could not be started, was not run. A table
    `{ match = "^pytest", exit_code = 0 }` also checks how it ended."""
    no_commands: tuple[str, ...] = ()
    """Regular expressions that must not match any call that was run."""
    observed: bool = False
    """For `commands` and `min_tool_calls`, count only calls that proofbox ran itself and that were started, not those
    that an agent reports."""
    file: tuple[FileCondition, ...] = ()
    """Conditions on files of the final tree."""

    @property
    def asks(self) -> bool:
        """Whether there is any condition; `observed` and an empty table are not conditions."""
        return msgspec.structs.replace(self, observed=False, result_json=self.result_json or None) != Expect()


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an attempt may use; exceeding any of it ends the attempt as `budget_exceeded`."""

    turns: Count | None = None
    """The maximum number of turns started."""
    tool_calls: Count | None = None
    tokens: Count | None = None


class BoxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resource limits of an attempt's box, and of its verifier's."""

    memory: Amount | None = None
    """MB, or text with a unit: 512, `"512m"`, `"2g"`."""
    cpus: Annotated[float, msgspec.Meta(gt=0)] | None = None
    pids: Count | None = None
    disk: Amount | None = None
    """Limit of the workspace: MB, or text with a unit. It is measured several times a second and is not a quota: an
    attempt that exceeds it is ended."""

    @property
    def memory_mb(self) -> int | None:
        return None if self.memory is None else megabytes(self.memory, "memory")

    @property
    def disk_mb(self) -> int | None:
        return None if self.disk is None else megabytes(self.disk, "disk")


class ToolPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which calls may be made: patterns that match the command line or, for other tools, `NAME ARGUMENTS`. `*` matches
    any text; `decline` wins over `accept`."""

    accept: tuple[str, ...] = ("*",)
    """Patterns of allowed calls; all others are declined."""
    decline: tuple[str, ...] = ()
    """Patterns of declined calls, even if `accept` matches."""


class MissionScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The script that the scripted agent plays; other strategies ignore it. The agent's module checks the steps."""

    step: tuple[dict[str, Any], ...] = ()
    """Played in this order; each is a table such as `{ say = "done" }`."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The origin of a mission that was written for another system, and how running it here differs."""

    format: Literal["harbor"]
    """The system whose task format it uses."""
    name: str
    """The directory of the task."""
    sha256: str
    """Digest of all its files, computed by `task_tree.py`."""
    notes: tuple[str, ...] = ()
    """Differences: parts that were omitted or are done differently."""
    not_comparable: tuple[str, ...] = ()
    """Why its results must not be compared with those of the other system; empty: they may."""


class MissionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields that `[defaults]` may set for every mission."""

    tags: tuple[Text, ...] = ()
    workspace: str | None = None
    """A directory, or a tar or zip archive, that every attempt gets a copy of. None: an empty directory."""
    files: dict[Text, str] = {}
    """Additional files: paths in the workspace, and the files or directories to copy there."""
    workdir: GuestPath | None = None
    """A second path of the workspace in the box, where commands start. With the docker provider, attempts start with
    the image's files at that path, with `workspace` and `files` copied over them."""
    setup: tuple[str | tuple[str, ...], ...] = ()
    """Commands run in the box before the agent starts."""
    cleanup: tuple[str | tuple[str, ...], ...] = ()
    """Commands run in a new box on the same files after the result is decided, even after a failure: for example, to
    release what `setup` reserved elsewhere. They run up to the first that fails, and never change the result."""
    hook_timeout: Seconds = 600.0
    """Seconds for all commands of `setup`, and for all commands of `cleanup`."""
    timeout: Seconds = 600.0
    """Timeout of the agent's turn, from its start; time in the queue does not count."""
    watchdog: Seconds | None = None
    """Seconds without any event of the agent after which its turn is stopped as `stalled`. None: no such limit. A
    command may run silently for as long as it takes, so choose more than the longest of them needs."""
    budget: Budget = Budget()
    tools: ToolPolicy = ToolPolicy()
    """Which calls the agent may make, of those that go through proofbox."""
    capabilities: str | None = None
    """A preset's name, or a capabilities file: compiled into the agent's box, and checked for tools run by proofbox."""
    provider: str | None = None
    network: str | None = None
    image: str | None = None
    vm_template: bool = False
    """Whether boxes of the provider `vm` are cloned from a template instead of booted."""
    limits: BoxLimits = BoxLimits()
    env: tuple[str, ...] = ()
    """Names of variables that the agent receives, if the environment policy allows them."""
    verify: Verify = Verify()
    expect: Expect = Expect()
    replicates: Count = 1


class FurtherTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A further prompt, in the same thread and workspace, given when the turn before it is completed."""

    prompt: Text
    timeout: Seconds = 600.0
    """Timeout of this turn."""
    verify: Verify = Verify()
    """Decides on the files at the end of this turn."""
    solution: str | None = None
    """What the `oracle` control runs in this turn."""


class Mission(MissionFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task."""

    id: Name
    """Unique in the suite; attempts are named after it."""
    prompt: Text | None = None
    """The task for the agent; this or `prompt_file`."""
    prompt_file: Text | None = None
    """A UTF-8 file with the task for the agent."""
    script: MissionScript = MissionScript()
    solution: str | None = None
    """What the `oracle` control runs: a script, or a directory with `solve.sh`. No other strategy sees it."""
    solution_env: dict[str, str] = {}
    """Environment variables of the solution script."""
    then: tuple[FurtherTurn, ...] = ()
    """Further turns of the agent. `verify` then decides on the files at the end of the first turn. The mission passes
    if every turn passes; with rewards, `turn_rewards` says how they are combined. `expect` is checked at the end."""
    turn_rewards: Literal["mean", "final"] = "mean"
    """The reward of a mission with several turns: the mean of all turns, or the reward of the last one."""
    origin: Origin | None = None
    """The origin of a mission that was written for another system; otherwise null."""


def verifiers_of(mission: Mission) -> Iterator[tuple[tuple[str | int, ...], Verify]]:
    """Yield the verifier of each turn of a mission, with the field that defines it."""
    yield ("verify",), mission.verify
    for number, turn in enumerate(mission.then):
        yield ("then", number, "verify"), turn.verify


def comparability(mission: Mission) -> dict[str, Any]:
    """Return whether its results can be compared with those of the system it was written for, and if not, why."""
    reasons = () if mission.origin is None else mission.origin.not_comparable
    return {"comparable": not reasons, "not_comparable": reasons}


class SuiteFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: Name
    """The name of the suite in reports."""
    title: str = ""
    """For people; nothing depends on it."""
    strategies: tuple[Text, ...] = ()
    """The chain to use unless a flag sets one."""
    isolation: Isolation = "process"
    max_concurrent: dict[str, Count] = {}
    """Maximum concurrent attempts by provider or strategy: `{ docker = 2, process = 4 }`. All limits apply, in addition
    to -n."""


@stored(SCHEMA, at="a suite's TOML or JSON file, and RUN/suite.toml or RUN/suite.json")
class SuiteDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A suite: missions, and their defaults. The file itself does not state its schema; the run's index does."""

    suite: SuiteFields
    defaults: MissionFields = MissionFields()
    """Values for all missions that do not set their own."""
    mission: Annotated[tuple[Mission, ...], msgspec.Meta(min_length=1)]
    """The missions; their ids must be unique."""


def other_table(struct: type[msgspec.Struct], name: str) -> str:
    """Return a hint for a field that is valid in another table of a suite, or under another name."""
    if struct is SuiteFields and name == "most":
        return "did you mean max_concurrent?"
    if struct in (SuiteFields, SuiteDocument) and name in fields_of(MissionFields):
        return f"write it in [defaults] for every mission, or in a [[mission]]: {name} = ..."
    if struct in (SuiteDocument, MissionFields) and name in fields_of(SuiteFields):
        return f"write it in [suite]: {name} = ..."
    return ""
