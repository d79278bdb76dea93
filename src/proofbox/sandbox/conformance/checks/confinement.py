"""Privileges of a process in the box: none of them lets it break out."""

from __future__ import annotations

import os
import shutil

from proofbox.core.files.programs import locate_program
from proofbox.sandbox.conformance.check import FILESYSTEM, PROCESSES, NotApplicable, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.conformance.probing import run_probes
from proofbox.sandbox.contract import Isolation

subject = ProviderChecks("confinement")
check = subject.check

OWN_CONFINEMENT = (Isolation.NAMESPACE, Isolation.VM)
"""The kinds of isolation in which proofbox itself restricts the processes of a box."""
_CHARACTER_DEVICES = frozenset(["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"])
_LIST_DEVICES = """
for d in /dev/* /dev/*/*; do
    [ -h "$d" ] || [ -h "${d%/*}" ] && continue
    [ -b "$d" ] && echo "block $d"
    [ -c "$d" ] && echo "char ${d#/dev/}"
done
"""


@check(FILESYSTEM)
def devices(context: CheckContext) -> None:
    """The box has no devices for disks, memory or the kernel log, and cannot create any."""
    session = context.session()
    context.fence(session)
    found = [line.split(" ", 1) for line in context.sh(session, _LIST_DEVICES).stdout.splitlines()]
    disks = [name for kind, name in found if kind == "block"]
    expect(not disks, f"the box has block devices: {disks}")
    known = _CHARACTER_DEVICES
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        known |= {"fuse", "net/tun"}  # these belong to the sandboxed kernel and give no access to the host
    odd = [name for _, name in found if name not in known and not name.startswith("pts/")]
    expect(not odd, f"the box has other devices: {odd}")
    run_probes(context, "project.device-*", "device.null", "device.urandom")


@check(FILESYSTEM)
def remount(context: CheckContext) -> None:
    """No mount can be changed, added or removed, so that read-only mounts stay read-only."""
    new = ("mount.tmpfs", "mount.proc", "mount.bind", "namespace.mount")
    run_probes(context, *new, "mount.writable-*", "mount.remove-*", "mount.chroot", "mount.pivot-root")


@check(FILESYSTEM)
def user_namespaces(context: CheckContext) -> None:
    """A command can't create a user namespace, which would expose more of the kernel and give root over the mounts."""
    if context.isolation not in OWN_CONFINEMENT:
        raise NotApplicable(f"{context.provider} does not use user namespaces and makes no claim about nested ones")
    run_probes(context, "namespace.user", "namespace.user-by-clone")


@check(FILESYSTEM)
def capabilities(context: CheckContext) -> None:
    """All capability sets that could take effect are empty, and no program can regain capabilities."""
    lines = context.sh(context.session(), "cat /proc/self/status").stdout.splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    held = {name: status.get(name, "absent") for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")}
    if context.isolation is Isolation.SANDBOXED_KERNEL and held["CapAmb"] == "absent":
        del held["CapAmb"]  # this kernel has no ambient set
    expect(all(value.strip("0") == "" for value in held.values()), f"capabilities are {held}")
    if context.isolation is not Isolation.SANDBOXED_KERNEL or "NoNewPrivs" in status:
        expect(status.get("NoNewPrivs") == "1", f"NoNewPrivs is {status.get('NoNewPrivs')}")


@check(FILESYSTEM)
def system_call_filter(context: CheckContext) -> None:
    """A box has a seccomp filter for system calls that builds and tests don't need, unless an engine has its own."""
    if context.isolation not in OWN_CONFINEMENT:
        raise NotApplicable(f"{context.provider} does not rely on namespaces alone")
    status = context.sh(context.session(), "cat /proc/self/status").stdout.splitlines()
    filtered = [line.split(":\t")[1] for line in status if line.startswith("Seccomp:")]
    if not filtered:
        raise NotChecked("this kernel has no seccomp")
    expect(filtered == ["2"], f"Seccomp is {filtered[0]}: no filter is active")


@check(FILESYSTEM)
def setuid_programs(context: CheckContext) -> None:
    """A setuid-root program runs with the ids of the user who started it."""
    if os.geteuid() != 0:
        raise NotChecked("creating a setuid-root program needs root; confinement.capabilities checks NoNewPrivs")
    program = locate_program("id")
    if program is None:
        raise NotChecked("this host has no `id` program to copy")
    planted = context.project / "id-of-root"
    shutil.copyfile(os.path.realpath(program), planted)
    planted.chmod(0o6755)
    script = "id -u; id -g; ./id-of-root -u; ./id-of-root -g; ./id-of-root -ru; ./id-of-root -rg"
    result = context.sh(context.session(), script)
    ids = result.stdout.split()
    if len(ids) != 6:
        raise NotChecked(f"the host's `id` program does not run in the box: {result.stderr[:200]!r}")
    expect(ids[:2] == ids[2:4] == ids[4:], f"a setuid program changed uid and gid from {ids[:2]} to {ids[2:4]}")


@check(FILESYSTEM)
def setuid_bits(context: CheckContext) -> None:
    """No file of the project can be made setuid or setgid; on the host it would run as the project's owner."""
    if context.isolation not in OWN_CONFINEMENT:
        raise NotApplicable(f"{context.provider} makes no claim about these bits, which an image's packages may need")
    run_probes(context, "project.setuid*", "project.setgid*", "project.chmod")


@check(PROCESSES)
def host_processes(context: CheckContext) -> None:
    """A command can neither see nor signal processes of the host."""
    run_probes(context, "process.see", "process.kill", "process.environ")
    seen = context.once('for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline; echo; done 2>/dev/null')
    count = len([line for line in seen.stdout.splitlines() if line.strip()])
    expect(0 < count < 12, f"{count} processes are visible in a box that runs one command")


@check(PROCESSES)
def identity(context: CheckContext) -> None:
    """The box has its own hostname, and only the ids that it needs are mapped into it."""
    session = context.session()
    name = context.sh(session, "cat /proc/sys/kernel/hostname").stdout.strip()
    expect(name != os.uname().nodename, "the box has the host's hostname")
    if context.isolation is not Isolation.NAMESPACE:
        return
    for file in ("uid_map", "gid_map"):
        mapped = [line.split() for line in context.sh(session, f"cat /proc/self/{file}").stdout.splitlines()]
        expect(mapped, f"{file} is empty")
        wide = [line for line in mapped if int(line[2]) > 1]
        expect(not wide, f"whole ranges of the host's ids are mapped into the box: {wide}")
        roots = [line for line in mapped if os.geteuid() == 0 and line[1] == "0"]
        expect(not roots, f"the host's root is mapped into the box by {file}: {roots}")
