"""The entries of a tree manifest for a directory."""

from __future__ import annotations

import os
from pathlib import Path

from proofbox.core.digest import sha256_hex
from proofbox.core.files.modes import git_mode
from proofbox.evidence.documents.tree import TreeEntry


def scan_tree(root: Path) -> list[TreeEntry]:
    """Return an entry for every file and link below a directory, except those of git."""
    found = [path for path in root.rglob("*") if path.is_symlink() or path.is_file()]
    return sorted(_entry(root, path) for path in found if path.relative_to(root).parts[0] != ".git")


def _entry(root: Path, path: Path) -> TreeEntry:
    content = os.readlink(os.fsencode(path)) if path.is_symlink() else path.read_bytes()
    mode = "120000" if path.is_symlink() else git_mode(path.stat().st_mode)
    return TreeEntry(os.fsencode(path.relative_to(root)), mode, len(content), sha256_hex(content))
