"""Paths that a snapshot cannot answer for are not reported as absent."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proofbox.lab.attempt.final_tree import NOTHING, finder
from proofbox.workspace.model import SkippedPath
from proofbox.workspace.workspace import Workspace


def test_content_of_an_unreadable_directory_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    with Workspace.init(tmp_path / "ws", track=False) as workspace:
        final = workspace.snapshot("final")
        find = finder(workspace, msgspec.structs.replace(final, skipped=(SkippedPath("closed", "Permission denied"),)))
        below = find(("closed", "x"), None)
        assert (below.there, below.what) == (None, "closed is not in the snapshot: Permission denied")
        assert find(("closed",), None).there is True
        assert find(("other",), None) == NOTHING
