"""Names that are excluded from a workspace: an explicit list, recorded in every snapshot taken with it.

A pattern without a slash is matched against the name at any depth. A pattern with a slash is matched against the whole
path from the root, component by component, so `*` never matches a slash. `*`, `?` and `[…]` have their shell meaning.
Matching is case-sensitive. Everything below an ignored directory is ignored. Nothing is ignored by default.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from proofbox.errors import UsageError


class Ignore:
    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._names: list[re.Pattern[str]] = []
        self._paths: list[list[re.Pattern[str]]] = []
        for pattern in patterns:
            parts = pattern.strip("/").split("/")
            storable = pattern.encode(errors="replace").decode() == pattern
            if not storable or any(part in ("", ".", "..") for part in parts):
                raise UsageError(
                    f"invalid ignore pattern: {pattern!r}",
                    op="workspace",
                    fix_hints=["use a name (`node_modules`, `*.pyc`) or a path from the root (`web/dist`)"],
                )
            compiled = [re.compile(fnmatch.translate(part)) for part in parts]
            if "/" in pattern.rstrip("/"):
                self._paths.append(compiled)
            else:
                self._names.append(compiled[0])

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def matches(self, folder: str, name: str) -> bool:
        """Return whether to ignore `name` in `folder`, the path of a directory that is not ignored."""
        if any(pattern.match(name) for pattern in self._names):
            return True
        if not self._paths:
            return False
        parts = [*folder.split("/"), name] if folder else [name]
        return any(
            len(pattern) == len(parts) and all(each.match(part) for each, part in zip(pattern, parts, strict=True))
            for pattern in self._paths
        )

    def matches_within(self, path: str) -> bool:
        """Return whether to ignore a path from the root, because of its name or the name of a directory above it."""
        names = path.split("/") if path else []
        return any(self.matches("/".join(names[:at]), name) for at, name in enumerate(names))
