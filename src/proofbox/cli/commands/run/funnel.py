"""`run` and `mcp proxy`: what an agent in a box asks its supervisor for.

There `proofbox` is a small program of its own (`sandbox/agent/boxrun.c`), and these are met only by those who have
proofbox itself in the box, or who try it outside.
"""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from proofbox.agents.funnel import HELPER
from proofbox.cli import flags
from proofbox.errors import FunnelUnavailable, UsageError

NoStdin = Annotated[bool, Parameter(name="-n", negative="", help="The command's stdin is empty.")]


def run(
    *argv: Annotated[str, Parameter(show=False)],
    no_stdin: NoStdin = False,
    json: flags.Json = False,  # noqa: ARG001 (it decides how an error is told)
) -> int:
    """In an attempt's box: have the supervisor run a command, and record it: proofbox run [-n] -- COMMAND [ARG...]

    The command runs in the same box, in a directory of the workspace, with the caller's environment, stdin, stdout and
    stderr; signals pass through. What the record says of it is what the supervisor did and saw. The exit code is the
    command's own; 125 when the supervisor can't be asked, 126 when the mission's policy declines it. More is in
    docs/funnel.md.

    For example:
      proofbox run -- pytest -q
      proofbox run -n -- make test
    """
    return _ask(["run", *(["-n"] if no_stdin else [])], argv)


def proxy(*argv: Annotated[str, Parameter(show=False)], json: flags.Json = False) -> int:  # noqa: ARG001 (the same)
    """In an attempt's box: start an MCP server through the supervisor: proofbox mcp proxy -- COMMAND [ARG...]

    COMMAND speaks MCP on stdin and stdout, and so does this, in its place. Each call of a tool is recorded outside,
    with its arguments and its result. For an agent's list of MCP servers. More is in docs/funnel.md.

    For example:
      proofbox mcp proxy -- npx some-mcp-server
      proofbox mcp proxy -- python3 server.py
    """
    return _ask(["mcp", "proxy"], argv)


def _ask(words: list[str], argv: tuple[str, ...]) -> int:
    if not argv:
        raise UsageError(
            "a command is needed, behind --", op=words[0], fix_hints=[f"proofbox {' '.join(words)} -- COMMAND"]
        )
    if os.access(HELPER, os.X_OK):
        os.execv(HELPER, [HELPER, *words, "--", *argv])  # noqa: S606 (nothing of ours is needed any more)
    raise FunnelUnavailable(
        "there is no supervisor here: this is for an agent in the box of an attempt",
        op=words[0],
        fix_hints=[
            "run a command in a box of its own: proofbox exec -- COMMAND",
            "run an agent whose commands can be recorded: proofbox suite run SPEC --strategies process",
        ],
    )
