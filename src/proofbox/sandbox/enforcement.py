"""Start a box: the one place that every start passes through.

A policy that the provider can't enforce here is refused by name, with a reason for each part of it, before the provider
is called. Steps that no provider may forget are taken here as well: the default policy, and the mounts that hide
parts of the project and protect proofbox's own files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from proofbox.errors import PathRefused, PolicyRefused
from proofbox.sandbox.contract import Box, BoxSpec, CheckedSpec, Enforcement, Isolation, Policy, Provider
from proofbox.sandbox.covering import placed


def start_box(provider: Provider, spec: BoxSpec) -> Box:
    """Start a box, or raise what `Provider.start` may raise, and leave nothing behind."""
    enforced = provider.enforcement(spec.policy)
    refuse_unenforceable(provider.name, spec.policy, enforced, detached=spec.listen is not None)
    policy = msgspec.structs.replace(
        spec.policy,
        network=spec.policy.network or ("none" if enforced.network_none else "full"),
        access=spec.policy.access or "rw",
    )
    try:
        mounts = tuple(placed(spec.project, policy)) if enforced.filesystem else ()
    except FileNotFoundError as error:  # it was there when the policy was checked
        raise PathRefused(f"{error.filename} was removed while the box started", op="start") from None
    return provider.start(CheckedSpec(**{**msgspec.structs.asdict(spec), "policy": policy}, placed=mounts))


def refuse_unenforceable(provider: str, policy: Policy, enforced: Enforcement, *, detached: bool = False) -> None:
    """Raise PolicyRefused if a part of the policy is not enforced; `detached`: the box outlives its client."""
    refused = _unenforced(policy, enforced, detached=detached)
    if refused:
        raise PolicyRefused(
            f"{provider} can't enforce "
            + "; ".join(f"{name} ({reason})" if reason else name for name, reason in refused.items()),
            op="start",
            fix_hints=[*_other_providers(provider, policy, detached=detached), "omit the request"],
            details={"provider": provider, "refused": refused},
        )


def _other_providers(refusing: str, policy: Policy, *, detached: bool) -> Iterator[str]:
    """Yield a hint for each other sandbox that can enforce the policy on this system."""
    from proofbox.sandbox.providers import PROVIDERS, provider_named

    for name in PROVIDERS:
        other = provider_named(name)
        if name == refusing or other.isolation is Isolation.NONE or os.uname().sysname not in other.systems:
            continue
        if not _unenforced(policy, other.enforcement(policy), detached=detached):
            yield f"use a provider that can enforce it: --provider {name}"


def _unenforced(policy: Policy, enforced: Enforcement, *, detached: bool) -> dict[str, str]:
    """Return each part of the policy that is not enforced, with the reason."""
    requested = {
        "network none": (policy.network == "none", enforced.network_none),
        "network allow": (policy.network == "allow", enforced.network_allow),
        "access ro": (policy.access == "ro", enforced.access_ro),
        "access overlay": (policy.access == "overlay", enforced.access_overlay),
        "layers": (policy.layers is not None, enforced.layers),
        "disk": (policy.disk_mb is not None, enforced.disk),
        "mounts": (bool(policy.mounts), enforced.mounts),
        "doors": (bool(policy.doors), enforced.network_none and "doors" not in enforced.gaps),
        "hidden": (bool(policy.hidden or policy.frozen), enforced.hidden),
        "image": (policy.image is not None, enforced.images),
        "runtime": (policy.runtime is not None, enforced.runtimes),
        "memory": (policy.memory_mb is not None, enforced.memory),
        "cpu": (policy.cpus is not None, enforced.cpus),
        "pids": (policy.pids is not None, enforced.pids),
        "detached": (detached, enforced.detached),
    }
    return {name: enforced.gaps.get(name, "") for name, (wanted, can) in requested.items() if wanted and not can}
