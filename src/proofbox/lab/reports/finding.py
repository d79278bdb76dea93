"""Findings about a run's evidence. In a module of their own, so that `--help` does not import the validation code."""

from __future__ import annotations

import msgspec


class EvidenceFinding(msgspec.Struct, frozen=True):
    code: str
    path: str
    detail: str
