"""`new`: write commented examples to start from."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable


class NewDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.new/1"
    path: str
    """The file that was written."""
    next: str
    """A command that uses it."""


def plan(
    directory: Annotated[Path, Parameter(name="DIR", converter=flags.place, help="Where to write plan.toml.")],
    *,
    json: flags.Json = False,
) -> int:
    """Write a commented plan of probes that passes in every sandbox of proofbox. Nothing is replaced.

    For example:
      proofbox new plan measurements
    """
    from proofbox.probes.example import new_plan

    path = str(new_plan(directory))
    document = NewDocument(path=path, next=f"proofbox plan run {quote(path)}")
    show(document, lambda: printable(f"{path}\nrun it: {document.next}"), as_json=json)
    return 0
