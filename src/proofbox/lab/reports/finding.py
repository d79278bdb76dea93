"""Findings about a run's evidence. In a separate module, so that `--help` does not import the validation code."""

from __future__ import annotations

import msgspec


class EvidenceFinding(msgspec.Struct, frozen=True):
    """A problem in a run's evidence: its code, the file, and what is wrong with it."""

    code: str
    path: str
    detail: str
