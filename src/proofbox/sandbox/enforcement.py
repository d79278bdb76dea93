"""Refuse a policy that can't be enforced before anything starts, with a reason for each part of it."""

from __future__ import annotations

from typing import get_args

from proofbox.errors import PolicyRefused, RequestInvalid
from proofbox.sandbox.contract import Access, Enforcement, Network, Policy

LEAST_DOOR = 1024  # a box can't listen on a lower port
_LEAST = {
    "memory": 4,  # MB; below this not even a shell starts
    "cpus": 0.01,
    "pids": 2,  # the command and one child
    "disk": 1,  # MB
}
_FIELDS = {"memory": "memory_mb", "disk": "disk_mb"}


def refuse_unenforceable(provider: str, policy: Policy, enforced: Enforcement) -> None:
    requested = {
        "network none": (policy.network == "none", enforced.network_none),
        "network allow": (policy.network == "allow", enforced.network_allow),
        "access ro": (policy.access == "ro", enforced.access_ro),
        "access overlay": (policy.access == "overlay", enforced.access_overlay),
        "layers": (policy.layers is not None, enforced.layers),
        "disk": (policy.disk_mb is not None, enforced.disk),
        "mounts": (bool(policy.mounts), enforced.mounts),
        "doors": (bool(policy.doors), enforced.network_none),
        "hidden": (bool(policy.hidden or policy.frozen), enforced.hidden),
        "image": (policy.image is not None, enforced.images),
        "runtime": (policy.runtime is not None, enforced.images),
        "memory": (policy.memory_mb is not None, enforced.memory),
        "cpu": (policy.cpus is not None, enforced.cpus),
        "pids": (policy.pids is not None, enforced.pids),
    }
    refused = {name: enforced.gaps.get(name, "") for name, (wanted, can) in requested.items() if wanted and not can}
    if refused:
        raise PolicyRefused(
            f"{provider} can't enforce "
            + "; ".join(f"{name} ({reason})" if reason else name for name, reason in refused.items()),
            op="start",
            details={"provider": provider, "refused": refused},
        )


def check_values(policy: Policy) -> None:
    """Refuse unknown words, meaningless numbers, and options that contradict each other.

    They are wrong on every machine, so they are checked once, before a provider is selected.
    """
    for name, word, known in (
        ("network", policy.network, get_args(Network)),
        ("access", policy.access, get_args(Access)),
    ):
        if word is not None and word not in known:  # an unknown word must not act as the most lenient one
            raise RequestInvalid(
                f"unknown {name} {word!r}", op="start", fix_hints=[f"choose one of: {', '.join(known)}"]
            )
    for name in _LEAST:
        check_limit(name, getattr(policy, _FIELDS.get(name, name)))
    if policy.doors and policy.network == "full":
        raise RequestInvalid(
            "a door is a port on the box's own loopback, but with network full the box uses the host's loopback",
            op="start",
            fix_hints=["use network none or allow:HOST,…"],
        )
    ports = [door.port for door in policy.doors]
    if len(set(ports)) < len(ports) or not all(LEAST_DOOR <= port < 65536 for port in ports):
        raise RequestInvalid(
            f"doors at {', '.join(map(str, ports))}: ports must be distinct and from {LEAST_DOOR} to 65535",
            op="start",
            fix_hints=[f"choose different ports from {LEAST_DOOR} on"],
        )
    if policy.layers is not None and (policy.access != "overlay" or policy.disk_mb is not None):
        raise RequestInvalid(
            "layers need access overlay, and can't have a disk limit",
            op="start",
            fix_hints=["use access overlay, without a disk limit"],
        )
    if policy.disk_mb is not None and policy.access != "overlay":
        raise RequestInvalid(
            "a disk limit needs access overlay: the project's own directory has no quota",
            op="start",
            fix_hints=["add --access overlay"],
        )


def check_limit(name: str, value: float | None) -> None:
    """Refuse a limit with which no box can work. `name` is that of the option; sizes are in MB."""
    least = _LEAST[name]
    kind = (int, float) if name == "cpus" else int
    good = isinstance(value, kind) and not isinstance(value, bool) and least <= value < 2**40
    if value is not None and not good:
        unit = " MB" if name in _FIELDS else ""
        raise RequestInvalid(
            f"invalid {name} limit: {value}{unit}",
            op="start",
            fix_hints=[f"give {least}{unit} or more" + (", such as 512 or 2g" if unit else "")],
        )
