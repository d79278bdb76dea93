"""`view`: evidence in a browser, served on this machine, or exported as one HTML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import printable
from proofbox.errors import UsageError


class ViewDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.view/1"
    url: str
    """The address of the pages. It contains the token, so keep it to yourself."""
    path: str
    """The directory whose content is shown."""


class LeftOutFacts(msgspec.Struct, frozen=True):
    bundle: str
    """The name of its bundle."""
    path: str
    bytes: int
    """Its size."""


class ViewExportDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.view_export/1"
    file: str
    """The HTML file that was written."""
    bytes: int
    """Its size."""
    attempts: int
    """The number of attempts in it."""
    left_out: tuple[LeftOutFacts, ...]
    """Files of the evidence that were too large to embed."""


def view(
    path: Annotated[
        Path, Parameter(help="A directory with evidence: of runs, a campaign, an attempt, plan runs, deliveries.")
    ] = Path("out"),
    *,
    export: Annotated[
        Path | None,
        Parameter(name="--export", help="Write an attempt, a run or a campaign as one HTML file, and serve nothing."),
    ] = None,
    port: Annotated[int, Parameter(name="--port", help="The port; 0 selects any free one.")] = 0,
    host: Annotated[
        str,
        Parameter(
            name="--host",
            help="The address to listen on. Any address other than loopback is served without TLS; use a tunnel.",
        ),
    ] = "127.0.0.1",
    open_: Annotated[bool, Parameter(name="--open", help="Open the page in the browser.")] = False,
    json: flags.Json = False,
) -> int:
    """Show runs, attempts and their evidence in a browser, until interrupted. Nothing is changed, except your notes.

    Every page needs the token that is part of the printed URL. Evidence is verified when it is shown.

    With --export, write one HTML file that works without a server. The browser compares its evidence with the embedded
    index; `proofbox verify FILE` extracts and verifies it.

    For example:
      proofbox view out --open
      proofbox view out --export report.html
    """
    if export is not None:
        return _export(path, export, json=json)
    from proofbox.viewer.web.serve import serve

    def ready(url: str) -> None:
        show(ViewDocument(url=url, path=str(path)), lambda: printable(f"showing {path}: {url}"), as_json=json)
        if open_:
            open_browser(url)

    serve(path, host=host, port=port, ready=ready)
    return 0


def open_browser(url: str) -> None:
    """Open a URL that contains a token in the user's browser.

    Arguments of processes can be read by other users, so the browser gets a file that only the user can read, and that
    leads to the URL.
    """
    import atexit
    import tempfile
    import webbrowser

    from proofbox.core.dirs import state_dir

    descriptor, name = tempfile.mkstemp(prefix="view-", suffix=".html", dir=state_dir())
    with open(descriptor, "w") as stream:
        stream.write(f'<!doctype html><meta http-equiv="refresh" content="0;url={url}">\n')
    atexit.register(Path(name).unlink, missing_ok=True)
    if not webbrowser.open(Path(name).as_uri()):
        print("proofbox: no browser was found; open the URL yourself", file=sys.stderr)


def write_html(path: Path, file: Path) -> ViewExportDocument:
    """Write the HTML file of a campaign, a run or an attempt."""
    from proofbox.viewer.export import export_html

    if file.suffix != ".html":
        raise UsageError(f"{file} does not end with .html", op="view", fix_hints=[f"name it {file}.html"])
    found = export_html(path, file)
    left_out = tuple(LeftOutFacts(*each) for each in found.left_out)
    return ViewExportDocument(file=found.path, bytes=found.bytes, attempts=found.attempts, left_out=left_out)


def _export(path: Path, file: Path, *, json: bool) -> int:
    document = write_html(path, file)

    def text() -> str:
        left = f"; {counted(len(document.left_out), 'file')} left out and listed in it" if document.left_out else ""
        return printable(f"{file}: {counted(document.attempts, 'attempt')}, {document.bytes / 1e6:.1f} MB{left}")

    show(document, text, as_json=json)
    return 0
