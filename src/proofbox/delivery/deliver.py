"""Plan, prove and send a delivery, and record the requests and responses as a bundle."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from proofbox.core.clock import Clock
from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery import summary
from proofbox.delivery.client.calls import is_ambiguous
from proofbox.delivery.client.idempotency import keyed_export, keyed_pull_request
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.client.wire import InitialExport, PullRequest, RepoManifest, RepositoryChange
from proofbox.delivery.patch.baseline import Baseline, BaselineStore, FileState
from proofbox.delivery.patch.delivered_texts import Remembered
from proofbox.delivery.patch.patchset import PatchChange, Patchset, patchset
from proofbox.delivery.proof import Proof
from proofbox.delivery.record import DeliveryRecord, DeliveryRecorder, DeliveryRequest, recording
from proofbox.delivery.source.tree import SourceTree
from proofbox.errors import BackendError, BackendNotFound, DeliveryConflict, ProofboxError, SourceRefused

NO_REPOSITORY = RepoManifest(base_commit_sha=None, files=())


@dataclass(frozen=True, slots=True)
class Target:
    """The backend, the app whose repository is the target, and the user to act for."""

    backend_url: str
    app_id: str
    user_id: str
    repo_url: str | None = None

    def baselines(self) -> BaselineStore:
        return BaselineStore(self.backend_url, self.app_id)


@dataclass(frozen=True, slots=True)
class Delivered:
    patch: Patchset
    repo_url: str | None = None
    repo_full_name: str | None = None
    pr_url: str | None = None
    base_commit_sha: str | None = None
    branch_name: str | None = None
    bundle: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a delivery. `out` is the directory for its bundle."""

    redactor: Redactor
    out: Path | None = None
    clock: Clock | None = None
    repo_name: str | None = None
    message: str = ""
    title: str = ""
    branch: str | None = None


def plan(client: BackendClient, target: Target, tree: SourceTree) -> tuple[Patchset, RepoManifest]:
    """Return what a delivery would change. If there is no repository yet, every file is added."""
    try:
        manifest = client.get_repo_manifest(target.app_id, user_id=target.user_id, repo_url=target.repo_url)
    except BackendNotFound:
        if target.repo_url is not None:
            raise
        manifest = NO_REPOSITORY
    store = target.baselines()
    known = store.load()
    baseline = known.observed(manifest) if manifest is not NO_REPOSITORY else known
    if baseline != known:
        store.save(baseline)
    return patchset(tree, manifest, baseline), manifest


def initial_export(
    client: BackendClient, target: Target, tree: SourceTree, proof: Proof, options: Options
) -> Delivered:
    """Create the app's repository. A repository that already has exactly this tree also counts as success."""
    if not tree.files:
        raise SourceRefused("the source has no files to deliver", op="deliver init")
    patch = patchset(tree, NO_REPOSITORY, Baseline())
    request = InitialExport(
        create_repo=True,
        repo_name=options.repo_name,
        repo_url=target.repo_url,
        user_id=target.user_id,
        commit_message=options.message or "Initial export",
        evidence=proof.evidence(),
    )
    request = keyed_export(target.app_id, request, tree.files)
    with _recorded(target, tree, proof, options, patch, "initial_export", request) as record:
        with _intended(target, patch):
            answer = client.initial_export(target.app_id, request, tree.files, instead=record.record_replacement)
        baseline = Baseline().exported({file.path: FileState(file.sha256, file.mode) for file in tree.files})
        target.baselines().save(baseline)
        record.record_response(answer, baseline)
    _remember(target, tree, patch)
    return Delivered(
        patch=patch,
        repo_url=answer.repo_url,
        repo_full_name=answer.repo_full_name,
        base_commit_sha=answer.base_commit_sha,
        bundle=str(record.path),
    )


