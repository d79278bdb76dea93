"""Boot a machine outside a box: to try KVM, and to make a template.

Its guest is the distribution's kernel with proofbox's init, which waits: no file and no byte of a project reaches it.
Its QEMU is confined like that of a box all the same. A trial in another place or with another user would prove nothing
about boxes: only root may open `/dev/kvm` on some machines, and the QEMU of a box is never root.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from proofbox.core.files.programs import SYSTEM_PATH
from proofbox.sandbox.contract import Policy
from proofbox.sandbox.machines.qemu import Acceleration
from proofbox.sandbox.providers.bubblewrap import AGENT_ID, BoxIds, bwrap_program, namespace_options, proc_options
from proofbox.sandbox.providers.host_root import host_parts

KERNEL, INITRAMFS, WRITABLE_MEMORY = "/run/kernel", "/run/initramfs", "/run/memory"
"""Where QEMU finds the files of a machine."""


@contextmanager
def booting(
    qemu: Sequence[str],
    files: Mapping[str, Path],
    acceleration: Acceleration,
    *,
    fds: Sequence[int],
    stderr: IO[bytes] | None = None,
) -> Iterator[None]:
    """Run QEMU with these files, and kill it at the end of the block."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [*_confinement(files, acceleration), *qemu],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet if stderr is None else stderr,
        pass_fds=fds,
        cwd="/",
        env={"PATH": SYSTEM_PATH},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _confinement(files: Mapping[str, Path], acceleration: Acceleration) -> list[str]:
    """Return the command that runs QEMU in bubblewrap, as a separate user if root starts it."""
    ids = BoxIds.choose(Path("/"))
    options = [each for each in namespace_options(Policy(network="none"), ids) if each != "--as-pid-1"]
    options += ["--die-with-parent", *host_parts("none"), *proc_options(), "--dev", "/dev"]
    options += ["--dev-bind-try", "/dev/kvm", "/dev/kvm"] if acceleration == "kvm" else []
    options += ["--perms", "0755", "--tmpfs", "/run"]
    for place, source in files.items():
        options += ["--bind" if place == WRITABLE_MEMORY else "--ro-bind", str(source), place]
    if not ids.root:
        return [bwrap_program(), *options]
    drop = ["--no-new-privs", "--inh-caps", "-all", "--bounding-set", "-all", "--clear-groups"]
    return [
        *(bwrap_program(), *options, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
        *("setpriv", *drop, "--reuid", str(AGENT_ID), "--regid", str(AGENT_ID)),
    ]
