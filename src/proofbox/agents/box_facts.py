"""Facts about an agent's box for the record: the requested policy, the policy in force, and the resources used."""

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
    """Return the names of a program's variables: those of the box, and those it was started with."""
    return sorted({*box.environment, *(name for name in box.forwards if name in os.environ), *given})
