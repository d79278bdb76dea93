"""What goes over the wire, in both directions, as frozen structs with the API's own names.

    GET  /api/enterprises/{entId}/appgen/spec                → AppSpec
    POST /api/apps/{appId}/deploy/repo/manifest              ManifestRequest → RepoManifest
    POST /api/apps/{appId}/deploy/repo/initial-export        InitialExport → ExportAnswer
    POST /api/apps/{appId}/deploy/repo/pull-requests         PullRequest → PullRequestAnswer

Members that the first version of the API does not have are optional, on either side: an older backend ignores what it
is sent and leaves out what it does not know. They are marked as additions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from proofbox.core.modes import GitMode

Mode = GitMode
Operation = Literal["add", "modify", "delete"]
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Line = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=1 << 16)]


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


def without_login(url: str | None) -> str | None:
    """An address that a backend sent, without the Git credential that a careless one leaves in it."""
    if url is None or "@" not in url:
        return url
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class AppSpec(_Document, frozen=True, kw_only=True):
    """What an app is. It never holds secrets; members that are not listed here are not read."""

    app_id: Id
    app_name: Text | None = None
    description: Text | None = None
    industry: Text | None = None
    owner_user_id: Id | None = None
    tech_stack: Any = None
    feature_flags: dict[str, Any] | None = None
    git_hub_repo_full_name: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    status: Annotated[str, msgspec.Meta(max_length=128)] | None = None


class ManifestRequest(_Document, frozen=True, kw_only=True):
    repo_url: Text | None
    """None: the app's own repository, whichever that is."""
    user_id: Id
    branch_name: Line | None = None
    """Addition: the manifest of this branch, and of the pull request that is made of it."""


class ManifestFile(_Document, frozen=True, kw_only=True):
    path: str
    sha256: Sha256
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    mode: Mode | None = None
    """Addition. Without it modes are not compared."""


class RepoManifest(_Document, frozen=True, kw_only=True):
    """The files of a commit. `base_commit_sha` is None for a repository without one."""

    base_commit_sha: str | None
    files: tuple[ManifestFile, ...]
    repo_url: str | None = None
    """Addition, like all that follows."""
    repo_full_name: str | None = None
    branch_name: str | None = None
    """Which branch this is of, if the request named one and the backend understood it."""
    pr_url: str | None = None
    pr_state: Literal["open", "merged", "closed"] | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "repo_url", without_login(self.repo_url))
        msgspec.structs.force_setattr(self, "pr_url", without_login(self.pr_url))


class Evidence(_Document, frozen=True, kw_only=True):
    """Addition: by what right this was sent."""

    packet_sha256: Sha256
    run_id: str
    promotable: bool
    signed_by: str | None = None
    tree_sha256: Sha256 | None = None


class FileContent(_Document, frozen=True, kw_only=True):
    path: Path
    mode: Mode | None = None
    content_base64: bytes


class InitialExport(_Document, frozen=True, kw_only=True, omit_defaults=False):
    create_repo: bool = True
    repo_name: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    repo_url: Text | None = None
    user_id: Id
    commit_message: Text = "Initial export"
    idempotency_key: Line | None = None
    evidence: Evidence | None = None
    files: tuple[FileContent, ...] = ()


class ExportAnswer(_Document, frozen=True, kw_only=True):
    success: bool
    repo_url: str
    repo_full_name: str
    base_commit_sha: str

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "repo_url", without_login(self.repo_url))


class FileChange(_Document, frozen=True, kw_only=True):
    path: Path
    operation: Operation
    mode: Mode | None = None
    renamed_from: Path | None = None
    before_sha256: Sha256 | None = None
    after_sha256: Sha256 | None = None
    content_base64: bytes | None = None


class PullRequest(_Document, frozen=True, kw_only=True, omit_defaults=False):
    repo_url: Text | None = None
    user_id: Id
    base_commit_sha: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$|^[0-9a-f]{64}$")]
    branch_name: Line
    title: Line
    body: Text = ""
    idempotency_key: Line | None = None
    patch_id: Sha256 | None = None
    evidence: Evidence | None = None
    changes: tuple[FileChange, ...] = ()


class PullRequestAnswer(_Document, frozen=True, kw_only=True):
    pr_url: str
    branch_name: str | None = None
    """Addition."""
    state: Literal["open", "merged", "closed"] | None = None

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "pr_url", without_login(self.pr_url))


class ErrorAnswer(_Document, frozen=True, kw_only=True):
    """How a backend says no. Every member may be missing; code and message may be in `error`, or beside it."""

    code: str = ""
    message: str = ""
    error: ErrorAnswer | None = None
    pr_url: Annotated[str, msgspec.Meta(pattern="^https?://[!-~]{1,2000}$")] | None = None
    """Addition: where a pull request of that branch is already."""
