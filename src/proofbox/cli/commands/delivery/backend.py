"""`backend`: the reference backend, for local development and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable
from proofbox.errors import UsageError

SPEC_LIMIT = 1 << 20

Data = Annotated[
    Path | None,
    Parameter(name="--data", help="The directory for repositories. Default: in the user's state directory."),
]


class BackendDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.backend/1"
    url: str
    """The URL of the API and the pages."""
    data: str
    """The directory of its repositories and its ledger."""


class BackendSpecDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.backend_spec/1"
    enterprise_id: str
    app_id: str


def serve_(
    *,
    port: Annotated[int, Parameter(name="--port", help="The port; 0 selects any free one.")] = 3000,
    host: Annotated[str, Parameter(name="--host", help="The address to listen on, on this machine.")] = "127.0.0.1",
    data: Data = None,
    json: flags.Json = False,
) -> int:
    """Serve the API and its pages from bare git repositories until interrupted.

    The key comes from INTERNAL_API_KEY, or from .env in the current directory. Open the printed URL to see the pages.

    For example:
      export INTERNAL_API_KEY=$(python3 -I -c 'import secrets; print(secrets.token_urlsafe(32))')
      proofbox backend serve
    """
    from proofbox.delivery.backend.serve import serve
    from proofbox.delivery.client.settings import key_from_environment

    place = _place(data)
    key = key_from_environment(project=Path.cwd())

    def ready(url: str) -> None:
        document = BackendDocument(url=url, data=str(place))
        show(document, lambda: printable(f"serving {place} on {url}"), as_json=json)

    serve(place, key, host=host, port=port, ready=ready)
    return 0


def spec(
    file: Annotated[Path, Parameter(help="A JSON file: appId, appName, description, …")],
    *,
    enterprise_id: Annotated[str, Parameter(name="--enterprise-id", help="The enterprise that owns the app.")],
    data: Data = None,
    json: flags.Json = False,
) -> int:
    """Store an app's spec in the backend's directory, whether or not the backend is running.

    For example:
      proofbox backend spec shop.json --enterprise-id e-1
    """
    from proofbox.core.files.plain import read_plain
    from proofbox.core.parsing.untrusted_json import parse_json
    from proofbox.delivery.backend.rules import BackendRefusal
    from proofbox.delivery.backend.specs import store_spec
    from proofbox.delivery.client.wire import AppSpec

    given = read_plain(file, SPEC_LIMIT + 1)
    if len(given) > SPEC_LIMIT:
        raise UsageError(f"{file} is larger than {SPEC_LIMIT >> 20} MiB", op="backend spec")
    try:
        found = parse_json(given, AppSpec)
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} is not a valid spec: {error}", op="backend spec") from None
    try:
        store_spec(_place(data), enterprise_id, found)
    except BackendRefusal as refusal:
        raise UsageError(refusal.message, op="backend spec", fix_hints=["remove it from the spec"]) from None
    document = BackendSpecDocument(enterprise_id=enterprise_id, app_id=found.app_id)
    show(document, lambda: printable(f"stored: {found.app_id} of {enterprise_id}"), as_json=json)
    return 0


def _place(data: Path | None) -> Path:
    from proofbox.core.dirs import state_dir

    place = state_dir() / "backend" if data is None else data.absolute()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place
