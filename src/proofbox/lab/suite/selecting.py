"""Select some missions of a suite.

The result is a separate suite with another digest: evidence of a part of a suite can't be taken for that of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase

from proofbox.core.canonical import parse_strict
from proofbox.core.nearest import nearest
from proofbox.core.spec_files.positions import read_toml
from proofbox.errors import UsageError
from proofbox.lab.suite.reading import Suite, parse_suite


def select_missions(suite: Suite, name: str, globs: Sequence[str], tags: Sequence[str], *, as_json: bool) -> Suite:
    """Return a suite of the missions whose id matches one of `globs` and that have one of `tags`.

    An empty sequence selects all. `as_json` is the format of the suite's source; that of the result is JSON. Raises
    `UsageError` for a pattern or tag that selects nothing.
    """
    kept = selected([(mission.id, mission.tags) for mission in suite.missions], name, globs, tags)
    values = parse_strict(suite.source.encode()) if as_json else read_toml(suite.source)[0]
    source = json.dumps({**values, "mission": [values["mission"][number] for number in kept]}, indent=1)
    return parse_suite(source, base=suite.base, name=name, json=True)


def selected(
    missions: Sequence[tuple[str, Sequence[str]]], name: str, globs: Sequence[str], tags: Sequence[str]
) -> list[int]:
    """Return the positions of the selected missions, each given by its id and tags; `name` is the suite's name."""
    ids = [id for id, _ in missions]
    known = sorted({tag for _, own in missions for tag in own})
    for glob in globs:
        if not any(fnmatchcase(id, glob) for id in ids):
            raise UsageError(f"{name} has no mission {glob[:80]!r}", op="suite", fix_hints=[nearest(glob, ids)])
    for tag in tags:
        if tag not in known:
            hint = nearest(tag, known) if known else "omit --tag: no mission of this suite has tags"
            raise UsageError(f"{name} has no mission with the tag {tag[:80]!r}", op="suite", fix_hints=[hint])

    kept = [
        number
        for number, (id, own) in enumerate(missions)
        if (not globs or any(fnmatchcase(id, glob) for glob in globs)) and (not tags or set(tags) & set(own))
    ]
    if not kept:
        raise UsageError(f"{name} has no mission that matches both the ids and the tags", op="suite")
    return kept
