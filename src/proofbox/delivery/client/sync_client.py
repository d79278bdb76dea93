"""`BackendClient`: the backend's four operations. `AsyncBackendClient` has the same ones as coroutines.

    settings = BackendSettings.from_environment()
    with BackendClient(settings) as backend:
        manifest = backend.get_repo_manifest("app-1", user_id="u-1")

The synchronous client runs the asynchronous one on a private event loop, because only an event loop can enforce a
deadline on a response that arrives byte by byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio.from_thread
import httpx2

from proofbox.core.clock import Clock
from proofbox.delivery.client.async_client import AsyncBackendClient, Change, OnReplacement
from proofbox.delivery.client.body import FileToSend
from proofbox.delivery.client.settings import BackendSettings
from proofbox.delivery.client.wire import (
    AppSpec,
    ExportAnswer,
    InitialExport,
    PullRequest,
    PullRequestAnswer,
    RepoManifest,
)

T = TypeVar("T")


class BackendClient:
    """The synchronous counterpart of `AsyncBackendClient`, to be used in `with`, from one or more threads.

    For example:

        with proofbox.BackendClient(proofbox.BackendSettings.from_environment()) as client:
            spec = client.get_app_spec("e-1")
    """

    def __init__(
        self,
        settings: BackendSettings,
        *,
        clock: Clock | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = AsyncBackendClient(settings, clock=clock, transport=transport)
        self._stack = contextlib.ExitStack()
        self._portal: anyio.from_thread.BlockingPortal | None = None

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection to the backend."""
        if self._portal is not None:
            self._portal.call(self._client.close)
            self._portal = None
        self._stack.close()

    def get_app_spec(self, enterprise_id: str, *, app_id: str | None = None) -> AppSpec:
        """Return the app's spec. `app_id` selects one of several apps; older backends ignore it."""
        return self._call(partial(self._client.get_app_spec, enterprise_id, app_id=app_id))

    def get_repo_manifest(
        self, app_id: str, *, user_id: str, repo_url: str | None = None, branch_name: str | None = None
    ) -> RepoManifest:
        """Return the files of the app's repository, with digests."""
        return self._call(
            partial(self._client.get_repo_manifest, app_id, user_id=user_id, repo_url=repo_url, branch_name=branch_name)
        )

    def initial_export(
        self, app_id: str, export: InitialExport, files: Sequence[FileToSend], *, instead: OnReplacement | None = None
    ) -> ExportAnswer:
        """Create the app's repository from these files. A repository that already has exactly these files is returned.

        An existing empty repository is filled with another request; `instead` is called with it before it is sent.
        """
        return self._call(partial(self._client.initial_export, app_id, export, files, instead=instead))

    def create_pull_request(self, app_id: str, pull: PullRequest, changes: Sequence[Change]) -> PullRequestAnswer:
        """Open a pull request with these changes on the given branch. An existing one is returned."""
        return self._call(partial(self._client.create_pull_request, app_id, pull, changes))

    def _call(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._portal is None:
            self.__enter__()
        assert self._portal is not None  # noqa: S101 (set by __enter__)
        return self._portal.call(work)
