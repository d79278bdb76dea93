"""What a probe may act on, so that no plan harms the host.

The rules apply in the sandbox too, because a measured sandbox may not isolate anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from proofbox.sandbox.probing.decoys import FILES, LISTENERS, NEW
from proofbox.sandbox.probing.operations import OPERATIONS
from proofbox.sandbox.probing.plan import Probe

MOST: Final = {"resource-descriptors": 65536, "resource-disk": 1024, "resource-memory": 2048, "resource-pids": 4096}
"""The largest amount that a probe may ask for; memory and disk in megabytes."""
_HARMLESS_PROGRAMS: Final = ("/bin/true", "/usr/bin/true")
_SENDS: Final = ("network-tcp", "network-udp", "network-unix")


def harms(probe: Probe) -> list[str]:
    """Return why the probe could harm the host; empty if it cannot."""
    return list(_harms(probe))


def _harms(probe: Probe) -> Iterator[str]:
    name, args = probe.operation, probe.args
    operation = OPERATIONS[name]
    for kind, argument in zip(operation.args, args, strict=False):
        if operation.changes and kind in ("path", "new path", "at") and not _is_own(argument):
            own = ", ".join(f"{{{each}}}" for each in sorted((*FILES, *NEW)))
            yield f"{name} changes files, so it can only name the probe's decoys ({own}), not {argument!r}"
    if name == "signal" and args[0] != "{pid}" and args[1] != "0":
        yield "a signal other than 0 can only be sent to {pid}"
    if name == "process-exec" and len(args) > 1:
        yield "process-exec can give a program no arguments"
    if name == "process-exec" and args[0] not in _HARMLESS_PROGRAMS and not _is_own(args[0]):
        yield f"only {', '.join(_HARMLESS_PROGRAMS)} and decoys can be executed"
    if name in _SENDS and not reaches_decoy(probe) and args[-1] != "{mark}":
        yield "only {mark} can be sent to anything but a decoy"
    most = MOST.get(name)
    if most is not None and not (re.fullmatch("[0-9]{1,9}", args[-1]) and int(args[-1]) <= most):
        yield f"{name} takes a number, at most {most}"


def reaches_decoy(probe: Probe) -> bool:
    """Return whether a network probe's target is a listener of the run."""
    return any(f"{{{each}}}" in argument for each in LISTENERS for argument in probe.args[:2])


def _is_own(argument: str) -> bool:
    """Return whether the argument is a decoy of the probe's own, or a path below its directory."""
    if argument.startswith("{directory}/"):
        return ".." not in argument.split("/")
    return argument in {f"{{{each}}}" for each in (*FILES, *NEW)}
