"""Killing the processes of a box by the variables that they were started with.

A child that leaves its process group and its parent still has the variables of the command that it comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

from proofbox.errors import ProofboxError
from proofbox.sandbox.async_service import AsyncSession

KILL_SECONDS = 10.0

# Kills every process whose environment holds all arguments, and repeats: a fork may outrun one pass.
_KILL = r"""
command -v tr > /dev/null || exit 1
for round in 1 2 3 4 5 6 7 8; do
    found=
    for process in /proc/[0-9]*; do
        variables=$(tr '\0' '\n' < "$process/environ") || continue
        for wanted; do
            case "
$variables
" in *"
$wanted
"*) ;; *) continue 2 ;; esac
        done
        kill -9 "${process#/proc/}" && found=yes
    done
    [ "$found" ] || exit 0
done
exit 1
"""


async def kill_marked(box: AsyncSession, marks: Sequence[str]) -> bool:
    """Kill every process that has all of these `NAME=VALUE`; whether none is left.

    False where the box is gone or has no shell, and where the last pass still found some.
    """
    try:
        result = await box.exec(["/bin/sh", "-c", _KILL, "sh", *marks], timeout=KILL_SECONDS)
    except ProofboxError:
        return False
    return result.exit_code == 0
