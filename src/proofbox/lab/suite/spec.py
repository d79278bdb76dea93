"""What a suite is: a TOML file of missions. JSON is taken where a program writes it.

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

from typing import Annotated, Any, Literal

import msgspec

from proofbox.core.documents import stored
from proofbox.core.size import PATTERN, megabytes

SCHEMA = "proofbox.suite/1"

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$")]
"""What names files and directories of the run: lower case, digits, and `.`, `_`, `-` between them."""
GuestPath = Annotated[str, msgspec.Meta(pattern=r"^(?:/(?!\.\.?(?:/|$))[^/\0:]+)+$")]
"""An absolute path in a box, below its root."""
Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Count | Annotated[str, msgspec.Meta(pattern=PATTERN)]
"""Of memory or disk space: a number of MB, or text with a unit."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=7 * 86400)]
Isolation = Literal["process", "shared"]


class VerifyCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One command of a verifier. It passes when it exits as expected and, if `stdout` is given, says so.

    An exit code alone can be had by ending the process early, from inside code that it imports; a line that is printed
    at the end can't be had that way without being written for it.
    """

    run: str | tuple[str, ...]
    """A line for `/bin/sh`, or a program and its arguments."""
    exit_code: int = 0
    """What it must exit with."""
    stdout: str | None = None
    """A regular expression (RE2's dialect as far as Python's `re` has it) that some line of the output must match."""


class Verify(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decides, after the agent is gone: commands in a fresh box over its final files.

    `files` is a directory laid over them, which the agent never saw; it may overwrite anything. `take` limits what is
    taken of the agent's work (the rest is the workspace as it was given). `protect` are paths that programs load by
    themselves: what the agent planted or changed there is put back before anything runs, and reported.
    """

    commands: tuple[str | tuple[str, ...] | VerifyCommand, ...] = ()
    """Run in this order, up to the first that does not pass; a plain one passes with exit code 0."""
    files: str | None = None
    """A directory that is laid over the agent's files, and that it never saw."""
    take: tuple[str, ...] = ()
    """Globs of what is taken of the agent's work; empty: all of it."""
    protect: tuple[str, ...] | None = None
    """Globs of paths that are restored to their given state before any command runs. None: the hooks and configuration
    that the test runners in `commands` load."""
    timeout: Seconds = 300.0
    """Seconds, for all commands together."""
    mounts: dict[GuestPath, str] = {}
    """Places in the verifier's box, and the files or directories of which it has a copy there."""
    sha256: dict[GuestPath, str] = {}
    """Of directories among them the digest by `task_tree.py`: changed since, they are not used."""
    env: dict[str, str] = {}
    """Variables of its commands."""
    reward: GuestPath | None = None
    """A directory, empty at first, in which the commands leave a number: `reward.txt`, or `reward.json` with an object
    of numbers. Then that decides, and not how they exit: 1.0 or more is passed, less is failed, no number is none."""
    network: str | None = None
    """Of the verifier's box; None: the provider's default, which is none where it can be enforced."""


class FileCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold of one file of the final tree."""

    path: Text
    """From the root of the final tree. Links are not followed."""
    exists: bool = True
    """Whether anything must be there, of whatever kind; false: nothing may be."""
    contains: str | None = None
    """Text that must be in it; it must be a regular file."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None
    """What its content's must be; it must be a regular file."""

    @property
    def names(self) -> tuple[str, ...]:
        """The path name by name: `./a//b` is `a/b`."""
        return tuple(name for name in self.path.split("/") if name not in ("", "."))


class CommandCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that must have been made, and how it must have ended."""

    match: str
    """A regular expression, as in `commands`."""
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    """What one of the calls that match must have exited with; by default any code, also that of a failure."""


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions on what the agent said, did and left. All must hold; each failing one is named."""

    claimed: Literal["success", "failure", "none"] | None = None
    """What the agent must claim."""
    result: str | None = None
    """A regular expression that the final message must match somewhere: its text as it was said, JSON or not."""
    result_json: dict[str, Any] | None = None
    """Members that the final message, as a JSON object, must have."""
    min_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """At least so many must be made."""
    max_tool_calls: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """At most so many may be made."""
    max_tool_failures: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """At most so many calls may fail: not complete, or exit with another code than 0."""
    commands: tuple[str | CommandCondition, ...] = ()
    """Regular expressions, each of which must match some call that was run: a command's line, or of another tool its
    name and arguments, `NAME ARGUMENTS`. A call that was declined, or whose program could not be started, was not run.
    A table `{ match = "^pytest", exit_code = 0 }` also asks how it ended."""
    no_commands: tuple[str, ...] = ()
    """None of these may match any call that was run."""
    observed: bool = False
    """For `commands` and `min_tool_calls` only what proofbox ran itself counts, not what an agent says it did, and only
    if it was started."""
    file: tuple[FileCondition, ...] = ()
    """Conditions on files of the final tree."""

    @property
    def asks(self) -> bool:
        """Whether there is a condition at all: `observed` is none, and neither is a table without members."""
        return msgspec.structs.replace(self, observed=False, result_json=self.result_json or None) != Expect()


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an attempt may use up; one more, and it is ended as `budget_exceeded`."""

    turns: Count | None = None
    """How many may begin."""
    tool_calls: Count | None = None
    tokens: Count | None = None


class BoxLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the box of an attempt may use; the verifier's has the same."""

    memory: Amount | None = None
    """MB, or text with a unit: 512, `"512m"`, `"2g"`."""
    cpus: Annotated[float, msgspec.Meta(gt=0)] | None = None
    pids: Count | None = None
    disk: Amount | None = None
    """Of the workspace: MB, or text with a unit. It is measured several times a second and is not a quota: an attempt
    that exceeds it is ended."""

    @property
    def memory_mb(self) -> int | None:
        return None if self.memory is None else megabytes(self.memory, "memory")

    @property
    def disk_mb(self) -> int | None:
        return None if self.disk is None else megabytes(self.disk, "disk")


class ToolPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which calls may be made: patterns over the command line, or of another tool over `NAME ARGUMENTS`; `*` is any
    text. Deny wins."""

    accept: tuple[str, ...] = ("*",)
    """Patterns of what is allowed; where there are any, nothing else is."""
    decline: tuple[str, ...] = ()
    """Patterns of what is not, whatever `accept` says."""


class MissionScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the scripted agent plays; other strategies ignore it. The agent's own module checks the steps."""

    step: tuple[dict[str, Any], ...] = ()
    """In the order they are played, each a table such as `{ say = "done" }`."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a mission comes from that was written for another system, and how running it here differs."""

    format: Literal["harbor"]
    """Whose tasks it is one of."""
    name: str
    """The directory of the task."""
    sha256: str
    """Of every file of it, by `task_tree.py`."""
    notes: tuple[str, ...] = ()
    """What of it was left out or is done another way."""
    not_comparable: tuple[str, ...] = ()
    """Why its results must not be set beside those of the other system. Empty: they may."""


class MissionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `[defaults]` may say for every mission."""

    tags: tuple[Text, ...] = ()
    workspace: str | None = None
    """A directory, or a tar or zip archive, that every attempt gets a copy of. None: an empty directory."""
    files: dict[Text, str] = {}
    """More for the workspace: places in it, and the files or directories that go there."""
    workdir: GuestPath | None = None
    """Where in the box the workspace is as well, and where commands begin. With provider docker attempts begin with
    what the image has there; `workspace` and `files` lie over it."""
    setup: tuple[str | tuple[str, ...], ...] = ()
    """Commands run in the box before the agent starts."""
    timeout: Seconds = 600.0
    """Of the agent's turn, from its start: waiting in the queue doesn't count."""
    budget: Budget = Budget()
    tools: ToolPolicy = ToolPolicy()
    """Which of the agent's calls may be made, as far as they come by proofbox."""
    capabilities: str | None = None
    """A preset's name, or a file of capabilities: compiled into the agent's box, and checked by tools we run for it."""
    provider: str | None = None
    network: str | None = None
    image: str | None = None
    limits: BoxLimits = BoxLimits()
    env: tuple[str, ...] = ()
    """Names of variables the agent gets, as far as the environment policy lets them in."""
    verify: Verify = Verify()
    expect: Expect = Expect()
    replicates: Count = 1


class Mission(MissionFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One task."""

    id: Name
    """Unique in the suite; attempts are named after it."""
    prompt: Text | None = None
    """What the agent is asked; this or `prompt_file`."""
    prompt_file: Text | None = None
    """A file of UTF-8 with what the agent is asked."""
    script: MissionScript = MissionScript()
    solution: str | None = None
    """What the control `oracle` runs: a script, or a directory with `solve.sh` in it. No other strategy sees it."""
    solution_env: dict[str, str] = {}
    """Variables of the solution's script."""
    origin: Origin | None = None
    """Of a mission that was written for another system; null: of this one."""


def comparability(mission: Mission) -> dict[str, Any]:
    """Whether its results may be set beside those of the system that it was written for, and if not, why."""
    reasons = () if mission.origin is None else mission.origin.not_comparable
    return {"comparable": not reasons, "not_comparable": list(reasons)}


class SuiteFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: Name
    """What reports call it."""
    title: str = ""
    """For people; nothing depends on it."""
    strategies: tuple[Text, ...] = ()
    """The chain to use where no flag names one."""
    isolation: Isolation = "process"
    most: dict[str, Count] = {}
    """Of a provider or a strategy, how many attempts may be under way at once: `{ docker = 2, process = 4 }`. Each
    bound holds; others are bounded by -n."""


@stored(SCHEMA, at="a suite's TOML or JSON file, and RUN/suite.toml or RUN/suite.json")
class SuiteDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A suite: missions, and what they have in common. The file itself states no schema; the run's index does."""

    suite: SuiteFields
    defaults: MissionFields = MissionFields()
    """What holds for every mission that does not say otherwise."""
    mission: Annotated[tuple[Mission, ...], msgspec.Meta(min_length=1)]
    """Each with an id of its own."""
