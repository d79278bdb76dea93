"""`up`: an interactive shell in a box."""

from __future__ import annotations

from pathlib import Path

from proofbox.cli import flags
from proofbox.cli.commands.run.exec import DeniedHosts
from proofbox.cli.output import show


def up(
    *argv: str,
    provider: flags.Provider = None,
    project: flags.Project = Path(),
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Open an interactive shell in a box, on your own terminal: proofbox up [OPTIONS] [-- COMMAND [ARG]...]

    The box ends with the shell. Ctrl-C, job control and resizing work inside; the exit code is the command's. With
    --json the result is printed at the end, as the document of `exec`.

    For example:
      proofbox up
      proofbox up --access overlay -- bash
    """
    from proofbox.cli.commands.run.documents import ExecDocument
    from proofbox.sandbox.service import Sandboxes

    denied = DeniedHosts()
    with Sandboxes(project, on_event=denied) as boxes:
        result = boxes.start(
            argv or ("/bin/sh",),
            provider=provider,
            **box.options(),
        )
    show(ExecDocument.of(result, denied), lambda: "", as_json=json)
    return result.exit_code
