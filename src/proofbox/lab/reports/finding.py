"""Findings about a run's evidence. Apart from the code that finds them, so that `--help` does not load that."""

from __future__ import annotations

import msgspec


class EvidenceFinding(msgspec.Struct, frozen=True):
    code: str
    path: str
    detail: str
