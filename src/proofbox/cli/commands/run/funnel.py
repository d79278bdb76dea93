"""`run` and `mcp proxy`: requests from an agent in a box to its supervisor.

In a box, `proofbox` is normally a small helper program (`sandbox/agent/boxrun.c`). These commands are used only where
proofbox itself is installed in the box, or called outside one.
"""

from __future__ import annotations

import os
from typing import Annotated

from proofbox.agents.funnel import HELPER
from proofbox.cli import flags
from proofbox.cli.parameters import Parameter
from proofbox.errors import FunnelUnavailable, UsageError

NoStdin = Annotated[bool, Parameter(name="-n", help="The command's stdin is empty.")]


def run(
    *argv: str,
    no_stdin: NoStdin = False,
    json: flags.Json = False,  # noqa: ARG001 (decides the format of errors)
) -> int:
    """In an attempt's box, have the supervisor run and record a command: proofbox run [-n] -- COMMAND [ARG]...

    The command runs in the same box, in a directory of the workspace, with the caller's environment, stdin, stdout and
    stderr; signals are passed on. The record states what the supervisor did and observed. The exit code is the
    command's; 125 if the supervisor cannot be reached, 126 if the mission's policy declines the command. See
    docs/funnel.md.

    For example:
      proofbox run -- pytest -q
      proofbox run -n -- make test
    """
    return _ask(["run", *(["-n"] if no_stdin else [])], argv)


def proxy(*argv: str, json: flags.Json = False) -> int:  # noqa: ARG001 (the same)
    """In an attempt's box, start an MCP server through the supervisor: proofbox mcp proxy -- COMMAND [ARG]...

    Put this in an agent's list of MCP servers in place of COMMAND, a server that uses stdin and stdout. Each tool call
    is recorded outside the box, with its arguments and result. See docs/funnel.md.

    For example:
      proofbox mcp proxy -- npx some-mcp-server
      proofbox mcp proxy -- python3 server.py
    """
    return _ask(["mcp", "proxy"], argv)


def _ask(words: list[str], argv: tuple[str, ...]) -> int:
    if not argv:
        raise UsageError(
            "no command was given after --", op=words[0], fix_hints=[f"proofbox {' '.join(words)} -- COMMAND"]
        )
    if os.access(HELPER, os.X_OK):
        os.execv(HELPER, [HELPER, *words, "--", *argv])  # noqa: S606 (the helper replaces this process)
    raise FunnelUnavailable(
        "there is no supervisor here: this command is for agents in the box of an attempt",
        op=words[0],
        fix_hints=[
            "run a command in a new box: proofbox exec -- COMMAND",
            "run an agent whose commands can be recorded: proofbox suite run SPEC --strategies process",
        ],
    )
