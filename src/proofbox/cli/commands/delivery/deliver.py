"""`deliver`: from promoted evidence to a repository or a pull request."""

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

AppId = Annotated[str, Parameter(name="--app-id", help="The app whose repository it is.")]
EnterpriseId = Annotated[
    str | None, Parameter(name="--enterprise-id", help="Whose app it is; its spec names the owner to act for.")
]


@dataclass(frozen=True)
class BackendFlags:
    """Where the backend is, and how long to wait for it."""

    backend_url: Annotated[
        str | None, Parameter(name="--backend-url", help="Default: MOZAIKS_BACKEND_URL, else http://localhost:3000.")
    ] = None
    allow_http: Annotated[
        bool, Parameter(name="--allow-http", negative="", help="Let the key travel unencrypted to another machine.")
    ] = False
    timeout: Annotated[float, Parameter(name="--timeout", help="Seconds for an operation with all its attempts.")] = (
        300.0
    )

    def settings(self) -> BackendSettings:
        if not 0 < self.timeout <= 86_400:
            raise UsageError("--timeout is a number of seconds, at most a day", op="deliver")
        found = BackendSettings.from_environment(project=Path.cwd(), url=self.backend_url, allow_http=self.allow_http)
        return msgspec.structs.replace(found, timeouts=Timeouts(total=self.timeout))


@dataclass(frozen=True)
class SourceFlags:
    """What to deliver, and into which repository."""

    source: Annotated[
        Path, Parameter(name="--source", help="A directory, a zip archive, an attempt's bundle, or a workspace.")
    ]
    snapshot: Annotated[
        str | None, Parameter(name="--snapshot", help="The source is this snapshot of the workspace there.")
    ] = None
    root: Annotated[str | None, Parameter(name="--root", help="A directory inside the source: the tree's top.")] = None
    repo_url: Annotated[str | None, Parameter(name="--repo-url", help="Default: the app's own repository.")] = None
    user_id: Annotated[
        str | None, Parameter(name="--user-id", help="For whom. Default: the owner in the spec, else proofbox.")
    ] = None


@dataclass(frozen=True)
class ProofFlags:
    """By what right it is sent."""

    packet: Annotated[Path | None, Parameter(name="--packet", help="The promotion packet.")] = None
    bundle: Annotated[Path | None, Parameter(name="--bundle", help="Its bundle, if not where the packet says.")] = None
    key: flags.PublicKey = None
    allow_unpromoted: Annotated[
        bool,
        Parameter(name="--allow-unpromoted", negative="", help="Send it without evidence that supports it."),
    ] = False
    out: Annotated[
        Path | None, Parameter(name="--out", help="Where the delivery's own bundle goes. Default: the user's state.")
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
    """As the backend has it."""
    mission: str | None
    """The file that the mission was written to."""


class PlanDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.delivery_plan/1"
    app_id: str
    repo_url: str | None
    base_commit_sha: str | None
    """Null where the app has no repository yet."""
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
    """Where `ok` is false: there are conflicts, and what to do about them."""


class DeliveryDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.delivery/1"
    app_id: str
    repo_url: str | None
    repo_full_name: str | None
    pr_url: str | None
    """Null after `init`, and where there was nothing to change."""
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
    """What was sent and answered."""


def spec(
    *,
    enterprise_id: Annotated[str, Parameter(name="--enterprise-id", help="Whose app it is.")],
    app_id: Annotated[str | None, Parameter(name="--app-id", help="Which, where there are several.")] = None,
    as_mission: Annotated[
        Path | None, Parameter(name="--as-mission", help="Write a suite with one mission from it: a new TOML file.")
    ] = None,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Show what an app is, or write a mission from it, so that a spec becomes an attempt and its result an export.

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
                f"{as_mission} is already there", op="deliver spec", fix_hints=["name a new file"]
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
    """Show what would be sent, as a diff, and change nothing. Exit 1 where there are conflicts.

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
            fix_hints=["take their changes into the source, and prove that"],
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
    repo_name: Annotated[str | None, Parameter(name="--repo-name", help="Default: what the backend chooses.")] = None,
    message: Annotated[str, Parameter(name="--message", help="Of the first commit.")] = "",
    proof: Evidence = NO_PROOF_FLAGS,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Make an app's repository of a tree that evidence supports. Asked again, it makes no second one.

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
    title: Annotated[str, Parameter(name="--title", help="Default: how many files change, and how.")] = "",
    message: Annotated[str, Parameter(name="--message", help="The first words of the pull request's text.")] = "",
    branch: Annotated[str | None, Parameter(name="--branch", help="Default: named by the patch.")] = None,
    proof: Evidence = NO_PROOF_FLAGS,
    backend: Backend = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Propose a tree that evidence supports as a pull request. Asked again, it makes no second one.

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

    # The client's own line says what failed; that it will be tried again needs no second one.
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


def _supported(tree: SourceTree, flags_of: ProofFlags) -> Proof:
    found = examine(flags_of.packet, flags_of.bundle, tree, key=flags_of.key)
    require(found, allow_unpromoted=flags_of.allow_unpromoted)
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
    show(document, lambda: printable(_text(document)), as_json=as_json)
    return 0


def _text(document: DeliveryDocument) -> str:
    if document.bundle is None:
        return f"nothing to change: {document.repo_url} has these files already"
    lines = [f"{document.pr_url or document.repo_url} ({counted(len(document.changes), 'file')})"]
    lines += [f"left out: {left.path} ({left.reason})" for left in document.left_out]
    lines += [f"kept: {path} (changed in the repository, and not by us)" for path in document.kept]
    standing = document.proof.standing
    lines.append("NOT proven" if standing == "not proven" else f"{standing}: {document.proof.packet}")
    lines.append(f"recorded in {document.bundle}")
    return "\n".join(lines)
