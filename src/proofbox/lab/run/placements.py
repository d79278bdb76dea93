"""Which node of a cluster runs which attempt, and the state of each node, for people who watch a run.

The driver records both in the work directory of the run, which is removed with the commit. Nothing else depends on it.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from proofbox.core.files.atomic import write_document
from proofbox.core.files.nofollow import directory_below
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.evidence.bundle.paths import MAX_JSON_BYTES, read_bounded
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import WORK

NODES = "nodes.json"
PLACED = "placed"
MAX_NAME = 1000
_ATTEMPT_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
"""A mission's id, the number of the replicate, and the number of the retry."""


class Placements:
    """The placements of a run, as its driver records them."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._nodes: dict[str, str] = {}

    def set_node(self, name: str, standing: str) -> None:
        """Record whether a node was admitted, refused or lost."""
        self._nodes[name] = standing
        write_document(self._work / NODES, msgspec.json.encode(self._nodes), sync=False)

    def place(self, attempt: Attempt, node: str) -> None:
        (self._work / PLACED).mkdir(exist_ok=True)
        (self._work / PLACED / _name(attempt)).write_text(node)

    def release(self, attempt: Attempt) -> None:
        (self._work / PLACED / _name(attempt)).unlink(missing_ok=True)


def node_standings(out: Path, run_id: str) -> dict[str, str]:
    """Return the nodes of a run in progress, and whether each was admitted, refused or lost."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return parse_json(_read(out, f"{WORK}/{run_id}", NODES, MAX_JSON_BYTES), dict[str, str])
    return {}


def placed_on(out: Path, run_id: str, attempt: Attempt) -> str | None:
    """Return the node that runs an attempt now; None if it runs on this machine, or not yet.

    The ledger and the directory may have been received, so neither an id nor a link leads anywhere else.
    """
    if not _ATTEMPT_ID.fullmatch(attempt.id):
        return None
    with contextlib.suppress(OSError):
        return _read(out, f"{WORK}/{run_id}/{PLACED}", _name(attempt), MAX_NAME).decode(errors="replace")
    return None


def _read(out: Path, folder: str, name: str, limit: int) -> bytes:
    """Read a file below the output directory, without following links there."""
    top = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with directory_below(top, folder) as place:
            return read_bounded(name, limit, dir_fd=place)
    finally:
        os.close(top)


def _name(attempt: Attempt) -> str:
    return f"{attempt.id}.e{attempt.epoch}"
