"""Privileges of a process in the box: none of them lets it break out."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from proofbox.sandbox.conformance.check import FILESYSTEM, PROCESSES, NotApplicable, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.conformance.probing import SystemCalls
from proofbox.sandbox.contract import Isolation

subject = ProviderChecks("confinement")
check = subject.check

MS_REMOUNT_BIND = 32 | 4096
CLONE_NEWUSER = 0x10000000
CLONE_NEWNS = 0x00020000
SIGCHLD = 17
BLOCK_DEVICE = 0o060666
DISK = 0x800
TMP = "/tmp"  # noqa: S108 (the box's own)
AT_FDCWD = -100
CREATE = 0o101
TMPFILE = 0o20000002 | os.O_DIRECTORY
REGULAR = 0o100000

_CHARACTER_DEVICES = frozenset(["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"])
_LIST_DEVICES = """
for d in /dev/* /dev/*/*; do
    [ -h "$d" ] || [ -h "${d%/*}" ] && continue
    [ -b "$d" ] && echo "block $d"
    [ -c "$d" ] && echo "char ${d#/dev/}"
done
"""
_MAKE_DEVICES = """
for d in . /tmp /dev; do
    mknod $d/b b 8 0
    mknod $d/c c 1 1
    for n in $d/b $d/c; do
        head -c 1 $n >/dev/null && echo opened $n
        ls $n
    done
