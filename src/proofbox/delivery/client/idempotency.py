"""Derive idempotency keys: equal requests have equal keys, independent of sender and attempt.

Keys are only derived here, so the recorded key is the key that is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from proofbox.core.digest import digest_of
from proofbox.delivery.client.body import FileToSend
from proofbox.delivery.client.wire import InitialExport, ManifestRequest, PullRequest, RepositoryChange


def keyed_export(app_id: str, export: InitialExport, files: Iterable[FileToSend]) -> InitialExport:
    """Return the export with its key; an existing key is kept."""
    tree = sorted([each.path, each.mode, each.sha256] for each in files)
    key = export.idempotency_key or _key("initial-export", app_id, export.create_repo, export.repo_name, tree)
    return msgspec.structs.replace(export, idempotency_key=key)


def keyed_pull_request(app_id: str, pull: PullRequest, changes: Iterable[RepositoryChange]) -> PullRequest:
    """Return the pull request with its key; an existing key is kept."""
    what = [msgspec.to_builtins(change) for change in changes]
    key = pull.idempotency_key or _key("pull-request", app_id, pull.branch_name, pull.base_commit_sha, what)
    return msgspec.structs.replace(pull, idempotency_key=key)


def manifest_key(app_id: str, request: ManifestRequest) -> str:
    return _key("manifest", app_id, msgspec.to_builtins(request))


def _key(*parts: Any) -> str:
    return "pb-" + digest_of(list(parts))[:40]
