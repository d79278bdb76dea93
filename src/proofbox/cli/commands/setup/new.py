"""`new`: write commented examples to start from."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.output import show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable

if TYPE_CHECKING:
    from proofbox.lab.examples import NewFiles

Directory = Annotated[Path, Parameter(help="The directory to write to; it is created if it does not exist.")]


def suite(directory: Directory, *, json: flags.Json = False) -> int:
    """Write a commented suite that runs without a key. Existing files are never replaced.

    For example:
      proofbox new suite missions
    """
    from proofbox.lab.examples import new_suite

    return _show(new_suite(directory), json=json)


def campaign(directory: Directory, *, json: flags.Json = False) -> int:
    """Write a commented campaign with its suite, which runs without a key. Existing files are never replaced.

    For example:
      proofbox new campaign comparison
    """
    from proofbox.lab.examples import new_campaign

    return _show(new_campaign(directory), json=json)


def plan(directory: Directory, *, json: flags.Json = False) -> int:
    """Write a commented plan of probes that passes in every sandbox of proofbox. Nothing is replaced.

    For example:
      proofbox new plan measurements
    """
    from proofbox.lab.examples import NewFiles
    from proofbox.probes.example import new_plan

    path = new_plan(directory)
    return _show(
        NewFiles(directory=str(directory), files=(path.name,), next=f"proofbox plan run {path.name}"), json=json
    )


def runtime(directory: Directory, *, json: flags.Json = False) -> int:
    """Write a package with the smallest agent runtime, which passes the conformance suite. Nothing is replaced.

    For example:
      proofbox new runtime echo
    """
    from proofbox.lab.examples import new_runtime

    return _show(new_runtime(directory), json=json)


def _show(found: NewFiles, *, json: bool) -> int:
    def text() -> str:
        lines = [f"wrote {found.directory}/{name}" for name in found.files]
        return printable("\n".join([*lines, f"run it: cd {quote(found.directory)} && {found.next}"]))

    show(found, text, as_json=json)
    return 0
