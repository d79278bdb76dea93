"""What is kept about the box an agent runs in: what was asked of it, what is in force, what it has used."""

from __future__ import annotations

from typing import Any

import msgspec

from proofbox.sandbox.observing import observed
from proofbox.sandbox.sessions import SessionInfo


def box_facts(box: SessionInfo) -> dict[str, Any]:
    return {
        "provider": box.provider,
        "isolation": box.isolation.value,
        "sandboxed": box.isolation.value != "none",
        "network": box.policy.network,
        "policy": msgspec.to_builtins(box.policy, enc_hook=str),
        "observed": msgspec.to_builtins(observed(box.id)),
    }
