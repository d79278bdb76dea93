"""The shape of every stored document as one digest per version: adds the lines of new versions to shapes.txt.

.venv/bin/python tests/schemas/shapes.py

A line is never changed: a document whose shape changes gets a new version. See docs/schema-versions.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from proofbox.cli.commands.setup.contract import make_contract
from proofbox.core.digest import digest_of

SHAPES = Path(__file__).parent / "shapes.txt"
FOR_PEOPLE = ("description", "title", "examples")


def current_shapes() -> dict[str, str]:
    """Return the digest of each stored document's schema, without the texts for people."""
    return {name: digest_of(_bare(facts.json_schema))[:16] for name, facts in sorted(make_contract().stored.items())}


def recorded_shapes() -> dict[str, str]:
    lines = SHAPES.read_text().splitlines() if SHAPES.exists() else []
    return dict(line.split() for line in lines)


def _bare(schema: Any, *, names: bool = False) -> Any:
    """Return a schema without its descriptions; the members of `properties` and `$defs` may have any name."""
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    sql = schema.get("description", "") if "sqlite" in schema.get("contentMediaType", "") else None
    kept = {
        name: _bare(value, names=name in ("properties", "$defs") and not names)
        for name, value in schema.items()
        if names or name not in FOR_PEOPLE
    }
    return kept if sql is None else {**kept, "sql": " ".join(sql.split())}


def main() -> int:
    known = recorded_shapes()
    added = {name: shape for name, shape in current_shapes().items() if name not in known}
    lines = sorted(f"{name} {shape}" for name, shape in {**known, **added}.items())
    SHAPES.write_text("".join(f"{line}\n" for line in lines))
    print(f"shapes: {len(added)} added, {len(lines)} in total", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
