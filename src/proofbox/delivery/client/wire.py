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

from proofbox.core.files.modes import GitMode

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
    """The app's id at the backend."""
    app_name: Text | None = None
    """What people call it."""
    description: Text | None = None
    """What it is to be; a mission made from it begins with this."""
    industry: Text | None = None
    """Whom it is for; a mission made from it has it as a tag."""
    owner_user_id: Id | None = None
    """Whose it is; null: the backend does not say."""
    tech_stack: Any = None
    """What it is built with, in whatever form the backend has it."""
    feature_flags: dict[str, Any] | None = None
    """Switches of the app, by name."""
    git_hub_repo_full_name: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    """The repository's name at the backend; null: it has none yet."""
    status: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    """Where it stands, in the backend's words; the reference backend says `exported` once there is a repository."""


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
    """Of the promotion packet's file."""
    run_id: str
    """The run that the packet speaks of; empty: none could be read from it."""
    promotable: bool
    """Everything held: the packet, its verdict, and that this is the tree it speaks of."""
    signed_by: str | None = None
    """The id of the trusted key that signed the packet; null: none did, so that it is consistent and not proven."""
    tree_sha256: Sha256 | None = None
    """Of the tree that the evidence is about, by its manifest; null: it names none."""


class UploadedFile(_Document, frozen=True, kw_only=True):
    path: Path
    mode: Mode | None = None
    """Git's; null: an ordinary file."""
    content_base64: bytes
    """The file's bytes; of a symbolic link, its target."""


class Export(_Document, frozen=True, kw_only=True, omit_defaults=False):
    """An export but for its files: those that are sent have their content, those on record their digests."""

    create_repo: bool = True
    """False: the repository is there, empty, and is to be filled."""
    repo_name: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    """What to call the repository; null: the backend decides."""
    repo_url: Text | None = None
    """The repository, where it is there already."""
    user_id: Id
    """For whom it is done."""
    commit_message: Text = "Initial export"
    """Of the first commit."""
    idempotency_key: Line | None = None
    """The same for the same request, so that it is done once; null: the client makes it."""
    evidence: Evidence | None = None
    """By what right it is sent; null: no packet was given."""


class InitialExport(Export, frozen=True, kw_only=True, omit_defaults=False):
    files: tuple[UploadedFile, ...] = ()
    """All of them."""


class ExportAnswer(_Document, frozen=True, kw_only=True):
    success: bool
    """False: it was not made; that is an error here."""
    repo_url: str
    """The repository's address, without a login."""
    repo_full_name: str
    """The repository's name at the backend."""
    base_commit_sha: str
    """The commit that it has now."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "repo_url", without_login(self.repo_url))


class RepositoryChange(_Document, frozen=True, kw_only=True):
    path: Path
    operation: Operation
    mode: Mode | None = None
    """Git's, after it; null: it stays what it was, or the file goes."""
    renamed_from: Path | None = None
    """Of an added file with the content of a deleted one: where that was."""
    before_sha256: Sha256 | None = None
    """Of the content before; null: it was not there."""
    after_sha256: Sha256 | None = None
    """Of the content after; null: it is gone."""
    content_base64: bytes | None = None
    """The bytes after; null: it is gone, or this is a record."""


class PullRequest(_Document, frozen=True, kw_only=True, omit_defaults=False):
    repo_url: Text | None = None
    """The repository; null: the app's own, whichever that is."""
    user_id: Id
    """For whom it is done."""
    base_commit_sha: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$|^[0-9a-f]{64}$")]
    """The commit that the changes are made against."""
    branch_name: Line
    """The branch that is made for them."""
    title: Line
    """Of the pull request."""
    body: Text = ""
    """What it says, in Markdown: what changes, and by what right."""
    idempotency_key: Line | None = None
    """The same for the same request, so that it is done once; null: the client makes it."""
    patch_id: Sha256 | None = None
    """The digest of the changes themselves: the same changes have the same."""
    evidence: Evidence | None = None
    """By what right it is sent; null: no packet was given."""
    changes: tuple[RepositoryChange, ...] = ()
    """File by file; on record without the bytes, which their digests name."""


class PullRequestAnswer(_Document, frozen=True, kw_only=True):
    pr_url: str
    """Where the pull request is, without a login."""
    branch_name: str | None = None
    """Addition."""
    state: Literal["open", "merged", "closed"] | None = None
    """Addition; null: the backend does not say."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "pr_url", without_login(self.pr_url))


class ErrorAnswer(_Document, frozen=True, kw_only=True):
    """How a backend says no. Every member may be missing; code and message may be in `error`, or beside it."""

    code: str = ""
    message: str = ""
    error: ErrorAnswer | None = None
    pr_url: Annotated[str, msgspec.Meta(pattern="^https?://[!-~]{1,2000}$")] | None = None
    """Addition: where a pull request of that branch is already."""
