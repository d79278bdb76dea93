"""The command line. `main` answers the cheap questions itself and loads the rest only when it is needed.

`COMMANDS` is the one list of commands: help, registration and `proofbox contract` are made from it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class Command:
    """Not a tuple with names: what it takes to make one is half of the start."""

    __slots__ = ("passes_exit_code", "path", "summary", "target")

    def __init__(self, path: str, target: str, summary: str, *, passes_exit_code: bool = False) -> None:
        self.path = path
        """As typed: `exec`, `session start`."""
        self.target = target
        """Where the function is: module and name."""
        self.summary = summary
        self.passes_exit_code = passes_exit_code
        """The command inside decides the exit code; proofbox's own failures are 125."""


COMMANDS = (
    Command("exec", "run.exec:exec_", "Run one command in a box of its own.", passes_exit_code=True),
    Command("up", "run.up:up", "An interactive shell in a box.", passes_exit_code=True),
    Command("init", "setup.init:init", "Write a project's settings, and agree to them."),
    Command("doctor", "setup.doctor:doctor", "Check every sandbox here by attacking it."),
    Command("probe", "run.probe:probe", "Say which sandbox would be used here, and why."),
    Command("session start", "run.session:start", "Start a box that stays."),
    Command("session exec", "run.session:exec_", "Run a command in a session.", passes_exit_code=True),
    Command("session list", "run.session:list_", "List the sessions, running and ended."),
    Command("session show", "run.session:show_", "Show one session."),
    Command("session stop", "run.session:stop", "End a session and everything in it."),
    Command("session prune", "run.session:prune", "Forget the sessions that have ended."),
    Command("images list", "setup.images:list_", "List the images of your catalogue."),
    Command("images default", "setup.images:default", "Say which image is the default."),
    Command("images pull", "setup.images:pull", "Download an image, verify it, and lock the project to it."),
    Command(
        "verify", "evidence.verify:verify", "Check a bundle, its logs, packet and signature: what an auditor runs."
    ),
    Command("bundle list", "evidence.bundle:list_", "List the runs of an output directory."),
    Command("bundle show", "evidence.bundle:show_", "Show one bundle, in any state."),
    Command("bundle verify", "evidence.bundle:verify", "Check one bundle in full."),
    Command(
        "bundle reindex", "evidence.bundle:reindex", "Check a bundle against its index, or repair that, on the record."
    ),
    Command("bundle push", "evidence.bundle:push", "Copy a committed bundle into a store."),
    Command("bundle pull", "evidence.bundle:pull", "Copy a run out of a store."),
    Command(
        "promotion emit", "evidence.promotion:emit", "Write the packet that says whether a bundle may be relied on."
    ),
    Command("promotion verify", "evidence.promotion:verify", "Check a promotion packet against its bundle and a key."),
    Command("key new", "evidence.key:new", "Make a key pair to sign packets with."),
    Command("key show", "evidence.key:show_", "Show a key's id and its public half."),
    Command("workspace init", "workspaces.workspace:init", "Give a directory a history."),
    Command("workspace snapshot", "workspaces.workspace:snapshot", "Record the files as they are."),
    Command("workspace log", "workspaces.workspace:log", "List the history, newest first."),
    Command("workspace status", "workspaces.workspace:status", "Say what has changed since the latest snapshot."),
    Command("workspace diff", "workspaces.workspace:diff", "List what differs between two states."),
    Command("workspace rollback", "workspaces.workspace:rollback", "Make the files what they were."),
    Command("workspace fork", "workspaces.workspace:fork", "Make a new workspace at a snapshot."),
    Command("workspace verify", "workspaces.workspace:verify", "Hash the whole stored history again."),
    Command("workspace gc", "workspaces.workspace:gc", "Drop what no snapshot needs."),
    Command(
        "workspace adopt", "workspaces.workspace:adopt", "Give a history to the directory that is now in its place."
    ),
    Command("workspace forget", "workspaces.workspace:forget", "Drop the history of a directory."),
    Command("suite lint", "agents.suite:lint", "Check a suite's file."),
    Command("suite schema", "agents.suite:schema", "Print the JSON Schema of a suite's file, for editors."),
    Command("suite run", "agents.suite:run", "Run the missions of a suite, and keep the proof."),
    Command("suite resume", "agents.suite:resume", "Go on with a run that was interrupted or killed."),
    Command("suite report", "agents.suite:report", "Show what came of a run."),
    Command("attempt list", "agents.attempt:list_", "List the attempts of a run."),
    Command("attempt show", "agents.attempt:show_", "Show what is recorded of one attempt."),
    Command("attempt explain", "agents.attempt:explain_", "Say in plain words what happened."),
    Command("attempt interrupt", "agents.attempt:interrupt", "Stop one attempt, and no other."),
    Command(
        "runtime list", "agents.runtime:list_", "List the agent runtimes: what each can do, and whether it could run."
    ),
    Command("runtime check", "agents.runtime:check", "Check a runtime by driving it."),
    Command("runtime try", "agents.trial:try_", "Give one prompt to an agent in a box, and tell every step."),
    Command("runtime fork", "agents.trial:fork", "Go on from a step of a recorded trial: files and thread."),
    Command(
        "validate", "evidence.scoring:validate", "Check that the evidence of attempts is whole and agrees with itself."
    ),
    Command("report", "evidence.scoring:report", "Show the figures of attempts, from verified evidence."),
    Command("gc", "evidence.scoring:gc", "Free what old runs take on the disk."),
    Command("workspace effects", "workspaces.tools:effects", "List what was done in a workspace, and what was denied."),
    Command("workspace tools", "workspaces.tools:tools", "List the tools an agent has here, with their schemas."),
    Command("workspace call", "workspaces.tools:call", "Call one tool, as an agent would."),
    Command("mcp serve", "workspaces.mcp:serve_", "Serve a workspace's tools over MCP, on stdin and stdout."),
    Command(
        "run", "run.funnel:run", "In a box: have the supervisor run a command, and record it.", passes_exit_code=True
    ),
    Command(
        "mcp proxy", "run.funnel:proxy", "In a box: the same for the tools of an MCP server.", passes_exit_code=True
    ),
    Command("deliver spec", "delivery.deliver:spec", "Show what an app is, or write a mission from it."),
    Command("deliver plan", "delivery.deliver:plan", "Show what would be sent, and change nothing."),
    Command("deliver init", "delivery.deliver:init", "Make an app's repository of a tree that evidence supports."),
    Command("deliver pr", "delivery.deliver:pr", "Propose a tree that evidence supports as a pull request."),
    Command("backend serve", "delivery.backend:serve_", "Run the reference backend on local bare repositories."),
    Command("backend spec", "delivery.backend:spec", "Keep an app's spec in the reference backend."),
    Command("demo", "setup.demo:demo", "The whole pipeline in a minute, without a key or a network."),
    Command("contract", "setup.contract:contract", "List every command, schema and code, for programs."),
    Command("completion", "setup.completion:completion", "Print a tab completion script for a shell."),
)

