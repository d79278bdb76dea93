"""Plans and makes a delivery in one call: what `proofbox deliver plan`, `init` and `pr` do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from proofbox.core.redaction.redactor import Redactor
from proofbox.core.results import ErrorBody
from proofbox.delivery.client.settings import BackendSettings, known_secrets
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.deliver import Delivered, Options, Target, initial_export, pull_request
from proofbox.delivery.deliver import plan as make_plan
from proofbox.delivery.documents import Delivery, DeliveryPlan
from proofbox.delivery.patch.diffs import render
from proofbox.delivery.patch.remembered import Remembered
from proofbox.delivery.proof import Proof, examine, require
from proofbox.delivery.source.tree import SourceTree, open_source
from proofbox.errors import DeliveryConflict

_Path = str | os.PathLike[str]


class SourceOptions(TypedDict, total=False):
    """Options of a plan and of a delivery: its files, and their repository."""

    enterprise_id: str | None
    """Selects the app's spec, whose owner is the user to act for, unless `user_id` is set."""
    snapshot: str | None
    """The snapshot to use, if the source is a workspace."""
    root: str | None
    """The directory inside the source."""
    repo_url: str | None
    """By default the app's own repository."""
    user_id: str | None
    """The user to act for. By default the owner in the spec, or `proofbox`."""
    backend: BackendSettings | None
    """By default read from the environment and the `.env` of the current directory."""


class DeliveryOptions(SourceOptions, total=False):
    """Options of a delivery: its evidence, and the record of it."""

    packet: _Path | None
    """The promotion packet."""
    bundle: _Path | None
    """The packet's bundle, if it is not where the packet says."""
    key: _Path | None
    """The public key whose private key must have signed the packet."""
    allow_unpromoted: bool
    """Deliver also if the evidence does not support it; otherwise that raises `DeliveryNotProven`."""
    out: _Path | None
    """A directory for the bundle of requests and responses. By default one in the user's state directory."""
    message: str
    """The message of the first commit, or the start of the pull request's description."""


def plan_delivery(source: _Path, *, app_id: str, **options: Unpack[SourceOptions]) -> DeliveryPlan:
    """Return what a delivery would send, without changing anything. Conflicts are listed and do not raise.

    For example:

        plan = proofbox.plan_delivery("build", app_id="shop")
        print(plan.ok, [change.path for change in plan.changes])

    `source` is a directory, a zip archive, an attempt's bundle or a workspace.
    """
    with planned(source, app_id, **options) as (plan, _):
        return plan


def deliver_repository(
    source: _Path, *, app_id: str, repo_name: str | None = None, **options: Unpack[DeliveryOptions]
) -> Delivery:
    """Create an app's repository from a tree backed by evidence. Repeating the call creates no second repository.

    For example:

        done = proofbox.deliver_repository("build", app_id="shop", packet="out/run-1.promotion.json", key="release.pub")
        print(done.repo_url, done.proof.standing)

    The backend chooses the repository's name, unless `repo_name` is given.
    """
    with _proven(source, app_id, **options) as (client, target, tree, proof, sent):
        export = initial_export(client, target, tree, proof, replace(sent, repo_name=repo_name))
        return _delivery(target, tree, proof, export)


def deliver_pull_request(
    source: _Path, *, app_id: str, title: str = "", branch: str | None = None, **options: Unpack[DeliveryOptions]
) -> Delivery:
    """Open a pull request from a tree backed by evidence. Repeating the call opens no second pull request.

    For example:

        done = proofbox.deliver_pull_request("build", app_id="shop", packet="out/run-1.promotion.json")
        print(done.pr_url)

    `title` is by default a count of the changes, and `branch` is by default derived from the patch. Files that were
    changed on both sides raise `DeliveryConflict`, and nothing is sent.
    """
    with _proven(source, app_id, **options) as (client, target, tree, proof, sent):
        opened = pull_request(client, target, tree, proof, replace(sent, title=title, branch=branch))
        return _delivery(target, tree, proof, opened)


@contextmanager
def planned(
    source: _Path, app_id: str, **options: Unpack[SourceOptions]
) -> Iterator[tuple[DeliveryPlan, Callable[[], str]]]:
    """Yield what `plan_delivery` returns, and a function that renders it as a diff while the source is open."""
    with _opened(source, app_id, **options) as (client, target, tree, _):
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
def _proven(
    source: _Path,
    app_id: str,
    *,
    packet: _Path | None = None,
    bundle: _Path | None = None,
    key: _Path | None = None,
    allow_unpromoted: bool = False,
    out: _Path | None = None,
    message: str = "",
    **options: Unpack[SourceOptions],
) -> Iterator[tuple[BackendClient, Target, SourceTree, Proof, Options]]:
    """Open the source of a delivery, and examine its evidence."""
    with _opened(source, app_id, **options) as (client, target, tree, redactor):
        proof = examine(_place(packet), _place(bundle), tree, key=_place(key))
        require(proof, allow_unpromoted=allow_unpromoted)
        yield client, target, tree, proof, Options(redactor=redactor, out=_place(out), message=message)


@contextmanager
def _opened(
    source: _Path,
    app_id: str,
    *,
    enterprise_id: str | None = None,
    snapshot: str | None = None,
    root: str | None = None,
    repo_url: str | None = None,
    user_id: str | None = None,
    backend: BackendSettings | None = None,
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
