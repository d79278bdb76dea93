"""Writes commented examples of suites, campaigns and runtimes that run without a key or a network."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Final

from proofbox.core.files.atomic import create_only
from proofbox.core.results import Document
from proofbox.errors import UsageError

SUITE: Final = """\
# Missions for agents. Run them: proofbox suite run suite.toml
[suite]
id = "example"

# Values for all missions that do not set their own.
[defaults]
timeout = 60.0
tags = ["example"]

[[mission]]
id = "answer"
prompt = "Write 42 into answer.txt."
# Commands that decide, in a fresh box, after the agent has ended.
verify = { commands = ["grep -qx 42 answer.txt"] }
# What the `oracle` strategy runs, to show that the mission can be done.
solution = "answer.sh"

# What the `scripted` strategy plays. Other strategies ignore it.
[[mission.script.step]]
tool = "write_file"
args = { path = "answer.txt", content = "42\\n" }
[[mission.script.step]]
say = "done"

[[mission]]
id = "greeting"
prompt = "Write a greeting into hello.txt, and say when you are done."
expect = { claimed = "success", file = [{ path = "hello.txt", contains = "hello" }] }
solution = "greeting.sh"

[[mission.script.step]]
tool = "write_file"
args = { path = "hello.txt", content = "hello\\n" }
[[mission.script.step]]
say = "done"
"""

CAMPAIGN: Final = '''\
# Flows compared on the same missions. Run it: proofbox campaign run campaign.toml --out out
[campaign]
id = "example"
# Attempts of each flow at each mission.
replicates = 2
# Flows whose pass rates differ by less than 10 points are equivalent.
margin = 0.1

# The missions: all of a suite, or those with these `ids` (globs) and `tags`.
[[missions]]
suite = "suite.toml"
ids = ["answer"]

# What is compared. `proofbox runtime list` lists the strategies.
[[flow]]
id = "baseline"
runner = { type = "scripted" }

[[flow]]
id = "careful"
runner = { type = "scripted" }
# For a real agent: runner = { type = "codex_app_server", model = "MODEL", api_key_env = "OPENAI_API_KEY" }
prompt_template = """
{prompt}

Check your work before you finish."""

# What the results must meet to be published: proofbox campaign publish-check out
[[gate]]
type = "coverage"
min = 1.0

[[gate]]
type = "infra"
max = 0.0
'''

RUNTIME: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "echo-agent"
version = "1"
dependencies = ["proofbox"]

# The strategy's id, and the class that implements it.
[project.entry-points."proofbox.runtimes"]
echo_agent = "echo_agent:EchoRuntime"

[tool.hatch.build.targets.wheel]
only-include = ["echo_agent.py"]
"""

_SOLUTIONS: Final = {"answer.sh": "echo 42 > answer.txt\n", "greeting.sh": "echo hello > hello.txt\n"}


class NewFiles(Document, frozen=True, kw_only=True):
    """Files that were written."""

    schema: str = "proofbox.new/1"
    directory: str
    """The directory that they were written to."""
    files: tuple[str, ...]
    """The names of the files."""
    next: str
    """The command that runs the example."""


def new_suite(directory: str | os.PathLike[str]) -> NewFiles:
    """Write a commented suite, which runs without a key, into a directory.

    For example:

        print(proofbox.new_suite("missions").files)

    Raises `UsageError` if one of its files exists.
    """
    return _write(Path(directory), {"suite.toml": SUITE, **_SOLUTIONS}, "proofbox suite run suite.toml")


def new_campaign(directory: str | os.PathLike[str]) -> NewFiles:
    """Write a commented campaign with its suite, which runs without a key, into a directory.

    For example:

        print(proofbox.new_campaign("comparison").files)

    Raises `UsageError` if one of its files exists.
    """
    files = {"campaign.toml": CAMPAIGN, "suite.toml": SUITE, **_SOLUTIONS}
    return _write(Path(directory), files, "proofbox campaign run campaign.toml --out out")


def new_runtime(directory: str | os.PathLike[str]) -> NewFiles:
    """Write a package with the smallest runtime into a directory. Raises `UsageError` if one of its files exists."""
    source = (resources.files("proofbox.agents.runtimes") / "echo_agent.py").read_text("utf-8")
    files = {"echo_agent.py": source, "pyproject.toml": RUNTIME}
    return _write(Path(directory), files, "pip install -e . && proofbox runtime check echo_agent")


def _write(directory: Path, files: dict[str, str], command: str) -> NewFiles:
    for name in files:
        if os.path.lexists(directory / name):
            raise UsageError(f"{directory / name} already exists", op="new", fix_hints=["choose another directory"])
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        hints = ["choose another directory"]
        raise UsageError(f"{directory} is a file, or in one, not a directory", op="new", fix_hints=hints) from None
    for name, text in files.items():
        create_only(directory / name, text.encode())
    return NewFiles(directory=str(directory), files=tuple(files), next=command)
