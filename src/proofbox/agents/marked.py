"""Kill processes in a box by their environment variables.

A child that leaves its process group and its parent still has the environment variables of the original command.
"""

from __future__ import annotations

from collections.abc import Sequence

from proofbox.errors import ProofboxError
from proofbox.sandbox.async_service import AsyncSession

KILL_SECONDS = 10.0

# Kill every process whose environment contains all arguments. Repeat, because a process may fork during a pass.
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
    """Kill every process whose environment contains all of these `NAME=VALUE` entries. Return whether none is left.

    Return False if the box has ended or has no shell, or if the last pass still found processes.
    """
    try:
        result = await box.exec(["/bin/sh", "-c", _KILL, "sh", *marks], timeout=KILL_SECONDS)
    except ProofboxError:
        return False
    return result.exit_code == 0
