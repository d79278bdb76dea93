"""`AsyncBackendClient`: the backend's four operations.

Before it creates a repository or a pull request, the client checks whether it exists, so that retries create no
duplicates even if the backend ignores idempotency keys. `sending.py` sends requests and retries them.
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
OnReplacement = Callable[[InitialExport], None]


class AsyncBackendClient:
    """An asynchronous client, to be used in `async with`. Raises the BackendErrors of `proofbox.errors`.

    For example:

        async with proofbox.AsyncBackendClient(proofbox.BackendSettings.from_environment()) as client:
            spec = await client.get_app_spec("e-1")
    """

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
        """Close the connection to the backend."""
        await self._sender.close()

    # The operations

    async def get_app_spec(self, enterprise_id: str, *, app_id: str | None = None) -> AppSpec:
        """Return the app's spec. `app_id` selects one of several apps; older backends ignore it."""
        path = api_path("api", "enterprises", enterprise_id, "appgen", "spec")
        query = f"?{httpx2.QueryParams({'appId': app_id})}" if app_id else ""
        ids = {"enterprise_id": enterprise_id, "app_id": app_id}
        call = BackendCall("get_app_spec", "GET", path + query, AppSpec, ids=ids)
        found = await self._sender.repeated(call)
        # A spec must not contain secrets; if it does, they are redacted.
        return msgspec.convert(self._sender.redactor.redact_json(msgspec.to_builtins(found)), AppSpec)

    async def get_repo_manifest(
        self, app_id: str, *, user_id: str, repo_url: str | None = None, branch_name: str | None = None
    ) -> RepoManifest:
        """Return the files of the app's repository, with digests."""
        refuse_login(repo_url)
        request = ManifestRequest(repo_url=repo_url, user_id=user_id, branch_name=branch_name)
        return await self._sender.repeated(_manifest_call(app_id, request))

    async def initial_export(
        self, app_id: str, export: InitialExport, files: Sequence[FileToSend], *, instead: OnReplacement | None = None
    ) -> ExportAnswer:
        """Create the app's repository from these files. A repository that already has exactly these files is returned.

        An existing empty repository is filled with another request; `instead` is called with it before it is sent.
        """
        refuse_login(export.repo_url)
        find = partial(self._find_export, app_id, export, files, instead)
        call = _export_call(app_id, keyed_export(app_id, export, files), files)
        answer = await self._sender.once(call, find)
        if not answer.success:
            raise BackendRejected(
                "initial_export: the backend reports a failure without a reason",
                op="initial_export",
                fix_hints=["check the backend's log"],
            )
        return answer

    async def create_pull_request(self, app_id: str, pull: PullRequest, changes: Sequence[Change]) -> PullRequestAnswer:
        """Open a pull request with these changes on the given branch. An existing one is returned."""
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

    # Checks for existing results

    async def _find_export(
        self,
        app_id: str,
        export: InitialExport,
        files: Sequence[FileToSend],
        instead: OnReplacement | None,
        attempt: int,
    ) -> ExportAnswer | BackendCall[ExportAnswer] | None:
        try:
            request = ManifestRequest(repo_url=export.repo_url, user_id=export.user_id)
            found = await self._sender.attempt(_manifest_call(app_id, request), attempt)
        except BackendNotFound:
            return None
        url = found.repo_url or export.repo_url
        if found.base_commit_sha is None and not found.files:
            if not url:
                return None
            # An earlier attempt created it and then failed: fill it instead of creating it again.
            into = msgspec.structs.replace(export, create_repo=False, repo_url=url, idempotency_key=None)
            into = keyed_export(app_id, into, files)
            if instead is not None:
                instead(into)
            return _export_call(app_id, into, files)
        if {each.path: each.sha256 for each in found.files} != {each.path: each.sha256 for each in files}:
            raise BackendConflict(
                f"initial_export: the app {app_id!r} already has a repository with other files",
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
            request = ManifestRequest(repo_url=pull.repo_url, user_id=pull.user_id, branch_name=pull.branch_name)
            found = await self._sender.attempt(_manifest_call(app_id, request), attempt)
        except BackendNotFound:
            return None
        if found.branch_name != pull.branch_name or found.pr_url is None:
            return None  # an older backend, which always answers for its main branch
        if found.pr_state in ("merged", "closed"):
            raise BackendConflict(
                f"create_pull_request: a pull request with these changes already exists and is {found.pr_state}",
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


def _manifest_call(app_id: str, request: ManifestRequest) -> BackendCall[RepoManifest]:
    return BackendCall(
        "get_repo_manifest",
        "POST",
        api_path("api", "apps", app_id, "deploy", "repo", "manifest"),
        RepoManifest,
        body=Body.of(request),
        idempotency_key=manifest_key(app_id, request),
        ids={"app_id": app_id, "repo_url": request.repo_url, "branch_name": request.branch_name},
        limit=MANIFEST_ANSWER,
    )
