"""Validation rules of the reference backend for paths, links, branches and texts, and its error type."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from proofbox.delivery.backend.git import Edit
from proofbox.delivery.source import names

_BRANCH = re.compile(r"(?!-)[A-Za-z0-9._/-]{1,200}")
_NOT_IN_SLUG = re.compile(r"[^a-z0-9._-]+")


class BackendRefusal(Exception):
    """A request that the backend understands and refuses, as an HTTP status and a code."""

    def __init__(self, status: int, code: str, message: str, pr_url: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.pr_url = pr_url


def check_edits(edits: Sequence[Edit], max_file: int) -> None:
    paths = [edit.path for edit in edits]
    for edit in edits:
        wrong = names.problem(edit.path) or ("it belongs to git" if names.is_git(edit.path) else "")
        if wrong:
            raise BackendRefusal(422, "path_invalid", f"{edit.path[:200]!r}: {wrong}")
        if edit.content is not None and len(edit.content) > max_file:
            raise BackendRefusal(413, "file_too_large", f"{edit.path[:200]!r} is larger than {max_file} bytes")
        if edit.mode == "120000" and edit.content is not None:
            target = edit.content.decode("utf-8", "surrogateescape")
            if len(target) > names.MAX_PATH or names.leads_out(edit.path, target):
                raise BackendRefusal(422, "link_leads_out", f"{edit.path[:200]!r} points outside the repository")
    if len(set(paths)) != len(paths):
        raise BackendRefusal(422, "path_twice", "a path occurs twice")
    check_clashes({edit.path for edit in edits if edit.content is not None})


def check_clashes(paths: set[str]) -> None:
    for path in paths:
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            if above in paths:
                raise BackendRefusal(422, "path_clash", f"{above[:200]!r} would be both a file and a directory")


def check_text(*texts: str) -> None:
    for text in texts:
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise BackendRefusal(422, "text_invalid", "the text contains characters that a commit cannot contain")


def check_branch(branch: str) -> None:
    """Check git's rules for branch names and narrower ones: a limited alphabet, and no other reference's name."""
    parts = branch.split("/")
    if (
        not _BRANCH.fullmatch(branch)
        or branch.lower() == "main"
        or branch.upper().endswith("HEAD")
        or parts[0] == "refs"
        or ".." in branch
        or branch.endswith(".")
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    ):
        raise BackendRefusal(422, "branch_invalid", "this is not a valid branch name for a pull request")


def digest_of_id(app: str) -> str:
    return hashlib.sha256(app.encode()).hexdigest()


def slug(text: str) -> str:
    """Return a URL-safe form of a name. A digest keeps different names distinct."""
    plain = _NOT_IN_SLUG.sub("-", text.lower()).strip("-.") or "app"
    return plain if plain == text and len(plain) <= 60 else f"{plain[:50]}-{digest_of_id(text)[:8]}"
