"""The requests and responses of the API, as frozen structs with the API's names.

    GET  /api/enterprises/{entId}/appgen/spec                → AppSpec
    POST /api/apps/{appId}/deploy/repo/manifest              ManifestRequest → RepoManifest
    POST /api/apps/{appId}/deploy/repo/initial-export        InitialExport → ExportAnswer
    POST /api/apps/{appId}/deploy/repo/pull-requests         PullRequest → PullRequestAnswer

Members that the first version of the API does not have are optional in both directions: an older backend ignores them
in requests and omits them in responses. They are marked as additions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from proofbox.core.files.modes import GitMode

Mode = GitMode
Operation = Literal["add", "modify", "delete"]
# In Python, `$` also matches before a trailing newline, hence `max_length` and `(?!\n)`.
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
ObjectId = Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})$(?!\n)")]
WebUrl = Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]{1,2000}$(?!\n)")]
"""An address that a backend sends and that people open: no other scheme, and no spaces or control characters."""
Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Line = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{1,256}$(?!\n)")]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=1 << 16)]


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


def without_login(url: str | None) -> str | None:
    """Remove a Git credential from a URL that a backend sent."""
    if url is None or "@" not in url:
        return url
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class AppSpec(_Document, frozen=True, kw_only=True):
    """An app's spec. It must not contain secrets. Other members are ignored."""

    app_id: Id
    """The app's id at the backend."""
    app_name: Text | None = None
    """The app's display name."""
    description: Text | None = None
    """A description of the app; a mission generated from the spec starts with it."""
    industry: Text | None = None
    """The app's industry; a mission generated from the spec has it as a tag."""
    owner_user_id: Id | None = None
    """The app's owner; null: unknown."""
    tech_stack: Any = None
    """The app's technologies, in a form that the backend defines."""
    feature_flags: dict[str, Any] | None = None
    """The app's feature flags, by name."""
    git_hub_repo_full_name: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """The repository's name at the backend; null: the app has no repository yet."""
    status: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    """The app's status, defined by the backend; the reference backend uses `exported` once a repository exists."""


class ManifestRequest(_Document, frozen=True, kw_only=True):
    repo_url: Text | None
    """The repository; null: the app's own."""
    user_id: Id
    branch_name: Line | None = None
    """Addition: return the manifest of this branch, with its pull request."""


class ManifestFile(_Document, frozen=True, kw_only=True):
    path: str
    sha256: Sha256
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    mode: Mode | None = None
    """Addition: the Git file mode. Without it, modes are not compared."""


class RepoManifest(_Document, frozen=True, kw_only=True):
    """The files of a commit. `base_commit_sha` is null for an empty repository."""

    base_commit_sha: ObjectId | None
    files: tuple[ManifestFile, ...]
    repo_url: WebUrl | None = None
    """Addition, like all members below."""
    repo_full_name: Name | None = None
    branch_name: Name | None = None
    """The branch of this manifest, if the request named one and the backend supports that."""
    pr_url: WebUrl | None = None
    pr_state: Literal["open", "merged", "closed"] | None = None

    def __post_init__(self) -> None:
        paths = {file.path for file in self.files}
        if len(paths) != len(self.files) or any(part in ("", ".", "..") for path in paths for part in path.split("/")):
            raise ValueError("a path occurs twice, or is not a normalized path inside the repository")
        msgspec.structs.force_setattr(self, "repo_url", without_login(self.repo_url))
        msgspec.structs.force_setattr(self, "pr_url", without_login(self.pr_url))


class Evidence(_Document, frozen=True, kw_only=True):
    """Addition: the evidence that justifies the request."""

    packet_sha256: Sha256
    """The SHA-256 of the promotion packet's file."""
    run_id: str
    """The run that the packet refers to; empty: unreadable."""
    promotable: bool
    """Whether all checks passed: the packet, its verdict, and that this is the proven tree."""
    signed_by: str | None = None
    """The id of the trusted key that signed the packet; null: none, so the evidence is consistent but not proven."""
    tree_sha256: Sha256 | None = None
    """The SHA-256 of the proven tree's manifest; null: the evidence names no tree."""