def pull_request(client: BackendClient, target: Target, tree: SourceTree, proof: Proof, options: Options) -> Delivered:
    """Open a pull request with the tree. If there are conflicts, raise DeliveryConflict and send nothing."""
    patch, manifest = plan(client, target, tree)
    if manifest is NO_REPOSITORY or manifest.base_commit_sha is None:
        raise BackendNotFound(
            f"the app {target.app_id!r} has no repository yet",
            op="deliver pr",
            fix_hints=["create it first: proofbox deliver init"],
            details={"ids": {"app_id": target.app_id}},
        )
    repo_url = manifest.repo_url or target.repo_url
    if patch.conflicts:
        raise DeliveryConflict(
            f"{len(patch.conflicts)} files were changed on both sides, the first: {patch.conflicts[0].path}",
            op="deliver pr",
            details={
                "conflicts": msgspec.to_builtins(patch.conflicts),
                "patch_id": patch.patch_id,
                "base_commit_sha": patch.base_commit_sha,
            },
        )
    if not patch.changes:
        return Delivered(patch=patch, repo_url=repo_url, base_commit_sha=manifest.base_commit_sha)
    branch = options.branch or patch.branch_name
    request = PullRequest(
        repo_url=repo_url,
        user_id=target.user_id,
        base_commit_sha=manifest.base_commit_sha,
        branch_name=branch,
        title=summary.title(patch, target.app_id, options.title),
        body=summary.body(patch, tree, proof, options.message),
        patch_id=patch.patch_id,
        evidence=proof.evidence(),
    )
    files = {file.path: file for file in tree.files}
    changes = [(_change(change), files.get(change.path)) for change in patch.changes]
    listed = tuple(change for change, _ in changes)
    request = keyed_pull_request(target.app_id, request, listed)
    recorded = msgspec.structs.replace(request, changes=listed)
    with _recorded(target, tree, proof, options, patch, "pull_request", recorded) as record:
        with _intended(target, patch) as baseline:
            answer = client.create_pull_request(target.app_id, request, changes)
        record.record_response(answer, baseline)
    _remember(target, tree, patch)
    return Delivered(
        patch=patch,
        repo_url=repo_url,
        repo_full_name=manifest.repo_full_name,
        pr_url=answer.pr_url,
        base_commit_sha=manifest.base_commit_sha,
        branch_name=branch,
        bundle=str(record.path),
    )


def _change(change: PatchChange) -> RepositoryChange:
    return RepositoryChange(
        path=change.path,
        operation=change.operation,
        mode=change.after_mode,  # type: ignore[arg-type]  # from a source, so a Git mode
        renamed_from=change.renamed_from,
        before_sha256=change.before_sha256,
        after_sha256=change.after_sha256,
    )


def _after(change: PatchChange) -> FileState | None:
    return FileState(change.after_sha256, change.after_mode) if change.after_sha256 else None


@contextlib.contextmanager
def _intended(target: Target, patch: Patchset) -> Iterator[Baseline]:
    """Record in the baseline what is about to be sent, so that it is recognized after a crash if it arrived.

    The entry is removed only if the request certainly did not arrive.
    """
    store = target.baselines()
    before = store.load()
    intended = before.proposed((change.path, _after(change)) for change in patch.changes)
    store.save(intended)
    try:
        yield intended
    except BackendError as error:
        if not is_ambiguous(error):
            store.save(before)
        raise


def _recorded(
    target: Target,
    tree: SourceTree,
    proof: Proof,
    options: Options,
    patch: Patchset,
    operation: str,
    request: DeliveryRequest,
) -> contextlib.AbstractContextManager[DeliveryRecorder]:
    record = DeliveryRecord(
        operation=operation,
        backend_url=target.backend_url,
        app_id=target.app_id,
        user_id=target.user_id,
        patch=patch,
        left_out=tree.left_out,
        source=tree.kind,
        proof=msgspec.structs.replace(proof, packet=os.path.basename(proof.packet or "") or None),
    )
    out = options.out or target.baselines().directory / "bundles"
    return recording(record, tree, request, out=out, redactor=options.redactor, clock=options.clock)


def _remember(target: Target, tree: SourceTree, patch: Patchset) -> None:
    changed = {change.path for change in patch.changes}
    # The delivery is complete and recorded. Without the stored text, a later plan only shows fewer lines.
    with contextlib.suppress(ProofboxError, OSError), Remembered(target.baselines().directory) as remembered:
        remembered.keep(file for file in tree.files if file.path in changed)
