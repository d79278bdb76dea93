"""What a suite names, copied and digested when a run is planned, so that no later change of it decides anything.

The files that attempts begin with are copied as templates before, and only digested here. Copied are the others:
prompts, tests no agent sees, solutions.
"""

from __future__ import annotations

from pathlib import Path

from proofbox.core.digest import sha256_file
from proofbox.core.overlaying import Overlaid
from proofbox.lab.reading import Suite, pinned_name
from proofbox.lab.tasktree import tree_sha256
from proofbox.workspace.capabilities.grants import PRESETS

PINNED = "pinned"


def pin(suite: Suite, place: Path) -> dict[str, str]:
    """Copy everything to where `suite.at` will look for it, with `place` as its `pinned`; the digest of each, and of
    what templates are made of."""
    named: set[str] = set()
    given: set[str] = set()
    for mission in suite.missions:
        rules = mission.capabilities if mission.capabilities not in PRESETS else None
        found = (mission.prompt_file, mission.solution, rules, mission.verify.files, *mission.verify.mounts.values())
        named.update(path for path in found if path is not None)
        given.update(path for path in (mission.workspace, *mission.files.values()) if path is not None)
    place.mkdir(parents=True)
    digests = {path: _digest(suite.at(path), trusted=True) for path in sorted(given - named)}
    for path in sorted(named):
        copy = pinned_name(path)
        Overlaid(place).put(copy, suite.at(path).resolve())
        digests[path] = _digest(place / copy)
    return digests


def _digest(path: Path, *, trusted: bool = False) -> str:
    return tree_sha256(path, trusted=trusted) if path.is_dir() else sha256_file(path)[0]
