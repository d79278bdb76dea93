"""Which names are not part of a workspace: an explicit list, recorded in every snapshot taken with it.

A pattern without a slash is compared with the name at any depth; one with a slash with the whole path from the root,
part by part, so `*` never crosses a slash. In both `*`, `?` and `[…]` mean what they mean to a shell, case counts, and
what is below an ignored directory is ignored with it. Nothing is ignored that is not listed.
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
                    f"not a pattern of what to ignore: {pattern!r}",
                    op="workspace",
                    fix_hints=["give a name (`node_modules`, `*.pyc`) or a path from the root (`web/dist`)"],
                )
            compiled = [re.compile(fnmatch.translate(part)) for part in parts]
            if "/" in pattern.rstrip("/"):
                self._paths.append(compiled)
            else:
                self._names.append(compiled[0])

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def matches(self, folder: str, name: str) -> bool:
        """Whether to ignore `name` in `folder`, the path of a directory that is not ignored itself."""
        if any(pattern.match(name) for pattern in self._names):
            return True
        if not self._paths:
            return False
        parts = [*folder.split("/"), name] if folder else [name]
        return any(
            len(pattern) == len(parts) and all(each.match(part) for each, part in zip(pattern, parts, strict=True))
            for pattern in self._paths
        )