GROUPS = {
    "runtime": "Agents: which there are, and one prompt to one of them.",
    "workspace": "Directories with history.",
    "mcp": "A workspace's tools for agents that speak MCP.",
    "session": "Boxes that stay between commands.",
    "suite": "Missions for agents, run and verified.",
    "attempt": "One agent's one try.",
    "images": "Root file systems for boxes, pinned by digest.",
    "bundle": "Bundles of evidence: look, check, reindex, copy.",
    "promotion": "Packets that say whether a bundle may be relied on.",
    "key": "Keys that sign promotion packets.",
    "deliver": "From promoted evidence to a repository or a pull request.",
    "backend": "The reference backend, for local use.",
}


def root_help() -> str:
    lines = [
        "Usage: proofbox COMMAND [OPTIONS]",
        "",
        "Run coding agents in a box, and keep the proof.",
        "",
        "Commands:",
    ]
    seen: dict[str, str] = {}
    for command in COMMANDS:
        group, _, rest = command.path.partition(" ")
        seen.setdefault(group, GROUPS[group] if rest else command.summary)
    lines += [f"  {name:<12} {summary}" for name, summary in seen.items()]
    lines += [
        "",
        "Every command takes --json (one document on stdout) and --help.",
        "",
        "Examples:",
        "  proofbox exec -- ls -l                 run a command in the best sandbox there is",
        "  proofbox exec --json --timeout 60 -- pytest -q",
        "  proofbox session start                 a box that stays; then: session exec ID -- COMMAND",
        "  proofbox runtime try --prompt TEXT --workspace DIR --out RECORD",
        "  proofbox verify out                    check the evidence of the last run",
    ]
    return "\n".join(lines)


def group_help(group: str) -> str:
    lines = [f"Usage: proofbox {group} COMMAND [OPTIONS]", "", GROUPS[group], "", "Commands:"]
    for command in COMMANDS:
        name, _, rest = command.path.partition(" ")
        if name == group:
            lines.append(f"  {rest:<12} {command.summary}")
    return "\n".join([*lines, "", f"For flags and examples: proofbox {group} COMMAND --help"])


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words in (["--help"], ["-h"], ["help"]):
        print(root_help())
        return 0
    if words[0] in GROUPS and words[1:] in ([], ["--help"], ["-h"]):
        print(group_help(words[0]))
        return 0
    if words == ["--version"]:
        from proofbox import __version__

        print(f"proofbox {__version__}")
        return 0
    from proofbox.cli.app import run

    return run(words)


def entry() -> None:
    """The console script. What can't be said to stdout (full, or its reader gone) must not end in a stack trace."""
    prepare_streams()
    try:
        code = main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = 0
        to_nowhere(1)
    except OSError as error:
        code = 3
        to_nowhere(1)
        try:
            print(f"proofbox: stdout can't be written: {error.strerror}", file=sys.stderr)
        except OSError:
            pass
    except KeyboardInterrupt:  # before a command had begun: that one would have answered it
        code = 130
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        to_nowhere(2)
    sys.exit(code)


def prepare_streams() -> None:
    """Closed streams become empty ones, so that no file that is opened takes their number and is written to as stderr;
    and a character that the encoding of a terminal does not have is shown as an escape."""
    import os

    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def to_nowhere(fd: int) -> None:
    """Python flushes at exit, and would complain again."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
