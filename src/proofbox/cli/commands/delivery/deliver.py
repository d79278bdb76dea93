"""`deliver`: turn promoted evidence into a repository or a pull request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, show
from proofbox.core.files.atomic import create_only
from proofbox.core.text import printable
from proofbox.core.words import counted
from proofbox.delivery.client.settings import BackendSettings, Timeouts, known_secrets
from proofbox.delivery.client.wire import AppSpec
from proofbox.delivery.patch.patchset import Conflict, PatchChange
from proofbox.delivery.proof import Proof, examine, require
from proofbox.delivery.source.tree import LeftOut, SourceTree, open_source
from proofbox.errors import DeliveryConflict, UsageError

if TYPE_CHECKING:
    from proofbox.delivery.client.sync_client import BackendClient
    from proofbox.delivery.deliver import Delivered, Target

AppId = Annotated[str, Parameter(name="--app-id", help="The app that the repository belongs to.")]
EnterpriseId = Annotated[
    str | None,
    Parameter(name="--enterprise-id", help="The enterprise that owns the app; its spec names the user to act for."),
]


@dataclass(frozen=True)
class BackendFlags:
    """The backend's URL, and how long to wait for it."""

    backend_url: Annotated[
        str | None,
        Parameter(
            name="--backend-url", help="The backend's URL. Default: MOZAIKS_BACKEND_URL, or http://localhost:3000."
        ),
    ] = None
    allow_http: Annotated[
        bool, Parameter(name="--allow-http", negative="", help="Allow sending the key unencrypted to another machine.")
    ] = False
    timeout: Annotated[float, Parameter(name="--timeout", help="Seconds for an operation, including its retries.")] = (
        300.0
    )

    def settings(self) -> BackendSettings:
        if not 0 < self.timeout <= 86_400:
            raise UsageError("--timeout must be a positive number of seconds, at most 86400", op="deliver")
        found = BackendSettings.from_environment(project=Path.cwd(), url=self.backend_url, allow_http=self.allow_http)
        return msgspec.structs.replace(found, timeouts=Timeouts(total=self.timeout))


@dataclass(frozen=True)
class SourceFlags:
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


@dataclass(frozen=True)
class ProofFlags:
    """The evidence that justifies the delivery."""

    packet: Annotated[Path | None, Parameter(name="--packet", help="The promotion packet.")] = None
    bundle: Annotated[
        Path | None, Parameter(name="--bundle", help="The packet's bundle, if not where the packet says.")
    ] = None
    key: flags.PublicKey = None
    allow_unpromoted: Annotated[
        bool,
        Parameter(name="--allow-unpromoted", negative="", help="Deliver without supporting evidence."),
    ] = False
    out: Annotated[
        Path | None,
        Parameter(
            name="--out", help="The directory for the delivery's bundle. Default: in the user's state directory."
        ),
    ] = None


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


class PlanDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.delivery_plan/1"
    app_id: str
    repo_url: str | None
    base_commit_sha: str | None
    """Null if the app has no repository yet."""
    patch_id: str
    branch_name: str
    changes: tuple[PatchChange, ...]
    left_out: tuple[LeftOut, ...]
    conflicts: tuple[Conflict, ...]
    kept: tuple[str, ...]
    unchanged: int
    not_ours: int
    tree_sha256: str
    error: ErrorBody | None
    """The error, if there are conflicts."""


class DeliveryDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.delivery/1"
    app_id: str
    repo_url: str | None
    repo_full_name: str | None
    pr_url: str | None
    """Null after `init`, and if there was nothing to change."""
    base_commit_sha: str | None
    branch_name: str | None
    patch_id: str
    changes: tuple[PatchChange, ...]
    left_out: tuple[LeftOut, ...]
    conflicts: tuple[Conflict, ...]
    kept: tuple[str, ...]
    tree_sha256: str
    proof: Proof
    bundle: str | None
    """The bundle that records the requests and responses."""


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
    from proofbox.delivery.mission import mission_from_spec

    with _client(backend.settings()) as client:
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
    from proofbox.delivery.deliver import plan as make_plan
    from proofbox.delivery.patch.diffs import render
    from proofbox.delivery.patch.remembered import Remembered

    with _prepared(app_id, enterprise_id, source, backend) as (client, target, tree):
        patch, manifest = make_plan(client, target, tree)
        conflict = DeliveryConflict(
            f"{len(patch.conflicts)} files were changed on both sides",
            op="deliver plan",
            fix_hints=["merge the repository's changes into the source, and produce new evidence"],
        )
        document = PlanDocument(
            ok=not patch.conflicts,
            app_id=app_id,
            repo_url=manifest.repo_url or source.repo_url,
            base_commit_sha=patch.base_commit_sha,
            patch_id=patch.patch_id,
            branch_name=patch.branch_name,
            changes=patch.changes,
            left_out=tree.left_out,
            conflicts=patch.conflicts,
            kept=patch.kept,
            unchanged=patch.unchanged,
            not_ours=patch.not_ours,
            tree_sha256=tree.tree_sha256,
            error=ErrorBody.of(conflict) if patch.conflicts else None,
        )
        with Remembered(target.baselines().directory) as remembered:
            show(document, lambda: render(patch, tree, remembered.text), as_json=json)
    return 0 if document.ok else 1


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
    from proofbox.delivery.deliver import Options, initial_export

    with _prepared(app_id, enterprise_id, source, backend) as (client, target, tree):
        found = _supported(tree, proof)
        secrets = known_secrets(backend.settings().key)
        options = Options(redactor=secrets, out=proof.out, repo_name=repo_name, message=message)
        return _show(app_id, initial_export(client, target, tree, found, options), tree, found, json)


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
    from proofbox.delivery.deliver import Options, pull_request

    with _prepared(app_id, enterprise_id, source, backend) as (client, target, tree):
        found = _supported(tree, proof)
        secrets = known_secrets(backend.settings().key)
        options = Options(redactor=secrets, out=proof.out, title=title, message=message, branch=branch)
        return _show(app_id, pull_request(client, target, tree, found, options), tree, found, json)


def _client(settings: BackendSettings) -> BackendClient:
    from proofbox.delivery.client.sync_client import BackendClient

    # The client logs each failure itself, so stamina's message about the retry is redundant.
    logging.getLogger("stamina").setLevel(logging.ERROR)
    return BackendClient(settings)


@contextmanager
def _prepared(
    app_id: str, enterprise_id: str | None, source: SourceFlags, backend: BackendFlags
) -> Iterator[tuple[BackendClient, Target, SourceTree]]:
    from proofbox.delivery.deliver import Target

    settings = backend.settings()
    with (
        open_source(
            source.source, snapshot=source.snapshot, root=source.root, redactor=known_secrets(settings.key)
        ) as tree,
        _client(settings) as client,
    ):
        user = source.user_id
        if user is None and enterprise_id is not None:
            user = client.get_app_spec(enterprise_id, app_id=app_id).owner_user_id
        yield client, Target(settings.url, app_id, user or "proofbox", source.repo_url), tree


def _supported(tree: SourceTree, given: ProofFlags) -> Proof:
    found = examine(given.packet, given.bundle, tree, key=given.key)
    require(found, allow_unpromoted=given.allow_unpromoted)
    return found


def _show(app_id: str, done: Delivered, tree: SourceTree, proof: Proof, as_json: bool) -> int:
    document = DeliveryDocument(
        app_id=app_id,
        repo_url=done.repo_url,
        repo_full_name=done.repo_full_name,
        pr_url=done.pr_url,
        base_commit_sha=done.base_commit_sha,
        branch_name=done.branch_name,
        patch_id=done.patch.patch_id,
        changes=done.patch.changes,
        left_out=tree.left_out,
        conflicts=done.patch.conflicts,
        kept=done.patch.kept,
        tree_sha256=tree.tree_sha256,
        proof=proof,
        bundle=done.bundle,
    )
    show(document, lambda: _text(document), as_json=as_json)
    return 0


def _text(document: DeliveryDocument) -> str:
    if document.bundle is None:
        return printable(f"nothing to change: {document.repo_url} has these files already").replace("\n", "\\n")
    lines = [f"{document.pr_url or document.repo_url} ({counted(len(document.changes), 'file')})"]
    lines += [f"left out: {left.path} ({left.reason})" for left in document.left_out]
    lines += [f"kept: {path} (changed in the repository by others)" for path in document.kept]
    standing = document.proof.standing
    lines.append("NOT proven" if standing == "not proven" else f"{standing}: {document.proof.packet}")
    lines.append(f"recorded in {document.bundle}")
    return "\n".join(printable(line).replace("\n", "\\n") for line in lines)
