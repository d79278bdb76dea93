"""The resources that a box has used, as counted by its control groups. They show whether a limit affected a result.
Only limited resources have a control group; the others are not counted."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from proofbox.sandbox.host import cgroups


class BoxUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a box has used. None: not counted here."""

    peak_memory_bytes: int | None = None
    oom_kills: int | None = None
    cpu_throttled_periods: int | None = None
    cpu_throttled_ms: float | None = None
    peak_pids: int | None = None


def observed(session_id: str) -> BoxUsage:
    """Return the usage of this session's box, which must still be running."""
    tree = cgroups.tree()
    groups = {
        controller: found
        for controller in ("memory", "cpu", "pids")
        if (found := cgroups.group_of(tree.v1.get(controller) or tree.unified, session_id)) is not None
    }
    memory = groups.get("memory")
    periods, throttled_ms = _throttling(groups.get("cpu"))
    return BoxUsage(
        peak_memory_bytes=_number(memory, "memory.max_usage_in_bytes", "memory.peak"),
        oom_kills=None if memory is None or not _counts_memory(memory) else cgroups.oom_kills(memory),
        cpu_throttled_periods=periods,
        cpu_throttled_ms=throttled_ms,
        peak_pids=_number(groups.get("pids"), "pids.peak"),
    )


def _counts_memory(group: Path) -> bool:
    return any((group / name).exists() for name in ("memory.events", "memory.oom_control"))


def _throttling(group: Path | None) -> tuple[int | None, float | None]:
    if group is None:
        return None, None
    stat: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (group / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            stat[name] = int(value)
    if "nr_throttled" not in stat:
        return None, None
    microseconds = stat["throttled_usec"] if "throttled_usec" in stat else stat.get("throttled_time", 0) / 1000
    return stat["nr_throttled"], round(microseconds / 1000, 3)


def _number(group: Path | None, *names: str) -> int | None:
    if group is not None:
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                return int((group / name).read_text())
    return None
