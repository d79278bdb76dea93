"""Where the attempts of a run are executed: `[engine]` in config.toml, and `--engine` with its companions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import msgspec

from proofbox.core.size import megabytes
from proofbox.errors import UsageError

LOCAL, RAY = "local", "ray"
MAX_PORT = 65535
_LABEL = "[A-Za-z0-9-]{1,63}"  # more, or an empty one, can't be looked up
_ADDRESS = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*\.?|\[[0-9A-Fa-f:]+\]):[0-9]{{1,5}}")
_RESOURCE = re.compile(r"[A-Za-z][\w.-]{0,62}")


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine that runs attempts, and what each attempt reserves on a node."""

    name: str = LOCAL
    """`local`: worker processes on this machine. `ray`: a private Ray cluster on this machine, for this run.
    `ray:HOST:PORT`: an existing Ray cluster."""
    per_node: int | None = None
    """Maximum concurrent attempts on one node. Default: the number of its CPUs."""
    resources: dict[str, float | str] = {}
    """What Ray reserves for each attempt: `cpus`, `memory` (with a unit), `gpus`, or a resource of your cluster."""
    unauthenticated: bool = False
    """Join a cluster that does not require a token. Everyone who can reach such a cluster can run programs on it."""

    def __post_init__(self) -> None:
        kind, _, address = self.name.partition(":")
        if self.name not in (LOCAL, RAY) and not (kind == RAY and _ADDRESS.fullmatch(address)):
            raise _invalid(f"engine {self.name[:80]!r} is unknown", "use `local`, `ray` or `ray:HOST:PORT`")
        if address and not 0 < int(address.rpartition(":")[2]) <= MAX_PORT:
            raise _invalid(f"engine {self.name[:80]!r} has an invalid port", f"ports are numbers from 1 to {MAX_PORT}")
        if self.per_node is not None and self.per_node < 1:
            raise _invalid("per_node must be at least 1", "give a number of attempts")
        for name in self.resources:
            if not _RESOURCE.fullmatch(name) or not 0 < self.amount(name) < math.inf:
                raise _invalid(f"resource {name[:80]!r} is invalid", "write NAME=AMOUNT, such as gpus=1 or memory=4g")

    @property
    def is_local(self) -> bool:
        return self.name == LOCAL

    @property
    def address(self) -> str | None:
        """The address of the cluster to join; None for a private one."""
        return self.name.partition(":")[2] or None

    def amount(self, resource: str) -> float:
        """Return how much of a resource each attempt reserves, in Ray's units: bytes of memory."""
        value = self.resources.get(resource, 0.0)
        if resource == "memory":
            if isinstance(value, str):  # also numbers, in flags
                return megabytes(f"{value}m" if value.isdecimal() else value, resource) * (1 << 20)
            return int(value) * (1 << 20)
        try:
            return float(value)
        except ValueError:
            return -1.0


def chosen_engine(
    settings: EngineSettings | None,
    name: str | None,
    per_node: int | None,
    resources: Iterable[str],
    *,
    unauthenticated: bool = False,
) -> EngineSettings:
    """Return the engine that flags and settings select; a flag overrides the setting of the same name."""
    base = settings or EngineSettings()
    named = dict(each.partition("=")[::2] for each in resources)
    made = EngineSettings(
        name=name or base.name,
        per_node=base.per_node if per_node is None else per_node,
        resources={**base.resources, **named},
        unauthenticated=unauthenticated or base.unauthenticated,
    )
    if made.is_local and (per_node is not None or named):
        raise _invalid("--per-node and --resource need --engine ray", "add --engine ray, or use -n alone")
    return made


def _invalid(message: str, hint: str) -> UsageError:
    return UsageError(message, op="engine", fix_hints=[hint])