class UploadedFile(_Document, frozen=True, kw_only=True):
    path: Path
    mode: Mode | None = None
    """The Git file mode; null: a regular file."""
    content_base64: bytes
    """The file's content; for a symbolic link, its target."""


class Export(_Document, frozen=True, kw_only=True, omit_defaults=False):
    """An export without its files, which have contents when sent and digests when recorded."""

    create_repo: bool = True
    """False: fill the existing empty repository."""
    repo_name: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    """The repository's name; null: the backend chooses."""
    repo_url: Text | None = None
    """The repository, if it exists already."""
    user_id: Id
    """The user on whose behalf it is done."""
    commit_message: Text = "Initial export"
    """The message of the first commit."""
    idempotency_key: Line | None = None
    """Equal for equal requests, so that a retry has no effect; null: the client derives it."""
    evidence: Evidence | None = None
    """The evidence that justifies the request; null: no packet was given."""


class InitialExport(Export, frozen=True, kw_only=True, omit_defaults=False):
    files: tuple[UploadedFile, ...] = ()
    """All files."""


class ExportAnswer(_Document, frozen=True, kw_only=True):
    success: bool
    """False: the export failed; the client raises an error."""
    repo_url: WebUrl
    """The repository's URL, without a login."""
    repo_full_name: Name
    """The repository's name at the backend."""
    base_commit_sha: Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{40}|[0-9a-f]{64})?$(?!\n)")]
    """The repository's first commit; empty if the export failed."""

    def __post_init__(self) -> None:
        if self.success and not self.base_commit_sha:
            raise ValueError("a successful export must name a commit")
        msgspec.structs.force_setattr(self, "repo_url", without_login(self.repo_url))


class RepositoryChange(_Document, frozen=True, kw_only=True):
    path: Path
    operation: Operation
    mode: Mode | None = None
    """The new Git file mode; null: unchanged, or the file is deleted."""
    renamed_from: Path | None = None
    """For an added file with the content of a deleted one: the path of the deleted file."""
    before_sha256: Sha256 | None = None
    """The SHA-256 of the old content; null: the file did not exist."""
    after_sha256: Sha256 | None = None
    """The SHA-256 of the new content; null: the file is deleted."""
    content_base64: bytes | None = None
    """The new content; null: the file is deleted, or this is a record."""


class PullRequest(_Document, frozen=True, kw_only=True, omit_defaults=False):
    repo_url: Text | None = None
    """The repository; null: the app's own."""
    user_id: Id
    """The user on whose behalf it is done."""
    base_commit_sha: ObjectId
    """The commit that the changes are made against."""
    branch_name: Line
    """The branch to create for them."""
    title: Line
    """The pull request's title."""
    body: Text = ""
    """The description in Markdown: the changes, and the evidence for them."""
    idempotency_key: Line | None = None
    """Equal for equal requests, so that a retry has no effect; null: the client derives it."""
    patch_id: Sha256 | None = None
    """The digest of the changes; equal changes have equal digests."""
    evidence: Evidence | None = None
    """The evidence that justifies the request; null: no packet was given."""
    changes: tuple[RepositoryChange, ...] = ()
    """The changed files; recorded with digests in place of contents."""


class PullRequestAnswer(_Document, frozen=True, kw_only=True):
    pr_url: WebUrl
    """The pull request's URL, without a login."""
    branch_name: Name | None = None
    """Addition."""
    state: Literal["open", "merged", "closed"] | None = None
    """Addition; null: unknown."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "pr_url", without_login(self.pr_url))


class ErrorAnswer(_Document, frozen=True, kw_only=True):
    """An error response. Every member may be missing; code and message may be in `error` or next to it."""

    code: str = ""
    message: str = ""
    error: ErrorAnswer | None = None
    pr_url: WebUrl | None = None
    """Addition: the URL of the existing pull request for that branch."""
