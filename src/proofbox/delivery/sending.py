"""Plans and makes a delivery in one call: what `proofbox deliver plan`, `init` and `pr` do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from proofbox.core.redaction.redactor import Redactor
from proofbox.core.results import ErrorBody
from proofbox.delivery.client.settings import BackendSettings, known_secrets
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.deliver import Delivered, Options, Target, initial_export, pull_request
from proofbox.delivery.deliver import plan as make_plan
from proofbox.delivery.documents import Delivery, DeliveryPlan
from proofbox.delivery.patch.delivered_texts import Remembered
from proofbox.delivery.patch.diffs import render
from proofbox.delivery.proof import Proof, examine, require
from proofbox.delivery.source.tree import SourceTree, open_source
from proofbox.errors import DeliveryConflict

_Path = str | os.PathLike[str]


def plan_delivery(
    source: _Path,
    *,
    app_id: str,
    enterprise_id: str | None = None,
    snapshot: str | None = None,
    root: str | None = None,
    repo_url: str | None = None,
    user_id: str | None = None,
    backend: BackendSettings | None = None,
) -> DeliveryPlan:
    """Return what a delivery would send, without changing anything. Conflicts are listed and do not raise.

    For example:

        plan = proofbox.plan_delivery("build", app_id="shop")
        print(plan.ok, [change.path for change in plan.changes])

    `source` is a directory, a zip archive, an attempt's bundle or a workspace; `snapshot` selects one of the
    workspace's, and `root` the directory inside the source. `repo_url` is by default the app's own repository. The user
    to act for is `user_id`, or the owner in the spec of `enterprise_id`, or `proofbox`. `backend` is by default read
    from the environment and the `.env` of the current directory.
    """
    options = {"snapshot": snapshot, "root": root, "repo_url": repo_url, "user_id": user_id}
    with planned(source, app_id, enterprise_id, backend, **options) as (plan, _):
        return plan


def deliver_repository(
    source: _Path,
    *,
    app_id: str,
    enterprise_id: str | None = None,
    snapshot: str | None = None,
    root: str | None = None,
    repo_url: str | None = None,
    user_id: str | None = None,
    packet: _Path | None = None,
    bundle: _Path | None = None,
    key: _Path | None = None,
    allow_unpromoted: bool = False,
    out: _Path | None = None,
    repo_name: str | None = None,
    message: str = "",
    backend: BackendSettings | None = None,
) -> Delivery:
    """Create an app's repository from a tree backed by evidence. Repeating the call creates no second repository.

    For example:

        done = proofbox.deliver_repository("build", app_id="shop", packet="out/run-1.promotion.json", key="release.pub")
        print(done.repo_url, done.proof.standing)

    `source` to `user_id` and `backend` are as in `plan_delivery`. `packet` is the promotion packet, `bundle` its
    bundle, if not where the packet says, and `key` the public key that must have signed it. Evidence that does not
    support the delivery raises `DeliveryNotProven`, unless `allow_unpromoted`. The requests and responses are recorded
    as a bundle in `out`, by default in the user's state directory. `message` is the message of the first commit.
    """
    options = {"snapshot": snapshot, "root": root, "repo_url": repo_url, "user_id": user_id}
    with _opened(source, app_id, enterprise_id, backend, **options) as (client, target, tree, redactor):
        proof = _proven(tree, packet, bundle, key, allow_unpromoted=allow_unpromoted)
        sent = Options(redactor=redactor, out=_place(out), repo_name=repo_name, message=message)
        return _delivery(target, tree, proof, initial_export(client, target, tree, proof, sent))


def deliver_pull_request(
    source: _Path,
    *,
    app_id: str,
    enterprise_id: str | None = None,
    snapshot: str | None = None,
    root: str | None = None,
    repo_url: str | None = None,
    user_id: str | None = None,
    packet: _Path | None = None,
    bundle: _Path | None = None,
    key: _Path | None = None,
    allow_unpromoted: bool = False,
    out: _Path | None = None,
    title: str = "",
    message: str = "",
    branch: str | None = None,
    backend: BackendSettings | None = None,
) -> Delivery:
    """Open a pull request from a tree backed by evidence. Repeating the call opens no second pull request.

    For example:

        done = proofbox.deliver_pull_request("build", app_id="shop", packet="out/run-1.promotion.json")
        print(done.pr_url)

    `source` to `user_id` and `backend` are as in `plan_delivery`, and `packet` to `out` as in `deliver_repository`.
    `title` is by default a count of the changes, `message` starts the description, and `branch` is by default derived
    from the patch. Files that were changed on both sides raise `DeliveryConflict`, and nothing is sent.
    """
    options = {"snapshot": snapshot, "root": root, "repo_url": repo_url, "user_id": user_id}
    with _opened(source, app_id, enterprise_id, backend, **options) as (client, target, tree, redactor):
        proof = _proven(tree, packet, bundle, key, allow_unpromoted=allow_unpromoted)
        sent = Options(redactor=redactor, out=_place(out), title=title, message=message, branch=branch)
        return _delivery(target, tree, proof, pull_request(client, target, tree, proof, sent))


@contextmanager
def planned(
    source: _Path, app_id: str, enterprise_id: str | None, backend: BackendSettings | None, **options: str | None
) -> Iterator[tuple[DeliveryPlan, Callable[[], str]]]:
    """Yield what `plan_delivery` returns, and a function that renders it as a diff while the source is open."""
    with _opened(source, app_id, enterprise_id, backend, **options) as (client, target, tree, _):
        patch, manifest = make_plan(client, target, tree)
        conflict = DeliveryConflict(
            f"{len(patch.conflicts)} files were changed on both sides",
            op="deliver plan",
            fix_hints=["merge the repository's changes into the source, and produce new evidence"],
        )
        plan = DeliveryPlan(
            ok=not patch.conflicts,
            app_id=app_id,
            repo_url=manifest.repo_url or target.repo_url,
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

        def diff() -> str:
            with Remembered(target.baselines().directory) as remembered:
                return render(patch, tree, remembered.text)

        yield plan, diff


@contextmanager
def _opened(
    source: _Path,
    app_id: str,
    enterprise_id: str | None,
    backend: BackendSettings | None,
    *,
    snapshot: str | None,
    root: str | None,
    repo_url: str | None,
    user_id: str | None,
) -> Iterator[tuple[BackendClient, Target, SourceTree, Redactor]]:
    settings = backend or BackendSettings.from_environment(project=Path.cwd())
    redactor = known_secrets(settings.key)
    with (
        open_source(source, snapshot=snapshot, root=root, redactor=redactor) as tree,
        BackendClient(settings) as client,
    ):
        if user_id is None and enterprise_id is not None:
            user_id = client.get_app_spec(enterprise_id, app_id=app_id).owner_user_id
        yield client, Target(settings.url, app_id, user_id or "proofbox", repo_url), tree, redactor


def _proven(
    tree: SourceTree, packet: _Path | None, bundle: _Path | None, key: _Path | None, *, allow_unpromoted: bool
) -> Proof:
    proof = examine(_place(packet), _place(bundle), tree, key=_place(key))
    require(proof, allow_unpromoted=allow_unpromoted)
    return proof


def _place(path: _Path | None) -> Path | None:
    return None if path is None else Path(path)


def _delivery(target: Target, tree: SourceTree, proof: Proof, done: Delivered) -> Delivery:
    return Delivery(
        app_id=target.app_id,
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
