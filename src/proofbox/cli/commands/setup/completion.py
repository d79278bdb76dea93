"""`completion`: a shell completion script for the commands and flags."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from proofbox.cli import flags
from proofbox.cli.output import Document, show

# As a file `_proofbox` on the fpath, the script is the body of a function of that name and must complete itself. When
# sourced, it registers the completion function.
_ZSH_ENTRY = """
if [[ $funcstack[1] = _proofbox ]]; then
  _cyclopts_proofbox "$@"
else
  compdef _cyclopts_proofbox proofbox
fi
"""


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
    from proofbox.cli.app import build

    script = build().generate_completion(shell=shell)
    if shell == "zsh":
        script += _ZSH_ENTRY
    show(CompletionDocument(shell=shell, script=script), lambda: script, as_json=json)
    return 0
