"""Report leftovers: processes, containers, mounts, network namespaces, sockets, control groups, directories.

scripts/leftovers -- COMMAND [ARG...]   run it; exit 1 with a list if it leaves anything, else with its exit code
scripts/leftovers --before FILE         record what proofbox currently has on this machine
scripts/leftovers --after FILE          list what was added since; exit 1 if anything was
scripts/leftovers                       list everything

With a command, only that command is checked, even if other users work on the machine: its orphaned processes become
children of this process, and it gets a separate directory for temporary files. Containers, network namespaces and
control groups cannot be attributed in this way; new ones with our names count. The other forms compare the whole
machine, which must be idle.

Leftovers that are about to end get LEFTOVERS_GRACE seconds (30). Only the standard library is used.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

PREFIXES = ("proofbox-", "pbt-", "pbe-", "pbp-", "pbl-")
PROGRAMS = ("boxagent", "boxlaunch", "boxprobe", "boxrun", "boxvm", "treestat", "treewrite")
LABEL = "proofbox.session"
GRACE = float(os.environ.get("LEFTOVERS_GRACE", "30"))  # seconds to wait for ending processes on a busy machine
CONTROL_GROUPS = Path("/sys/fs/cgroup")
NAMESPACES = (Path("/run/netns"), Path("/run/docker/netns"))
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/leftovers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--before", metavar="FILE", type=Path)
    way.add_argument("--after", metavar="FILE", type=Path)
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    options = parser.parse_args()
    if options.command and (options.before or options.after):
        parser.error("a command goes with neither --before nor --after")
    if options.command:
        return watch(options.command)
    if options.before:
        options.before.write_text(json.dumps(snapshot(), indent=1))
        return 0
    if options.after:
        before = set(json.loads(options.after.read_text()))
        return tell(wait_for_none(lambda: [each for each in snapshot() if each not in before]))
    print("\n".join(snapshot()) or "nothing")
    return 0


def tell(left: Sequence[str]) -> int:
    for line in left:
        print(f"left: {line}", file=sys.stderr)
    return 1 if left else 0


# Run one command and check what it left


def watch(command: Sequence[str]) -> int:
    place = Path(tempfile.mkdtemp(prefix="pbl-"))
    # World-writable with the sticky bit, like /tmp: a command may run parts of itself as another user.
    place.chmod(0o1777)
    before = set(nameless())
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal also signals the command, which decides
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(place)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    code = reap_until(process.pid)

    def look() -> list[str]:
        reap()
        found = describe_processes(children_of(os.getpid()))
        found += [f"mount {point}" for point in mounts_below([str(place)])]
        found += [f"socket {path}" for path in listening() if path.startswith(f"{place}/")]
        found += [f"directory {path}" if path.is_dir() else f"file {path}" for path in sorted(place.iterdir())]
        return found + [each for each in nameless() if each not in before]

    left = wait_for_none(look)
    with contextlib.suppress(OSError):
        place.rmdir()  # only if it is empty; otherwise keep it for inspection
    return tell(left) or code


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, instead of init."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_until(pid: int) -> int:
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# Current state of the machine


def snapshot() -> list[str]:
    """Return everything that proofbox has on this machine."""
    found = describe_processes(processes_of_ours())
    found += [f"mount {point}" for point in mounts() if named_like_ours(point)]
    found += [f"socket {path}" for path in listening() if named_like_ours(path)]
    places = dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"])  # noqa: S108 (to look, not to write)
    for place in map(Path, places):
        with contextlib.suppress(OSError):
            found += [f"directory {path}" for path in sorted(place.iterdir()) if path.name.startswith(PREFIXES)]
    return found + nameless()


def nameless() -> list[str]:
    """Return resources that cannot be attributed to a process or a path."""
    return [*containers(), *network_namespaces(), *control_groups()]


def containers() -> Iterator[str]:
    """Yield each container with its project."""
    shown = '{{.ID}} {{.Label "proofbox.project"}}'
    # An ordinary user's podman leaves a process behind after any request.
    for engine in ("docker", "podman") if os.geteuid() == 0 else ("docker",):
        if shutil.which(engine):
            words = [engine, "ps", "--all", "--no-trunc", "--filter", f"label={LABEL}", "--format", shown]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
                yield from (f"container {engine} {line}" for line in done.stdout.splitlines())


def network_namespaces() -> Iterator[str]:
    for place in NAMESPACES:
        with contextlib.suppress(OSError):
            yield from (f"network namespace {path}" for path in sorted(place.iterdir()))


def control_groups() -> Iterator[str]:
    """Return the control groups whose creator has ended; the others are in use."""
    return (f"control group {path}" for path, maker in groups_and_makers() if not Path("/proc", maker).exists())


def groups_and_makers() -> Iterator[tuple[Path, str]]:
    """Yield proofbox's control groups, `proofbox/<label>.<pid of the creator>`, with that pid."""
    for home in sorted({*CONTROL_GROUPS.glob("proofbox"), *CONTROL_GROUPS.glob("*/proofbox")}):
        with contextlib.suppress(OSError):
            yield from ((path, path.name.rpartition(".")[2]) for path in sorted(home.iterdir()) if path.is_dir())


def processes_of_ours() -> set[int]:
    """Return the processes of box programs and of proofbox itself."""
    found = set()
    for pid in process_ids():
        argv = arguments_of(pid)
        names = [os.path.basename(word) for word in argv[:3]]
        if names and (names[0].startswith(PROGRAMS) or "proofbox" in names):
            found.add(pid)
    return found - {os.getpid()}


def children_of(pid: int) -> set[int]:
    """Return all living descendants of a process."""
    parents: dict[int, int] = {}
    for each in process_ids():
        try:
            # "pid (name) state ppid …", where the name may contain any characters.
            text = Path(f"/proc/{each}/stat").read_text(errors="replace")
            state, parent = text.rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if state != "Z":
            parents[each] = int(parent)
    found: set[int] = set()
    while new := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= new
    return found


def process_ids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def arguments_of(pid: int) -> list[str]:
    """Return the command line; only the name during an exec, and nothing if the process has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        return [word.decode(errors="replace") for word in words or [Path(f"/proc/{pid}/comm").read_bytes().strip()]]
    except OSError:
        return []


def describe_processes(pids: Iterable[int]) -> list[str]:
    described = ((pid, " ".join(arguments_of(pid)).strip()[:200]) for pid in sorted(pids))
    return [f"process {pid}: {words}" for pid, words in described if words]


def listening() -> list[str]:
    """Return the paths of all open Unix sockets."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]
        return sorted({words[7] for words in (line.split(maxsplit=7) for line in lines) if len(words) > 7})
    return []


def mounts() -> list[str]:
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [line.split()[4].replace("\\040", " ") for line in lines]


def mounts_below(places: Sequence[str]) -> list[str]:
    return [point for point in mounts() if any(point == place or point.startswith(f"{place}/") for place in places)]


def named_like_ours(path: str) -> bool:
    return any(part == "proofbox" or part.startswith(PREFIXES) for part in path.split("/"))


def wait_for_none(look: Callable[[], list[str]], seconds: float = GRACE) -> list[str]:
    """Return what is left after some time, because ending processes takes a moment.

    The list must be empty twice in a row: a process that forks while processes are listed can be missed once.
    """
    end, nothing = time.monotonic() + seconds, 0
    while True:
        found = look()
        nothing = 0 if found else nothing + 1
        if nothing == 2 or (found and time.monotonic() > end):
            return found
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