done 2>/dev/null
"""
_SETTING = (0o4755, 0o2755, 0o6711)
_SETUID = """
for n in by-mode by-letter by-group by-install; do echo x > $n; done
(chmod 4755 by-mode; chmod u+s by-letter; chmod g+s by-group; install -m 6755 by-mode by-install) 2>/dev/null
echo x > plain && chmod 755 plain && chmod 1777 plain && mkdir directory && [ -x plain ] && echo usable
"""
_MOUNTING = (
    "mount -o remount,rw /usr",
    "mount -o remount,bind,rw /usr",
    "mount -o remount,rw /",
    "mount -t tmpfs none /usr",
    "mount -t tmpfs none /mnt",
    "mount -t proc none /mnt",
    "umount -l /usr",
    "umount -l /proc",
    'unshare -Urm sh -c "mount -o remount,bind,rw /usr"',
    'unshare -Ur sh -c "mount -o remount,bind,rw /usr"',
    "unshare -m true",
    "chroot / true",
    "nsenter -t 1 -m true",
)


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
    made = context.sh(session, _MAKE_DEVICES).stdout.splitlines()
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        made = [line for line in made if line.startswith("opened")]  # its kernel has no such devices behind the nodes
    expect(not made, f"a command created devices: {made}")
    usable = context.sh(session, "echo x > /dev/null && head -c 4 /dev/urandom | wc -c").stdout.strip()
    expect(usable == "4", "/dev/null and /dev/urandom don't work")


@check(FILESYSTEM)
def remount(context: CheckContext) -> None:
    """No mount can be changed, added or removed, so that read-only mounts stay read-only."""
    session = context.session()
    context.fence(session)
    target = f"/usr/{context.marker}"
    for way in _MOUNTING:
        tool = way.split()[0]
        script = (
            f'command -v {tool} >/dev/null || exit 0; ({way}) 2>/dev/null && echo done; (echo x > "$1") 2>/dev/null'
        )
        result = context.sh(session, script, target)
        leaked = Path(target).exists()
        if leaked:
            Path(target).unlink()
        expect(not leaked, f"`{way}` let a command write to the host's /usr")
        expect("done" not in result.stdout, f"`{way}` succeeded")


@check(FILESYSTEM)
def remount_by_system_call(context: CheckContext) -> None:
    """The same with direct system calls, because the tools refuse some operations themselves."""
    session = context.session()
    context.fence(session)
    done = SystemCalls(context, session).allowed(
        ("remount /usr", "mount", "none", "/usr", 0, MS_REMOUNT_BIND, 0),
        ("remount /", "mount", "none", "/", 0, MS_REMOUNT_BIND, 0),
        ("mount tmpfs", "mount", "none", TMP, "tmpfs", 0, 0),
        ("umount /proc", "umount2", "/proc", 2),
        ("chroot", "chroot", TMP),
        ("mknod", "mknod", f"{TMP}/disk", BLOCK_DEVICE, DISK),
    )
    if context.isolation is Isolation.SANDBOXED_KERNEL:
        done = [what for what in done if what != "mknod"]  # as above: `devices` tries to open the nodes
    expect(not done, f"allowed: {', '.join(done)}")


@check(FILESYSTEM)
def user_namespaces(context: CheckContext) -> None:
    """A command can't create a user namespace, which would expose more of the kernel and give root over the mounts."""
    if context.isolation is not Isolation.NAMESPACE:
        raise NotApplicable(f"{context.provider} does not use user namespaces and makes no claim about nested ones")
    session = context.session()
    by_tool = context.sh(session, "unshare -U true 2>/dev/null && echo made")
    expect("made" not in by_tool.stdout, "`unshare -U` created a user namespace")
    done = SystemCalls(context, session).allowed(
        ("unshare", "unshare", CLONE_NEWUSER),
        ("unshare with mounts", "unshare", CLONE_NEWUSER | CLONE_NEWNS),
        ("clone", "clone", CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0),
    )
    expect(not done, f"user namespace created by {', '.join(done)}")


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
    """A box that shares the host's kernel has a seccomp filter for system calls that builds and tests don't need."""
    if context.isolation is not Isolation.NAMESPACE:
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
    program = shutil.which("id")
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
    if context.isolation is not Isolation.NAMESPACE:
        raise NotApplicable(f"{context.provider} makes no claim about these bits, which an image's packages may need")
    session = context.session()
    result = context.sh(session, _SETUID)
    expect(result.stdout == "usable\n", f"cannot create files or change their modes: {result.stderr[:200]!r}")
    done: list[str] = []
    with contextlib.suppress(NotChecked):  # without an interpreter, only the tools are tried
        done = SystemCalls(context, session).allowed(
            *(
                call
                for mode in _SETTING
                for call in (
                    ("open", "open", f"by-open-{mode:o}", CREATE, mode),
                    ("openat", "openat", AT_FDCWD, f"by-openat-{mode:o}", CREATE, mode),
                    ("a nameless file", "openat", AT_FDCWD, ".", TMPFILE, mode),
                    ("creat", "creat", f"by-creat-{mode:o}", mode),
                    ("mknod", "mknod", f"by-mknod-{mode:o}", REGULAR | mode, 0),
                    ("mknodat", "mknodat", AT_FDCWD, f"by-mknodat-{mode:o}", REGULAR | mode, 0),
                    ("chmod", "chmod", "plain", mode),
                    ("fchmodat", "fchmodat", AT_FDCWD, "plain", mode),
                    ("fchmodat2", "fchmodat2", AT_FDCWD, "plain", mode, 0),
                    ("a descriptor", "openat", AT_FDCWD, "plain", 0, mode),
                    ("fchmod", "fchmod", "$", mode),
                )
            ),
        )
    set_ = [path.name for path in context.project.iterdir() if path.stat().st_mode & 0o6000]
    set_ += ["a nameless file"] if "a nameless file" in done else []
    expect(not set_, f"made setuid or setgid: {', '.join(sorted(set_))}")


@check(PROCESSES)
def host_processes(context: CheckContext) -> None:
    """A command can neither see nor signal processes of the host."""
    session = context.session()
    with context.host_process() as pid:
        seen = context.sh(session, 'for p in /proc/[0-9]*; do tr "\\0" " " < $p/cmdline; echo; done 2>/dev/null')
        expect(f"{context.marker}-host" not in seen.stdout, "a process of the host is visible in the box")
        count = len([line for line in seen.stdout.splitlines() if line.strip()])
        expect(0 < count < 12, f"{count} processes are visible in a box that runs one command")
        context.sh(session, 'kill -9 "$1" 2>/dev/null', str(pid))
        expect(Path(f"/proc/{pid}/cmdline").read_bytes(), "a command killed a process of the host")


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
