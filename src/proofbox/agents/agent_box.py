"""The box of an agent: its home, facts about it for the record, and killing processes in it.

Processes are found by their environment variables: a child that leaves its process group and its parent still has the
variables of the original command.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.contract import SessionOptions
from proofbox.agents.events import Notice
from proofbox.core.files.atomic import write_document
from proofbox.errors import ProofboxError, RuntimeCrashed, SandboxLost, UsageError
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.host.usage import observed
from proofbox.sandbox.sessions import SessionInfo

KILL_SECONDS = 10.0
KILLED_AT_END = "killed_at_end"

# Kill every process whose environment contains all arguments. Repeat, because a process may fork during a pass and
# takes a moment to die; the command's timeout ends the loop. While a process executes a program, its environment is
# empty, and a file that was opened before reads as empty afterwards. So `cat` opens and reads it at once, up to five
# times.
_KILL = r"""
command -v tr > /dev/null && command -v cat > /dev/null || exit 1
while :; do
    found=
    for process in /proc/[0-9]*; do
        for try in 1 2 3 4 5; do
            variables=$(cat "$process/environ" | tr '\0' '\n')
            [ -z "$variables" ] && [ -e "$process/exe" ] || break
        done
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
"""


def killed_at_end(session: str) -> Notice:
    """Return the event that reports processes which outlived their turns and end with the session's box."""
    message = "processes that the agent started were still running when the session was closed, and were killed"
    return Notice(session=session, kind=KILLED_AT_END, message=message)


def box_ended() -> RuntimeCrashed:
    """Return the error of a session whose box has ended."""
    hints, details = ["start another session"], {"cause": SandboxLost.code}
    return RuntimeCrashed("the session's box has ended", op="session", fix_hints=hints, details=details)


def prepare_home(home: Path, options: SessionOptions, files: Mapping[str, str]) -> None:
    """Create the directory that an agent keeps its threads in, and write these files into it.

    An agent could write to an existing home, so no link in it is followed and nothing in it is executed on the host.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not options.sandboxed and any(home.iterdir()):
        raise UsageError(
            "a home that an agent could write to can't be used outside a box",
            op="start",
            fix_hints=["resume in a box, or start with a new home"],
        )
    for name, text in files.items():
        write_document(home / name, text.encode(), mode=0o600)
    if os.geteuid() == 0:  # commands in the box run as the owner of the workspace
        owner = options.workspace.stat()
        os.chown(home, owner.st_uid, owner.st_gid)
        for _, folders, names, fd in os.fwalk(home):
            for name in (*folders, *names):
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=fd, follow_symlinks=False)


def box_facts(box: SessionInfo) -> dict[str, Any]:
    more = {}
    if box.provider == "vm":  # times of an emulated machine can't be compared with others
        from proofbox.sandbox.machines.acceleration import current_acceleration

        more["acceleration"] = current_acceleration()
    return {
        **more,
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


async def kill_marked(box: AsyncSession, marks: Sequence[str]) -> bool:
    """Kill every process whose environment contains all of these `NAME=VALUE` entries. Return whether none is left.

    Return False if the box has ended or has no shell, `cat` or `tr`, or if processes were still found at the timeout.
    """
    try:
        result = await box.exec(["/bin/sh", "-c", _KILL, "sh", *marks], timeout=KILL_SECONDS)
    except ProofboxError:
        return False
    return result.exit_code == 0
