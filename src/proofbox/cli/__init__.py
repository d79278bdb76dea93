"""The command line. `main` prints top-level help and the version itself and loads everything else on demand.

`COMMANDS` is the only list of commands: help, registration and `proofbox contract` are generated from it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

GARBAGE_THRESHOLD = 50_000
"""New objects until the garbage collector runs: loading modules creates many, and none of them is garbage."""

READING = ("attempt list", "report", "validate", "verify")
"""Commands that use nearly all of their objects until they end: the collector would find no garbage among them."""


class Command:
    """One command. A plain class, because creating a NamedTuple class would double the startup time."""

    __slots__ = ("passes_exit_code", "path", "summary", "target")

    def __init__(self, path: str, target: str, summary: str, *, passes_exit_code: bool = False) -> None:
        self.path = path
        """The words typed to call it: `exec`, `session start`."""
        self.target = target
        """Module and name of the function that implements it."""
        self.summary = summary
        self.passes_exit_code = passes_exit_code
        """Whether it exits with the exit code of the command it runs; proofbox's own failures exit with 125."""


COMMANDS = (
    Command("exec", "run.exec:exec_", "Run one command in a new box.", passes_exit_code=True),
    Command("up", "run.up:up", "Open an interactive shell in a box.", passes_exit_code=True),
    Command("init", "setup.init:init", "Write a project's settings and trust them."),
    Command("new suite", "setup.new:suite", "Write a commented suite to start from."),
    Command("new campaign", "setup.new:campaign", "Write a commented campaign to start from."),
    Command("doctor", "setup.doctor:doctor", "Check every sandbox on this machine by attacking it."),
    Command("probe", "run.probe:probe", "Show which sandbox would be used here, and why."),
    Command("session start", "run.session:start", "Start a box that stays alive between commands."),
    Command("session exec", "run.session:exec_", "Run a command in a session.", passes_exit_code=True),
    Command("session list", "run.session:list_", "List running and ended sessions."),
    Command("session show", "run.session:show_", "Show one session."),
    Command("session stop", "run.session:stop", "Stop a session and kill every process in it."),
    Command("session prune", "run.session:prune", "Remove ended sessions."),
    Command("images list", "setup.images:list_", "List the images that boxes can use."),
    Command("images default", "setup.images:default", "Show the default image."),
    Command("images pull", "setup.images:pull", "Download an image, verify it, and lock the project to it."),
    Command("images build", "setup.images:build", "Build an image from Debian's packages."),
    Command("images import", "setup.images:import_", "Import an image from files or from the container engine."),
    Command("verify", "evidence.verify:verify", "Check a bundle, its logs, packet and signature, as an auditor would."),
    Command("view", "evidence.view:view", "Show runs, attempts and their evidence in a browser, or as one HTML file."),
    Command("bundle list", "evidence.bundle:list_", "List the runs in an output directory."),
    Command("bundle show", "evidence.bundle:show_", "Show one bundle, in any state."),
    Command("bundle verify", "evidence.bundle:verify", "Check one bundle completely."),
    Command(
        "bundle reindex",
        "evidence.bundle:reindex",
        "Check a bundle against its index, or repair the index and log the repair.",
    ),
    Command("bundle pack", "evidence.bundle:pack", "Write a committed bundle to one file, which every reader accepts."),
    Command("bundle push", "evidence.bundle:push", "Copy a committed bundle to a store."),
    Command("bundle pull", "evidence.bundle:pull", "Copy a run from a store."),
    Command(
        "promotion emit", "evidence.promotion:emit", "Write the packet that states whether a bundle may be relied on."
    ),
    Command("promotion verify", "evidence.promotion:verify", "Check a promotion packet against its bundle and a key."),
    Command("plan list", "evidence.plan:list_", "List the built-in plans."),
    Command("plan show", "evidence.plan:show_", "Show a plan's profiles and probes."),
    Command("plan lint", "evidence.plan:lint", "Check a plan."),
    Command("plan run", "evidence.plan:run", "Measure what a sandbox enforces, by a plan of probes."),
    Command("plan compare", "evidence.plan:compare", "Show what changed between two plan runs."),
    Command("new plan", "setup.new:plan", "Write a commented plan of probes to start from."),
    Command("new runtime", "setup.new:runtime", "Write a package with the smallest agent runtime to start from."),
    Command("key new", "evidence.key:new", "Create a key pair for signing packets."),
    Command("key show", "evidence.key:show_", "Show a key's id and public key."),
    Command("workspace init", "workspaces.workspace:init", "Start recording a directory's history."),
    Command("workspace snapshot", "workspaces.workspace:snapshot", "Record the current state of the files."),
    Command("workspace log", "workspaces.workspace:log", "List the history, newest first."),
    Command("workspace status", "workspaces.workspace:status", "Show what has changed since the latest snapshot."),
    Command("workspace diff", "workspaces.workspace:diff", "List the differences between two states."),
    Command("workspace rollback", "workspaces.workspace:rollback", "Restore the files of a snapshot."),
    Command("workspace fork", "workspaces.workspace:fork", "Create a new workspace at a snapshot."),
    Command("workspace verify", "workspaces.workspace:verify", "Verify the stored history by hashing all of it."),
    Command("workspace gc", "workspaces.workspace:gc", "Delete stored data that no snapshot needs."),
    Command(
        "workspace adopt",
        "workspaces.workspace:adopt",
        "Attach a history to the directory that has replaced its workspace.",
    ),
    Command("workspace forget", "workspaces.workspace:forget", "Delete a directory's history."),
    Command("suite lint", "agents.suite:lint", "Check a suite file."),
    Command("suite schema", "agents.suite:schema", "Print the JSON Schema of suite files, for editors."),
    Command("suite run", "agents.suite:run", "Run a suite's missions and record the evidence."),
    Command("suite resume", "agents.suite:resume", "Resume a run that was interrupted or killed."),
    Command("suite status", "agents.suite:status", "Show the progress of a run, and its nodes."),
    Command("suite report", "agents.suite:report", "Show the results of a run."),
    Command("campaign lint", "agents.campaign:lint", "Check a campaign file, and whether its flows can run here."),
    Command("campaign schema", "agents.campaign:schema", "Print the JSON Schema of campaign files, for editors."),
    Command("campaign plan", "agents.campaign_analysis:plan", "Show what a campaign costs and what it can detect."),
    Command("campaign run", "agents.campaign:run", "Compare flows on the same missions, and record the evidence."),
    Command("campaign canary", "agents.campaign:canary", "Run the first missions of a campaign as a trial."),
    Command("campaign resume", "agents.campaign:resume", "Resume a campaign that was interrupted or killed."),
    Command("campaign status", "agents.campaign:status", "Show the progress of a campaign."),
    Command("campaign report", "agents.campaign:report", "Show rates, intervals and verdicts of a campaign."),
    Command("campaign compare", "agents.campaign_analysis:compare", "Compare a campaign with an earlier one."),
    Command("campaign regrade", "agents.campaign_analysis:regrade", "Verify a campaign's files with new verifiers."),
    Command(
        "campaign publish-check",
        "agents.campaign_analysis:publish_check",
        "Check whether the results of a campaign can be published, and write the packet.",
    ),
    Command("attempt list", "agents.attempt:list_", "List the attempts of a run."),
    Command("attempt show", "agents.attempt:show_", "Show the record of one attempt."),
    Command("attempt explain", "agents.attempt:explain_", "Explain in plain words what happened in one attempt."),
    Command("attempt diff", "agents.attempt:diff", "Show what an attempt, or one step of it, changed."),
    Command("attempt fork", "agents.fork:fork", "Continue from a step of an attempt, with its files and thread."),
    Command("explore", "agents.explore:explore", "Continue an attempt in several branches and keep the best verified."),
    Command("attempt interrupt", "agents.attempt:interrupt", "Stop one attempt; the others continue."),
    Command(
        "runtime list",
        "agents.runtime:list_",
        "List the agent runtimes, their capabilities, and whether each works here.",
    ),
    Command("runtime check", "agents.runtime:check", "Run the conformance checks on a runtime."),
    Command("runtime try", "agents.runtime_try:try_", "Give one prompt to an agent in a box and record every step."),
    Command("validate", "evidence.scoring:validate", "Check that the evidence of attempts is complete and consistent."),
    Command("report", "evidence.scoring:report", "Show the metrics of attempts, from verified evidence."),
    Command("report parity", "evidence.parity:parity", "Compare what is scored in two runs of the same missions."),
    Command("gc", "evidence.scoring:gc", "Delete old runs to free disk space."),
    Command("workspace effects", "workspaces.tools:effects", "List the effects in a workspace, including denied ones."),
    Command(
        "workspace tools", "workspaces.tools:tools", "List the tools an agent has in a workspace, with their schemas."
    ),
    Command("workspace call", "workspaces.tools:call", "Call one tool as an agent would."),
    Command("mcp serve", "workspaces.mcp:serve_", "Serve a workspace's tools over MCP on stdin and stdout."),
    Command("run", "run.funnel:run", "Inside a box: ask proofbox to run and record a command.", passes_exit_code=True),
    Command(
        "mcp proxy",
        "run.funnel:proxy",
        "In a box: have the supervisor start an MCP server and record its calls.",
        passes_exit_code=True,
    ),
    Command("deliver spec", "delivery.deliver:spec", "Show an app's spec, or write a mission from it."),
    Command("deliver plan", "delivery.deliver:plan", "Show what would be sent, without changing anything."),
    Command("deliver init", "delivery.deliver:init", "Create an app's repository from a tree backed by evidence."),
    Command("deliver pr", "delivery.deliver:pr", "Open a pull request from a tree backed by evidence."),
    Command("backend serve", "delivery.backend:serve_", "Run the reference backend on local bare repositories."),
    Command("backend spec", "delivery.backend:spec", "Store an app's spec in the reference backend."),
    Command("demo", "setup.demo:demo", "Show the whole pipeline in a minute, without a key or a network."),
    Command("contract", "setup.contract:contract", "List every command, schema and error code, for programs."),
    Command("completion", "setup.completion:completion", "Print a shell completion script."),
)

