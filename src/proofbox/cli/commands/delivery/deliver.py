"""`deliver`: turn promoted evidence into a repository or a pull request."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import one_line, printable
from proofbox.delivery.client.wire import AppSpec
from proofbox.errors import UsageError

if TYPE_CHECKING:
    from proofbox.delivery.client.settings import BackendSettings
    from proofbox.delivery.documents import Delivery, DeliveryPlan

AppId = Annotated[str, Parameter(name="--app-id", help="The app that the repository belongs to.")]
EnterpriseId = Annotated[
    str | None,
    Parameter(name="--enterprise-id", help="The enterprise that owns the app; its spec names the user to act for."),
]


class BackendFlags(msgspec.Struct, frozen=True):
    """The backend's URL, and how long to wait for it."""

    backend_url: Annotated[
        str | None,
        Parameter(
            name="--backend-url", help="The backend's URL. Default: MOZAIKS_BACKEND_URL, or http://localhost:3000."
        ),
    ] = None
    allow_http: Annotated[
        bool, Parameter(name="--allow-http", help="Allow sending the key unencrypted to another machine.")
    ] = False
    timeout: Annotated[float, Parameter(name="--timeout", help="Seconds for an operation, including its retries.")] = (
        300.0
    )

    def settings(self) -> BackendSettings:
        from proofbox.delivery.client.settings import BackendSettings, Timeouts

        if not 0 < self.timeout <= 86_400:
            raise UsageError("--timeout must be a positive number of seconds, at most 86400", op="deliver")
        found = BackendSettings.from_environment(project=Path.cwd(), url=self.backend_url, allow_http=self.allow_http)
        return msgspec.structs.replace(found, timeouts=Timeouts(total=self.timeout))


class SourceFlags(msgspec.Struct, frozen=True):
    """What to deliver, and into which repository."""

    source: Annotated[
        Path, Parameter(name="--source", help="A directory, a zip archive, an attempt's bundle, or a workspace.")
    ]
    snapshot: Annotated[
        str | None, Parameter(name="--snapshot", help="Deliver this snapshot of the workspace given as --source.")
    ] = None
    root: Annotated[str | None, Parameter(name="--root", help="The directory inside the source to deliver.")] = None
    repo_url: Annotated[
        str | None, Parameter(name="--repo-url", help="The repository's URL. Default: the app's own repository.")
    ] = None
    user_id: Annotated[
        str | None,
        Parameter(name="--user-id", help="The user to act for. Default: the owner in the spec, or proofbox."),
    ] = None

    def options(self) -> dict[str, Any]:
        """Return everything but the source, as keywords."""
        return {name: getattr(self, name) for name in ("snapshot", "root", "repo_url", "user_id")}


class ProofFlags(msgspec.Struct, frozen=True):
    """The evidence that justifies the delivery."""

    packet: Annotated[Path | None, Parameter(name="--packet", help="The promotion packet.")] = None
    bundle: Annotated[
        Path | None, Parameter(name="--bundle", help="The packet's bundle, if not where the packet says.")
    ] = None
    key: flags.PublicKey = None
    allow_unpromoted: Annotated[
        bool,
        Parameter(name="--allow-unpromoted", help="Deliver without supporting evidence."),
    ] = False
    out: Annotated[
        Path | None,
        Parameter(
            name="--out", help="The directory for the delivery's bundle. Default: in the user's state directory."
        ),
    ] = None

    def options(self) -> dict[str, Any]:
        """Return these flags as keyword arguments."""
        return {name: getattr(self, name) for name in ("packet", "bundle", "key", "allow_unpromoted", "out")}


NO_FLAGS = BackendFlags()
NO_PROOF_FLAGS = ProofFlags()
Backend = Annotated[BackendFlags, Parameter(name="*")]
Source = Annotated[SourceFlags, Parameter(name="*")]
Evidence = Annotated[ProofFlags, Parameter(name="*")]


class SpecDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.app_spec/1"
    enterprise_id: str
    spec: AppSpec
    """The spec, as stored in the backend."""
    mission: str | None
    """The file that the mission was written to."""


