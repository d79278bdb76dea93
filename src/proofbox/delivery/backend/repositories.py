"""Repositories and pull requests: one repository per app and one pull request per branch, despite retries and crashes.

One thread at a time works on an app. It first finishes or undoes operations that a crash has interrupted: a repository
that was never acknowledged is created again in another directory; a pull request whose objects are written is opened; a
merge that moved the branch counts as done, any other does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.files.removal import remove_tree
from proofbox.delivery.backend.contents import edits_of, files_of, remember
from proofbox.delivery.backend.git import MAIN, NOTHING, Edit, Git, check_git
from proofbox.delivery.backend.ledger import BackendDatabase, Pull, Repository
from proofbox.delivery.backend.rules import (
    BackendRefusal,
    check_branch,
    check_edits,
    check_text,
    digest_of_id,
    slug,
)
from proofbox.delivery.backend.specs import Specs
from proofbox.delivery.client.wire import (
    ExportAnswer,
    InitialExport,
    ManifestRequest,
    PullRequest,
    PullRequestAnswer,
    RepoManifest,
)
from proofbox.errors import RepositoryFailed


class Repositories:
    """The contents of a data directory. `idempotent=False` ignores idempotency keys, like a simpler backend."""

    def __init__(
        self, data: Path, url: str, *, clock: Clock | None = None, idempotent: bool = True, max_file: int = 100 << 20
    ) -> None:
        check_git()
        self.url = url.rstrip("/")
        self._clock: Clock = clock or SystemClock()
        self._idempotent = idempotent
        self._max_file = max_file
        self._data = data
        (data / "repos").mkdir(mode=0o700, parents=True, exist_ok=True)
        self._held = _hold(data / "lock")
        self.ledger = BackendDatabase(data / "backend.db")
        self.specs = Specs(self.ledger)
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        for repository in self.ledger.repositories():
            if repository.state == "ready":
                self._git(repository).recover()
            with self._working(repository.app):
                pass
        for leftover in (data / "repos").iterdir():
            if leftover.name not in {repository.directory for repository in self.ledger.repositories()}:
                remove_tree(leftover)

    def close(self) -> None:
        self.ledger.close()
        os.close(self._held)

    # The three operations

    def manifest(self, app: str, request: ManifestRequest) -> RepoManifest:
        self.specs.check_owner(app, request.user_id)
        with self._working(app):
            repository, git = self._ready(app, request.repo_url)
            ref, pull = MAIN, None
            if request.branch_name is not None:
                pull = self._pull_of(app, request.branch_name)
                if pull is None:
                    raise BackendRefusal(404, "branch_unknown", "no pull request has this branch")
                ref = pull.head
            commit = git.head(ref)
            return RepoManifest(
                base_commit_sha=commit,
                files=tuple(files_of(git, commit, self.ledger)) if commit else (),
                repo_url=self._url(repository),
                repo_full_name=repository.full_name,
                branch_name=pull.branch if pull else None,
                pr_url=self.pull_url(pull) if pull else None,
                pr_state=_shown_state(pull) if pull else None,
            )

    def export(self, app: str, request: InitialExport, key: str | None, digest: str) -> ExportAnswer:
        self.specs.check_owner(app, request.user_id)
        edits = [Edit(file.path, file.mode or "100644", file.content_base64) for file in request.files]
        check_edits(edits, self._max_file)
        check_text(request.commit_message)
        with self._working(app):
            if (before := self._answered(app, "export", key, digest)) is not None:
                return msgspec.json.decode(before, type=ExportAnswer)
            if self.ledger.repository(app) is not None:
                raise BackendRefusal(409, "repository_exists", "the app already has a repository")
            if not request.create_repo:
                raise BackendRefusal(404, "repository_unknown", "the app has no repository, and createRepo is false")
            if not edits:
                raise BackendRefusal(422, "nothing_to_export", "an export must have at least one file")
            directory = f"{digest_of_id(app)[:32]}-{secrets.token_hex(4)}.git"
            full_name = f"{slug(app)}/{slug(request.repo_name or app)}"
            made = Repository(app, full_name, directory, "pending", isoformat(self._clock.now()))
            self.ledger.add_repository(made)
            git = Git.create(self._data / "repos" / directory)
            commit = git.commit(edits, request.commit_message or "Initial export", self._when())
            git.move(MAIN, commit, NOTHING)
            answer = ExportAnswer(
                success=True, repo_url=self._url(made), repo_full_name=full_name, base_commit_sha=commit
            )
            with self.ledger.transaction():
                remember(edits, self.ledger)
                self.ledger.repository_is_ready(app)
                self.specs.note_repository(app, full_name)
                self._answer(app, "export", key, digest, answer)
            return answer

    def propose(self, app: str, request: PullRequest, key: str | None, digest: str) -> PullRequestAnswer:
        self.specs.check_owner(app, request.user_id)
        check_branch(request.branch_name)
        check_text(request.title, request.body)
        with self._working(app):
            if (before := self._answered(app, "pull", key, digest)) is not None:
                return msgspec.json.decode(before, type=PullRequestAnswer)
            _, git = self._ready(app, request.repo_url)
            there = self._pull_of(app, request.branch_name)
            if there is not None:
                raise BackendRefusal(
                    409, "branch_exists", "a pull request with this branch already exists", self.pull_url(there)
                )
            if git.head(request.base_commit_sha) is None or not git.is_ancestor(request.base_commit_sha, MAIN):
                raise BackendRefusal(409, "base_unknown", "the base commit is not part of the main branch")
            edits = edits_of(git, request.base_commit_sha, request.changes, self._max_file)
            head = git.commit(edits, f"{request.title}\n\n{request.body}", self._when(), request.base_commit_sha)
            number = max((pull.number for pull in self.ledger.pulls(app)), default=0) + 1
            pull = Pull(
                app=app,
                number=number,
                branch=request.branch_name,
                title=request.title,
                body=request.body,
                base=request.base_commit_sha,
                head=head,
                state="pending",
                user=request.user_id,
                created_at=isoformat(self._clock.now()),
                evidence=msgspec.json.encode(request.evidence) if request.evidence else None,
            )
            answer = self._opened(pull)
            with self.ledger.transaction():
                remember(edits, self.ledger)
                self.ledger.add_pull(pull)
                self._answer(app, "pull", key, digest, answer)
            self._open(git, pull)
            return answer

    # Operations of the pages

    def merge(self, app: str, number: int) -> Pull:
        with self._working(app):
            _, git = self._ready(app, None)
            pull = self._numbered(app, number)
            main = git.head()
            if pull.state != "open" or main is None:
                raise BackendRefusal(409, "not_open", f"the pull request is {pull.state}")
            commit = git.merge(main, pull.head, f"Merge #{number}: {pull.title}\n", self._when())
            if commit is None:
                raise BackendRefusal(409, "merge_conflict", "it conflicts with later changes on main")
            merging = msgspec.structs.replace(pull, state="merging", merge=commit)
            self.ledger.update_pull(merging)
            git.move(MAIN, commit, main)
            return self._settle_merge(git, merging)

    def close_pull(self, app: str, number: int) -> Pull:
        with self._working(app):
            pull = self._numbered(app, number)
            if pull.state != "open":
                raise BackendRefusal(409, "not_open", f"the pull request is {pull.state}")
            return self.ledger.update_pull(msgspec.structs.replace(pull, state="closed"))

    def repositories(self) -> list[Repository]:
        return [each for each in self.ledger.repositories() if each.state == "ready"]

    def pulls(self, app: str) -> list[Pull]:
        with self._working(app):
            return self.ledger.pulls(app)

    def pull(self, app: str, number: int) -> Pull:
        with self._working(app):
            return self._numbered(app, number)

    def files(self, app: str) -> RepoManifest:
        """Return the manifest of main, for a page."""
        with self._working(app):
            repository, git = self._ready(app, None)
            commit = git.head()
            found = tuple(files_of(git, commit, self.ledger)) if commit else ()
            return RepoManifest(base_commit_sha=commit, files=found, repo_url=self._url(repository))

    def diff(self, pull: Pull, limit: int) -> tuple[str, bool]:
        _, git = self._ready(pull.app, None)
        return git.diff(pull.base, pull.head, limit)

    def git_of(self, full_name: str) -> Git:
        repository = self.ledger.named(full_name)
        if repository is None:
            raise BackendRefusal(404, "repository_unknown", "no such repository")
        return self._git(repository)

    def pull_url(self, pull: Pull) -> str:
        return f"{self.url}/apps/{quote(pull.app, safe='')}/pulls/{pull.number}"

    # Helpers

    @contextlib.contextmanager
    def _working(self, app: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks.setdefault(app, threading.Lock())
        with lock:
            self._reconcile(app)
            yield

    def _reconcile(self, app: str) -> None:
        """Finish or undo operations that a crash or a git failure has interrupted."""
        repository = self.ledger.repository(app)
        if repository is None:
            return
        if repository.state == "pending":
            remove_tree(self._data / "repos" / repository.directory)
            self.ledger.drop_repository(app)
            return
        git = self._git(repository)
        for pull in self.ledger.pulls(app):
            if pull.state == "pending":
                with contextlib.suppress(BackendRefusal):
                    self._open(git, pull)
            elif pull.state == "merging":
                self._settle_merge(git, pull)

    def _open(self, git: Git, pull: Pull) -> None:
        ref = f"refs/heads/{pull.branch}"
        try:
            if git.head(ref) != pull.head:
                git.move(ref, pull.head, NOTHING)
        except RepositoryFailed as error:
            # Someone pushed this branch, or its name conflicts with another branch's.
            self.ledger.drop_pull(pull, msgspec.json.encode(self._opened(pull)))
            raise BackendRefusal(
                409, "branch_exists", "the repository already has this branch, or one with a conflicting name"
            ) from error
        self.ledger.update_pull(msgspec.structs.replace(pull, state="open"))

    def _opened(self, pull: Pull) -> PullRequestAnswer:
        return PullRequestAnswer(pr_url=self.pull_url(pull), branch_name=pull.branch, state="open")

    def _settle_merge(self, git: Git, pull: Pull) -> Pull:
        moved = pull.merge is not None and git.is_ancestor(pull.merge, MAIN)
        return self.ledger.update_pull(msgspec.structs.replace(pull, state="merged" if moved else "open"))

    def _ready(self, app: str, repo_url: str | None) -> tuple[Repository, Git]:
        repository = self.ledger.repository(app)
        if repository is None or repository.state != "ready":
            raise BackendRefusal(404, "repository_unknown", "the app has no repository")
        if repo_url and repo_url.rstrip("/").removesuffix(".git") != self._url(repository).removesuffix(".git"):
            raise BackendRefusal(404, "repository_unknown", "the app has no repository at this URL")
        return repository, self._git(repository)

    def _git(self, repository: Repository) -> Git:
        return Git(self._data / "repos" / repository.directory)

    def _url(self, repository: Repository) -> str:
        return f"{self.url}/git/{repository.full_name}.git"

    def _numbered(self, app: str, number: int) -> Pull:
        for pull in self.ledger.pulls(app):
            if pull.number == number:
                return pull
        raise BackendRefusal(404, "pull_request_unknown", "no such pull request")

    def _pull_of(self, app: str, branch: str) -> Pull | None:
        return next((pull for pull in self.ledger.pulls(app) if pull.branch == branch), None)

    def _answered(self, app: str, op: str, key: str | None, digest: str) -> bytes | None:
        """Return the stored response to this request."""
        found = self.ledger.answer(app, op, key) if key and self._idempotent else None
        if found is None:
            return None
        stored_digest, body = found
        if stored_digest != digest:
            raise BackendRefusal(422, "idempotency_key_reused", "the idempotency key was used for another request")
        return body

    def _answer(self, app: str, op: str, key: str | None, digest: str, answer: msgspec.Struct) -> None:
        if key and self._idempotent:
            self.ledger.put_answer(app, op, key, digest, msgspec.json.encode(answer))

    def _when(self) -> int:
        return int(self._clock.now().timestamp())


def _hold(path: Path) -> int:
    """Lock the data directory: only one backend may use it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise RepositoryFailed(
            f"another backend uses {path.parent}",
            op="backend",
            fix_hints=["stop it, or use another directory: --data DIR"],
        ) from None
    return fd


def _shown_state(pull: Pull) -> Literal["open", "merged", "closed"]:
    return "open" if pull.state == "pending" or pull.state == "merging" else pull.state
