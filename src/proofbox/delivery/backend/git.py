"""Run git's plumbing commands: fast-import writes objects, references move by compare-and-swap, nothing is checked out.

Paths and contents are passed on stdin, never in argv, and git uses neither the user's configuration nor hooks.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from proofbox.core.files.programs import find_program, trusted_path
from proofbox.core.text import preview, printable
from proofbox.errors import RepositoryFailed

MAIN = "refs/heads/main"
NOTHING = "0" * 40
MIN_VERSION = (2, 38)
_TEMPORARY = "refs/proofbox/tmp/"
_TIMEOUT = 300
_AUTHOR = "proofbox <proofbox@localhost>"
_OPTIONS = (
    *("-c", "core.fsync=all"),
    *("-c", "core.filesRefLockTimeout=5000"),
    *("-c", "core.hooksPath=/dev/null"),
    # Merges ignore renames, like patchsets: a file renamed on one side and changed on the other is a conflict.
    *("-c", "merge.renames=false"),
)


class Blob(NamedTuple):
    mode: str
    oid: str
    path: str


class Edit(NamedTuple):
    """A file to write, or to delete if it has no content."""

    path: str
    mode: str
    content: bytes | None


class Git:
    """One bare repository."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def create(cls, directory: Path) -> Git:
        made = cls(directory)
        made._run("init", "--quiet", "--bare", "--initial-branch=main", "--template=", str(directory), where=None)
        return made

    def head(self, ref: str = MAIN) -> str | None:
        """Return the commit that a reference points to."""
        done = self._try("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def is_ancestor(self, old: str, new: str) -> bool:
        return self._try("merge-base", "--is-ancestor", old, new).returncode == 0

    def blobs(self, commit: str) -> Iterator[Blob]:
        """Yield the files of a commit, without submodules. A path that is not UTF-8 has surrogate escapes."""
        listing = self._run("ls-tree", "-r", "-z", "--full-tree", commit)
        for line in listing.split(b"\0")[:-1]:
            head, _, path = line.partition(b"\t")
            mode, _, oid = head.decode().split(" ")
            if mode != "160000":
                yield Blob(mode, oid, os.fsdecode(path))

    def contents(self, oids: Sequence[str]) -> Iterator[bytes]:
        """Yield the content of each blob, in order."""
        if not oids:
            return
        feed = "".join(f"{oid}\n" for oid in oids).encode()
        output = self._run("cat-file", "--batch", stdin=feed)
        at = 0
        for _ in oids:
            line_end = output.index(b"\n", at)
            size = int(output[at:line_end].split(b" ")[2])
            yield output[line_end + 1 : line_end + 1 + size]
            at = line_end + 2 + size

    def commit(self, edits: Iterable[Edit], message: str, when: int, parent: str | None = None) -> str:
        """Write a commit that no branch points to yet."""
        ref = _TEMPORARY + secrets.token_hex(8)
        process = subprocess.Popen(
            [_git(), *_OPTIONS, "fast-import", "--quiet", "--done", "--date-format=raw"],
            cwd=self.directory,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdin is not None  # noqa: S101 (a pipe, see above)
        try:
            for piece in _stream(ref, edits, message, when, parent):
                process.stdin.write(piece)
        except BrokenPipeError:
            pass  # git's error message is read below
        except BaseException:
            process.kill()
            process.communicate()
            raise
        output, stderr = process.communicate(timeout=_TIMEOUT)
        if process.returncode != 0:
            raise _failure("fast-import", stderr)
        self._run("update-ref", "-d", ref)
        return output.decode().strip()

    def move(self, ref: str, new: str, old: str) -> None:
        """Move a reference by compare-and-swap: it must point to `old` now, or must not exist if `old` is NOTHING."""
        self._run("update-ref", "--stdin", stdin=f"update {ref} {new} {old}\n".encode())

    def delete(self, ref: str) -> None:
        self._run("update-ref", "-d", ref)

    def merge(self, ours: str, theirs: str, message: str, when: int) -> str | None:
        """Return a merge commit of the two, or None if they conflict. No reference moves."""
        done = self._try("merge-tree", "--write-tree", "--no-messages", "--name-only", ours, theirs)
        if done.returncode == 1:
            return None
        if done.returncode != 0:
            raise _failure("merge-tree", done.stderr)
        tree = done.stdout.decode().split("\n")[0].strip()
        dates = {"GIT_AUTHOR_DATE": f"{when} +0000", "GIT_COMMITTER_DATE": f"{when} +0000"}
        argv = ["commit-tree", tree, "-p", ours, "-p", theirs, "-F", "-"]
        return self._run(*argv, stdin=message.encode(), env=dates).decode().strip()

    def diff(self, old: str, new: str, limit: int) -> tuple[str, bool]:
        """Return the diff of two commits as text, and whether it was truncated."""
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "-M", "--stat=100", "--patch"]
        return preview(self._run("diff", *options, old, new), limit)

    def recover(self) -> None:
        """Remove the leftovers of a killed git process. Call it only while no other process uses the repository."""
        for lock in (self.directory / "refs").rglob("*.lock"):
            lock.unlink(missing_ok=True)
        for name in ("packed-refs.lock", "HEAD.lock", "config.lock"):
            (self.directory / name).unlink(missing_ok=True)
        for ref in self._run("for-each-ref", "--format=%(refname)", _TEMPORARY).decode().split():
            self.delete(ref)

    def serve(self, *words: str, stdin: bytes = b"") -> bytes:
        """Run one read-only exchange of git's smart protocol."""
        return self._run("upload-pack", "--stateless-rpc", "--strict", *words, ".", stdin=stdin)

    def _run(
        self, *words: str, stdin: bytes = b"", where: Path | None = Path(), env: dict[str, str] | None = None
    ) -> bytes:
        done = self._try(*words, stdin=stdin, where=where, env=env)
        if done.returncode != 0:
            raise _failure(words[0], done.stderr)
        return done.stdout

    def _try(
        self, *words: str, stdin: bytes = b"", where: Path | None = Path(), env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [_git(), *_OPTIONS, *words],
            cwd=self.directory if where is not None else None,
            env={**_environment(), **(env or {})},
            input=stdin,
            capture_output=True,
            timeout=_TIMEOUT,
        )


def check_git() -> None:
    """Check for a git version that can merge without a working tree."""
    try:
        output = subprocess.run([_git(), "--version"], env=_environment(), capture_output=True, text=True).stdout
        found = tuple(int(part) for part in output.split()[2].split(".")[:2])
    except (OSError, IndexError, ValueError):
        found = (0, 0)
    if found < MIN_VERSION:
        raise RepositoryFailed(
            f"the reference backend needs git {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer",
            op="backend",
            fix_hints=["install it: apt-get install git"],
            details={"found": ".".join(map(str, found))},
        )


def blob_id(content: bytes) -> str:
    """Return git's object id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git() -> str:
    found = find_program("git")
    if found is None:
        raise RepositoryFailed("git is not installed", op="backend", fix_hints=["install it: apt-get install git"])
    return found


def _environment() -> dict[str, str]:
    return {
        "PATH": trusted_path(),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "proofbox",
        "GIT_AUTHOR_EMAIL": "proofbox@localhost",
        "GIT_COMMITTER_NAME": "proofbox",
        "GIT_COMMITTER_EMAIL": "proofbox@localhost",
    }


def _stream(ref: str, edits: Iterable[Edit], message: str, when: int, parent: str | None) -> Iterator[bytes]:
    text = message.encode()
    yield f"commit {ref}\nmark :1\nauthor {_AUTHOR} {when} +0000\ncommitter {_AUTHOR} {when} +0000\n".encode()
    yield b"data %d\n%b\n" % (len(text), text)
    if parent is not None:
        yield f"from {parent}\n".encode()
    for edit in edits:
        path = b'"' + edit.path.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
        if edit.content is None:
            yield b"D %b\n" % path
        else:
            yield b"M %b inline %b\ndata %d\n" % (edit.mode.encode(), path, len(edit.content))
            yield edit.content
            yield b"\n"
    yield b"get-mark :1\ndone\n"


def _failure(command: str, stderr: bytes) -> RepositoryFailed:
    words = printable(preview(stderr, 500)[0]).replace("\n", " ").strip()
    return RepositoryFailed(f"git {command} failed: {words}", op="backend git")
