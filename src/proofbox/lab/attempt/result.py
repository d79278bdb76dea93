"""The result of an attempt. Every document that states one has these members."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from proofbox.lab.attempt.claims import Claim

Verified = Literal["passed", "failed", "none"]


class AttemptResult(msgspec.Struct, frozen=True, kw_only=True):
    strategy: str
    """The runtime that was used; empty if no agent started."""
    claimed: Claim
    verified: Verified
    infra: str | None
    """The code of the infrastructure failure; null if there was no failure."""
    reason: str

    @property
    def members(self) -> dict[str, Any]:
        """The members of a result, without those that a subclass adds: for another document that states the result."""
        return {name: getattr(self, name) for name in RESULT_MEMBERS}


RESULT_MEMBERS = AttemptResult.__struct_fields__
