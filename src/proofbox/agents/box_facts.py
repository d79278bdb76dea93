"""What is kept about the box an agent runs in: what was asked of it, what is in force, what it has used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import msgspec

from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.host.usage import observed
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


def variables_of(box: BoxHandle, given: Iterable[str]) -> list[str]:
    """Names of the variables that a program in the box has: the box's own, and those it was given."""
    return sorted({*box.environment, *(name for name in box.forwards if name in os.environ), *given})