def spec(
    *,
    enterprise_id: Annotated[str, Parameter(name="--enterprise-id", help="The enterprise that owns the app.")],
    app_id: Annotated[str | None, Parameter(name="--app-id", help="The app, if the enterprise has several.")] = None,
    as_mission: Annotated[
        Path | None,
        Parameter(name="--as-mission", help="Write a suite with one mission from the spec to this new TOML file."),
    ] = None,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Show an app's spec, or write a mission from it: the attempt's result can then be delivered.

    For example:
      proofbox deliver spec --enterprise-id e-1 --as-mission shop.toml
    """
    from proofbox.core.files.atomic import create_only
    from proofbox.delivery.client.sync_client import BackendClient
    from proofbox.delivery.mission import mission_from_spec

    with BackendClient(_quiet(backend)) as client:
        found = client.get_app_spec(enterprise_id, app_id=app_id)
    if as_mission is not None:
        try:
            create_only(as_mission, mission_from_spec(found).encode())
        except FileExistsError:
            raise UsageError(
                f"{as_mission} already exists", op="deliver spec", fix_hints=["choose another file name"]
            ) from None
    mission = str(as_mission) if as_mission else None
    document = SpecDocument(enterprise_id=enterprise_id, spec=found, mission=mission)
    shown = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    show(document, lambda: printable(f"wrote {mission}" if mission else shown), as_json=json)
    return 0


def plan(
    *,
    app_id: AppId,
    enterprise_id: EnterpriseId = None,
    source: Source,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Show what would be sent, as a diff, without changing anything. Exit 1 if there are conflicts.

    For example:
      proofbox deliver plan --app-id shop --source build
      proofbox deliver plan --app-id shop --source app.zip --root app --json
    """
    from proofbox.delivery.sending import planned

    with planned(source.source, app_id, enterprise_id, _quiet(backend), **source.options()) as (found, diff):
        return _show_plan(found, diff, as_json=json)


def _show_plan(found: DeliveryPlan, diff: Callable[[], str], *, as_json: bool) -> int:
    show(found, diff, as_json=as_json)
    return 0 if found.ok else 1


def init(
    *,
    app_id: AppId,
    enterprise_id: EnterpriseId = None,
    source: Source,
    repo_name: Annotated[
        str | None, Parameter(name="--repo-name", help="The repository's name. Default: chosen by the backend.")
    ] = None,
    message: Annotated[str, Parameter(name="--message", help="The message of the first commit.")] = "",
    proof: Evidence = NO_PROOF_FLAGS,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Create an app's repository from a tree backed by evidence. Repeating the command creates no second repository.

    For example:
      proofbox deliver init --app-id shop --source build --packet out/run-01….promotion.json
      proofbox deliver init --app-id shop --source build --allow-unpromoted
    """
    from proofbox.delivery.sending import deliver_repository

    done = deliver_repository(
        source.source,
        app_id=app_id,
        enterprise_id=enterprise_id,
        **source.options(),
        **proof.options(),
        repo_name=repo_name,
        message=message,
        backend=_quiet(backend),
    )
    return _show(done, as_json=json)


def pr(
    *,
    app_id: AppId,
    enterprise_id: EnterpriseId = None,
    source: Source,
    title: Annotated[
        str, Parameter(name="--title", help="The pull request's title. Default: a count of the changes.")
    ] = "",
    message: Annotated[
        str, Parameter(name="--message", help="Text to quote at the end of the pull request's description.")
    ] = "",
    branch: Annotated[
        str | None, Parameter(name="--branch", help="The branch's name. Default: derived from the patch.")
    ] = None,
    proof: Evidence = NO_PROOF_FLAGS,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Open a pull request from a tree backed by evidence. Repeating the command opens no second pull request.

    For example:
      proofbox deliver pr --app-id shop --source build --packet out/run-01….promotion.json --key release.pub
    """
    from proofbox.delivery.sending import deliver_pull_request

    done = deliver_pull_request(
        source.source,
        app_id=app_id,
        enterprise_id=enterprise_id,
        **source.options(),
        **proof.options(),
        title=title,
        message=message,
        branch=branch,
        backend=_quiet(backend),
    )
    return _show(done, as_json=json)


def _quiet(backend: BackendFlags) -> BackendSettings:
    # The client logs each failure itself, so stamina's message about the retry is redundant.
    logging.getLogger("stamina").setLevel(logging.ERROR)
    return backend.settings()


def _show(done: Delivery, *, as_json: bool) -> int:
    show(done, lambda: printable(_text(done)), as_json=as_json)
    return 0


def _text(document: Delivery) -> str:
    if document.bundle is None:
        return one_line(f"nothing to change: {document.repo_url} has these files already")
    lines = [f"{document.pr_url or document.repo_url} ({counted(len(document.changes), 'file')})"]
    lines += [f"left out: {left.path} ({left.reason})" for left in document.left_out]
    lines += [f"kept: {path} (changed in the repository by others)" for path in document.kept]
    standing = document.proof.standing
    lines.append("NOT proven" if standing == "not proven" else f"{standing}: {document.proof.packet}")
    lines.append(f"recorded in {document.bundle}")
    return "\n".join(map(one_line, lines))
