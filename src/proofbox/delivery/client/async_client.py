"""`AsyncBackendClient`: the backend's four operations.

An export or a pull request is first looked for, so that it is made once even by a backend that ignores idempotency
keys; `sending.py` has the attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import httpx2
import msgspec

from proofbox.core.clock import Clock
from proofbox.delivery.client.body import Body, FileToSend, export_body, pull_request_body
from proofbox.delivery.client.calls import (
    MANIFEST_ANSWER,
    BackendCall,
    api_path,
    refuse_login,
)
from proofbox.delivery.client.idempotency import keyed_export, keyed_pull_request, manifest_key
from proofbox.delivery.client.sending import Sender
from proofbox.delivery.client.settings import BackendSettings
from proofbox.delivery.client.wire import (
    AppSpec,
    ExportAnswer,
    InitialExport,
    ManifestRequest,
    PullRequest,
    PullRequestAnswer,
    RepoManifest,
    RepositoryChange,
)
from proofbox.errors import (
    BackendConflict,
    BackendNotFound,
    BackendRejected,
)

Change = tuple[RepositoryChange, FileToSend | None]
Told = Callable[[InitialExport], None]


class AsyncBackendClient:
    """Use it in an `async with`. Raises the BackendErrors of `proofbox.errors`, each with advice."""

    def __init__(
        self,
        settings: BackendSettings,
        *,
        clock: Clock | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._sender = Sender(settings, clock=clock, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._sender.close()

    # The operations

    async def get_app_spec(self, enterprise_id: str, *, app_id: str | None = None) -> AppSpec:
        """What the app is. `app_id` matters where an enterprise has several; an older backend ignores it."""
        path = api_path("api", "enterprises", enterprise_id, "appgen", "spec")
        query = f"?{httpx2.QueryParams({'appId': app_id})}" if app_id else ""
        ids = {"enterprise_id": enterprise_id, "app_id": app_id}
        call = BackendCall("get_app_spec", "GET", path + query, AppSpec, ids=ids)
        found = await self._sender.repeated(call)
        # A spec never holds secrets. One that does is read without them.
        return msgspec.convert(self._sender.redactor.redact_json(msgspec.to_builtins(found)), AppSpec)

    async def get_repo_manifest(
        self, app_id: str, *, user_id: str, repo_url: str | None = None, branch_name: str | None = None
    ) -> RepoManifest:
        """Which files the app's repository has, by digest."""
        refuse_login(repo_url)
        asked = ManifestRequest(repo_url=repo_url, user_id=user_id, branch_name=branch_name)
        return await self._sender.repeated(_manifest_call(app_id, asked))

    async def initial_export(
        self, app_id: str, export: InitialExport, files: Sequence[FileToSend], *, instead: Told | None = None
    ) -> ExportAnswer:
        """Make the app's repository of these files. One that holds exactly these already is the answer too.

        One that is there and empty is filled, by another request: `instead` is told of it before it is sent.
        """
        refuse_login(export.repo_url)
        find = partial(self._find_export, app_id, export, files, instead)
        call = _export_call(app_id, keyed_export(app_id, export, files), files)
        answer = await self._sender.once(call, find)
        if not answer.success:
            raise BackendRejected(
                "initial_export: the backend says that it did not succeed, and not why",
                op="initial_export",
                fix_hints=["look into the backend's log"],
            )
        return answer

    async def create_pull_request(self, app_id: str, pull: PullRequest, changes: Sequence[Change]) -> PullRequestAnswer:
        """Propose these changes on a branch of that name. One that is there already is the answer too."""
        refuse_login(pull.repo_url)
        pull = keyed_pull_request(app_id, pull, (change for change, _ in changes))
        call = BackendCall(
            "create_pull_request",
            "POST",
            api_path("api", "apps", app_id, "deploy", "repo", "pull-requests"),
            PullRequestAnswer,
            body=pull_request_body(pull, changes),
            idempotency_key=pull.idempotency_key,
            ids={"app_id": app_id, "repo_url": pull.repo_url},
        )
        find = partial(self._find_pull_request, app_id, pull)
        return await self._sender.once(call, find)

    # Looking for what may be there already

    async def _find_export(
        self, app_id: str, export: InitialExport, files: Sequence[FileToSend], instead: Told | None, attempt: int
    ) -> ExportAnswer | BackendCall[ExportAnswer] | None:
        try:
            asked = ManifestRequest(repo_url=export.repo_url, user_id=export.user_id)
            found = await self._sender.attempt(_manifest_call(app_id, asked), attempt)
        except BackendNotFound:
            return None
        url = found.repo_url or export.repo_url
        if found.base_commit_sha is None and not found.files:
            if not url:
                return None
            # Made, and then something broke: it is to be filled, not made again.
            into = msgspec.structs.replace(export, create_repo=False, repo_url=url, idempotency_key=None)
            into = keyed_export(app_id, into, files)
            if instead is not None:
                instead(into)
            return _export_call(app_id, into, files)
        if {each.path: each.sha256 for each in found.files} != {each.path: each.sha256 for each in files}:
            raise BackendConflict(
                f"initial_export: the app {app_id!r} has a repository already, with other files in it",
                op="initial_export",
                fix_hints=["propose the changes: proofbox deliver pr", "see them first: proofbox deliver plan"],
                details={"repo_url": found.repo_url, "base_commit_sha": found.base_commit_sha},
            )
        name = found.repo_full_name or export.repo_name or ""
        return ExportAnswer(
            success=True, repo_url=url or "", repo_full_name=name, base_commit_sha=found.base_commit_sha or ""
        )

    async def _find_pull_request(self, app_id: str, pull: PullRequest, attempt: int) -> PullRequestAnswer | None:
        try:
            asked = ManifestRequest(repo_url=pull.repo_url, user_id=pull.user_id, branch_name=pull.branch_name)
            found = await self._sender.attempt(_manifest_call(app_id, asked), attempt)
        except BackendNotFound:
            return None
        if found.branch_name != pull.branch_name or found.pr_url is None:
            return None  # an older backend, which speaks of its main branch: it can't be asked
        if found.pr_state in ("merged", "closed"):
            raise BackendConflict(
                f"create_pull_request: these changes were proposed before, and that was {found.pr_state}",
                op="create_pull_request",
                fix_hints=["propose them on another branch: --branch NAME", "or reopen the old one"],
                details={"pr_url": found.pr_url, "state": found.pr_state},
            )
        return PullRequestAnswer(pr_url=found.pr_url, branch_name=found.branch_name, state=found.pr_state)


def _export_call(app_id: str, export: InitialExport, files: Sequence[FileToSend]) -> BackendCall[ExportAnswer]:
    return BackendCall(
        "initial_export",
        "POST",
        api_path("api", "apps", app_id, "deploy", "repo", "initial-export"),
        ExportAnswer,
        body=export_body(export, files),
        idempotency_key=export.idempotency_key,
        ids={"app_id": app_id, "repo_url": export.repo_url},
    )


def _manifest_call(app_id: str, asked: ManifestRequest) -> BackendCall[RepoManifest]:
    return BackendCall(
        "get_repo_manifest",
        "POST",
        api_path("api", "apps", app_id, "deploy", "repo", "manifest"),
        RepoManifest,
        body=Body.of(asked),
        idempotency_key=manifest_key(app_id, asked),
        ids={"app_id": app_id, "repo_url": asked.repo_url, "branch_name": asked.branch_name},
        limit=MANIFEST_ANSWER,
    )
