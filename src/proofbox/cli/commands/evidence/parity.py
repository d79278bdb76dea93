"""`report parity`: compare what is scored in two runs of the same missions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.output import show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted

if TYPE_CHECKING:
    from proofbox.lab.reports.parity import ParityReport

RunPath = Annotated[Path, Parameter(help="A run's directory, an attempt's, or an --out directory.")]


def parity(first: RunPath, second: RunPath, *, json: flags.Json = False) -> int:
    """Compare what is scored in two runs of the same missions, such as one of each strategy. Exit 1 if it differs.

    It compares the claim, the verdict, an infrastructure failure, why the attempt ended, the tool calls and how they
    ended, and the final files. Retries are not compared.

    For example:
      proofbox report parity process-out native-out
    """
    from proofbox.lab.reports.parity import compare_parity

    found = compare_parity(first, second)
    show(found, lambda: _text(found), as_json=json)
    return 0 if found.ok else 1


def _text(found: ParityReport) -> str:
    from proofbox.cli.health import wrapped

    names = [" and ".join(each) or "no agent" for each in found.strategies]
    lines = [f"{names[0]} and {names[1]}: {found.agreed} of {counted(found.compared, 'result')} agree"]
    for each in found.differences:
        lines.append(f"{each.attempt}: {each.what}: {each.first} / {each.second}")
    return "\n".join(map(wrapped, lines))