GROUPS = {
    "runtime": "Agent runtimes: list, check, and try one with a prompt.",
    "workspace": "Directories with history.",
    "mcp": "A workspace's tools, for MCP clients.",
    "session": "Boxes that stay alive between commands.",
    "suite": "Run missions with agents, and verify the results.",
    "campaign": "Compare agents, models or prompts on the same missions.",
    "new": "Write a commented example to start from.",
    "attempt": "Single runs of an agent, made by suites and `runtime try`.",
    "images": "Root file systems for boxes, pinned by digest.",
    "bundle": "Evidence bundles: show, check, reindex, copy.",
    "promotion": "Decide whether evidence may be relied on.",
    "plan": "Plans of probes that measure what a sandbox enforces.",
    "key": "Keys that sign promotion packets.",
    "deliver": "Turn promoted evidence into a repository or a pull request.",
    "backend": "The reference backend, for local use.",
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        end = words.index("--") if "--" in words else None  # after it, --help would belong to the command to run
        words = [*words[1:end], "--help"]
    if words[:1] in ([], ["--help"], ["-h"]):
        from proofbox.cli.help import root_help

        print(root_help())
        return 0
    if words[0] in GROUPS and words[1:2] in ([], ["--help"], ["-h"]):
        from proofbox.cli.help import group_help

        print(group_help(words[0]))
        return 0
    if words == ["--version"]:
        from proofbox import __version__

        print(f"proofbox {__version__}")
        return 0
    from proofbox.cli.preloading import preload

    preload()
    from proofbox.cli.app import parse, report_failure

    try:
        return parse(words)() or 0
    except (Exception, KeyboardInterrupt) as failure:
        return report_failure(failure, words)


def entry() -> None:
    """Run the console script and end the process."""
    collect_rarely(sys.argv[1:])
    leave(run_to_end())


def collect_rarely(words: Sequence[str]) -> None:
    """Make the garbage collector of this process run rarely, or not at all."""
    import gc

    gc.set_threshold(GARBAGE_THRESHOLD)
    if " ".join(words).startswith(READING) and not any(word.startswith("--html") for word in words):
        gc.disable()  # except for pages, which are freed only by it


def run_to_end() -> int:
    """Return the exit code, without a stack trace when stdout is full or its reader has exited."""
    prepare_streams()
    try:
        code = main()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        code = 0
        redirect_to_null(1)
    except OSError as error:
        code = 3
        redirect_to_null(1)
        try:
            print(f"proofbox: cannot write to stdout: {error.strerror}", file=sys.stderr)
        except OSError:
            pass
    except KeyboardInterrupt:  # before a command started; commands handle it themselves
        code = 130
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        redirect_to_null(2)
    return code


def leave(code: int) -> None:
    """End the process without unloading its modules, which takes longer than a short command. Exit handlers run."""
    import atexit
    import os

    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        sys.exit(code)  # waits for the other threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed by the caller, or reported already
            pass
    os._exit(code)


def prepare_streams() -> None:
    """Open closed standard streams on /dev/null, so that no file opened later gets the descriptor of stderr, and escape
    characters that the terminal's encoding lacks."""
    import os

    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (stays open until exit)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def redirect_to_null(fd: int) -> None:
    """Redirect a descriptor to /dev/null: Python flushes at exit, and would report the error again."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
