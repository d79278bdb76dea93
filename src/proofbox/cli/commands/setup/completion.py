"""`completion`: a shell completion script for the commands and flags."""

from __future__ import annotations

from typing import Annotated, Literal

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter


class CompletionDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.completion/1"
    shell: str
    """bash, zsh or fish."""
    script: str


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="bash, zsh or fish.")] = "bash",
    *,
    json: flags.Json = False,
) -> int:
    """Print a shell completion script.

    For example:
      source <(proofbox completion bash)
      proofbox completion zsh > ~/.zfunc/_proofbox
    """
    from proofbox.cli.completions import completion_script

    script = completion_script(shell)
    show(CompletionDocument(shell=shell, script=script), lambda: script, as_json=json)
    return 0
