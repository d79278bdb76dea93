"""What does not hold of a run's evidence, as documents list it. A module of its own, because commands print it."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    code: str
    path: str
    detail: str
