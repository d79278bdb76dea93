"""Render a patchset for people: the changes, as diffs where the old text is known, and files that are not changed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator

from proofbox.core.plurals import counted
from proofbox.core.text import preview, printable
from proofbox.delivery.patch.patchset import PatchChange, Patchset
from proofbox.delivery.source.tree import SourceFile, SourceTree

_MAX_BYTES = 256 << 10
_MAX_LINES = 2000  # per file: comparing takes time proportional to the product of both lengths
_MAX_LINE_LENGTH = 400

Before = Callable[[str | None], bytes | None]
"""Returns the content for a digest, if it is known."""


def render(patch: Patchset, tree: SourceTree, before: Before, *, most: int = 4000) -> str:
    """Render at most `most` lines, and then the number of omitted lines."""
    lines = list(_lines(patch, tree, before))
    if len(lines) > most:
        lines = [*lines[:most], f"… {len(lines) - most} more lines; with --json every change is listed"]
    return "\n".join(printable(preview(line, _MAX_LINE_LENGTH)[0]).replace("\n", "\\n") for line in lines)


def _lines(patch: Patchset, tree: SourceTree, before: Before) -> Iterator[str]:
    base = f"against {patch.base_commit_sha[:12]}" if patch.base_commit_sha else "for a new repository"
    yield f"{counted(len(patch.changes), 'change')} {base}, patch {patch.patch_id[:16]}"
    yield f"{counted(patch.unchanged, 'file')} unchanged, {patch.not_ours} other files in the repository"
    for left in tree.left_out:
        yield f"left out  {left.path} ({left.reason})"
    for path in patch.kept:
        yield f"kept      {path} (changed in the repository by others)"
    for conflict in patch.conflicts:
        yield f"CONFLICT  {conflict.path} ({conflict.kind}{': ' + conflict.detail if conflict.detail else ''})"
        sides = (("exported", conflict.baseline_sha256), ("repository", conflict.repo_sha256))
        for name, digest in (*sides, ("source", conflict.source_sha256)):
            yield f"            {name:<10} {digest[:16] if digest else 'missing'}"
    files = {file.path: file for file in tree.files}
    for change in patch.changes:
        if change.renamed_to is None:
            yield ""
            yield from _change(change, files.get(change.path), before)


def _change(change: PatchChange, file: SourceFile | None, before: Before) -> Iterator[str]:
    if change.renamed_from is not None:
        yield f"rename    {change.renamed_from} → {change.path}"
        return
    mode = ""
    if change.operation == "add" and change.after_mode in _MODES:
        mode = f", {_MODES[change.after_mode]}"
    elif change.operation == "modify" and change.before_mode not in (None, change.after_mode):
        mode = f", mode {change.before_mode} → {change.after_mode}"
    size = f" ({change.size} bytes{mode})" if file else ""
    yield f"{change.operation:<9} {change.path}{size}"
    if change.operation == "modify" and change.before_sha256 == change.after_sha256:
        return
    old = b"" if change.operation == "add" else before(change.before_sha256)
    new = b"" if file is None else b"".join(file.pieces()) if file.size <= _MAX_BYTES else None
    if old is None and change.operation == "delete":
        return
    one, other = _text(old), _text(new)
    if one is None or other is None:
        yield f"  {(change.before_sha256 or 'nothing')[:16]} → {(change.after_sha256 or 'nothing')[:16]}"
        return
    from_name = "/dev/null" if change.operation == "add" else f"a/{change.path}"
    to_name = "/dev/null" if change.operation == "delete" else f"b/{change.path}"
    yield from (line.rstrip("\n") for line in difflib.unified_diff(one, other, from_name, to_name))


_MODES = {"100755": "executable", "120000": "a link"}


def _text(data: bytes | None) -> list[str] | None:
    """Return the lines, or None if the data is unknown, binary or too large."""
    if data is None or b"\0" in data[:8000] or len(data) > _MAX_BYTES:
        return None
    try:
        lines = data.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None
    return lines if len(lines) <= _MAX_LINES else None
