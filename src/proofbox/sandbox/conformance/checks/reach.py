"""A box reaches only the files that it was given, whether by path, link, /proc or any other name."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from proofbox.core.dirs import cache_dir, config_dir, state_dir
from proofbox.errors import PathRefused
from proofbox.sandbox.conformance.check import FILESYSTEM, MOUNTS, NotApplicable, ProviderChecks, expect
from proofbox.sandbox.conformance.checks.filesystem import OTHER_UID
from proofbox.sandbox.conformance.context import CheckContext, with_environment
from proofbox.sandbox.conformance.probing import run_probes
from proofbox.sandbox.contract import Isolation, Mount
from proofbox.sandbox.service import Session

subject = ProviderChecks("reach")
check = subject.check

# Top-level directories that a box may share with the host, or that it has under the same name.
_SHARED = frozenset(
    ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "etc", "proc", "dev", "sys")
)
_HOSTS_OWN = ("/etc/machine-id", "/etc/fstab", "/etc/hostname", "/etc/ssh/sshd_config", "/etc/crontab")
# The second in which each entry was changed, and its name. In gVisor, only one of the two programs may work.
_LIST = """
cd "$1" 2>/dev/null || exit
for f in .[!.]* *; do
    changed=$(stat -c %Z "$f" 2>/dev/null || find "$f" -prune -printf %C@ 2>/dev/null)
    changed=${changed%%.*}
    echo "${changed:--} $f"
done
"""
_LINK = """
n=0
for f in "$@"; do
    n=$((n+1))
    ln "$f" hard$n 2>/dev/null && echo "$f"
    ln -L "$f" deep$n 2>/dev/null && echo "$f"
done
"""


@check(FILESYSTEM)
def outside_by_path(context: CheckContext) -> None:
    """Files next to the project can't be reached by any path, nor can the caller's home."""
    run_probes(
        context,
        *("control.outside-read", "outside.by-dots", "outside.by-cwd", "outside.stat", "outside.list"),
        *(
            "outside.handle",
            "outside.write",
            "outside.create",
            "outside.unlink",
            "outside.truncate",
            "outside.rename",
            "outside.chmod",
        ),
    )
    home = Path.home()
    if home.is_dir() and not context.project.is_relative_to(home):
        own = _changes(home)
        found = context.once(_LIST, str(home))
        own |= _changes(home)  # an entry may change meanwhile
        listed = [line.partition(" ") for line in found.stdout.splitlines()]
        if found.policy.image is None:
            own, listed = {(name, "") for name, _ in own}, [("", " ", name) for _, _, name in listed]
        seen = sorted(name for changed, _, name in listed if (name, changed) in own)
        expect(not seen, f"files in the caller's home are visible: {seen[:3]}")


def _changes(directory: Path) -> set[tuple[str, str]]:
    """Return the entries of a directory: the name and the second of the last change, as `_LIST` prints them.

    An image may have files with the same names at the same path, but they were unpacked at another time.
    """
    found = set()
    for name in os.listdir(directory):
        with contextlib.suppress(FileNotFoundError):
            found |= {(name, str(os.lstat(directory / name).st_ctime_ns // 10**9)), (name, "-")}
    return found


@check(FILESYSTEM)
def only_what_was_allowed(context: CheckContext) -> None:
    """Of the host's top-level directories, a box shows only those with programs and libraries."""
    session, seen = _with_programs_of_the_host(context), []
    for top in sorted(set(os.listdir("/")) - _SHARED):
        if (
            context.project.is_relative_to(f"/{top}")
            or not os.access(f"/{top}", os.R_OK)
            or not os.path.isdir(f"/{top}")
        ):
            continue
        listed = set(context.sh(session, 'ls -A "$1" 2>/dev/null', f"/{top}").stdout.splitlines())
        # The box may have its own directory under a name that the host also uses; compare the contents.
        for name in sorted(listed & set(os.listdir(f"/{top}"))):
            inner = set(context.sh(session, 'ls -A "$1" 2>/dev/null', f"/{top}/{name}").stdout.splitlines())
            path = Path("/", top, name)
            if not path.is_dir() or (os.access(path, os.R_OK) and inner & set(os.listdir(path))):
                seen.append(str(path))
    expect(not seen, f"files of the host are visible: {', '.join(seen[:6])}")
    read = context.sh(session, 'for f in "$@"; do [ -r "$f" ] && echo "$f"; done', *_HOSTS_OWN).stdout.split()
    expect(not read, f"settings of the host are readable: {', '.join(read)}")


@check(FILESYSTEM)
def outside_by_symlink(context: CheckContext) -> None:
    """A link in the project that points outside it can be used neither for reading nor for writing."""
    links = ("outside.by-link", "outside.by-root-link", "outside.by-parent-link")
    run_probes(context, *links, "outside.write-by-link", "outside.create-by-link")


@check(FILESYSTEM)
def outside_by_hardlink(context: CheckContext) -> None:
    """Files outside the project can't be hard-linked into it, where they would be writable."""
    run_probes(context, "outside.link")
    targets = ["/etc/passwd", "/usr/bin/env", "/bin/sh", "/proc/1/exe", "/proc/self/exe", "/run/boxagent"]
    made = context.sh(context.session(), _LINK, *targets).stdout.split()
    linked = [path.name for path in context.project.iterdir() if path.is_file() and path.stat().st_nlink > 1]
    if context.isolation is Isolation.NAMESPACE:
        expect(not made, f"hard links were made to {made}")
    expect(not linked, f"the project contains hard links: {linked}")


@check(FILESYSTEM)
def outside_by_proc(context: CheckContext) -> None:
    """/proc/PID/root, cwd and fd of visible processes do not lead outside the box."""
    run_probes(context, "outside.by-cwd", "outside.by-root", "outside.by-init", "outside.by-host*", "outside.by-any*")


@check(FILESYSTEM)
def private_system_files(context: CheckContext) -> None:
    """Password hashes and root's keys are absent or unreadable."""
    _with_programs_of_the_host(context)
    run_probes(context, "system.read-*")


def _with_programs_of_the_host(context: CheckContext) -> Session:
    session = context.session()
    if context.sh(session, "exit 0").policy.image is not None:
        raise NotApplicable(f"system files in a box of {context.provider} come from its image")
    return session


@check(FILESYSTEM)
def private_files_of_others(context: CheckContext) -> None:
    """A box started by root does not have root's access to other users' files."""
    if os.geteuid() != 0:
        raise NotApplicable("the caller is not root, so it has no access to pass on")
    file = context.project / "private"
    file.write_text("private")
    file.chmod(0o600)
    os.chown(file, OTHER_UID, OTHER_UID)
    script = "cat private; echo x >> private; chmod 666 private; chown 0 private; cat private"
    result = context.sh(context.session(), script)
    expect("private" not in result.stdout, "a private file of another user was read")
    unchanged = file.stat().st_uid == OTHER_UID and file.stat().st_mode & 0o777 == 0o600
    expect(unchanged and file.read_text() == "private", "a private file of another user was changed")


@check(FILESYSTEM)
def hidden_state(context: CheckContext) -> None:
    """proofbox's own directories are hidden in the box, even if they are in the project or behind a link into it."""
    _expect_hidden(context, "in their usual place")
    for access in ("rw", "ro", "overlay") if context.enforcement.access_overlay else ("rw",):
        variables = {f"XDG_{name}_HOME": f"{context.project}/{access}/{name}" for name in ("STATE", "CACHE", "CONFIG")}
        with with_environment(**variables):
            _expect_hidden(context, f"within the project, with access {access}", access)
    (context.scratch / "link").symlink_to(context.project)
    with with_environment(XDG_STATE_HOME=f"{context.scratch}/link/linked"):
        _expect_hidden(context, "behind a link into the project")


def _expect_hidden(context: CheckContext, where: str, access: str = "rw") -> None:
    text = f"kept-{context.marker}"
    own = [state_dir(), cache_dir(), config_dir()]
    for directory in own:
        (directory / "kept").write_text(text)
    session = context.session(access="ro" if access == "ro" else "overlay" if access == "overlay" else None)
    script = 'for d in "$@"; do cat "$d/kept"; echo x > "$d/new"; rm -f "$d/kept"; done; grep -r "$0" . | head -3'
    seen = context.sh(session, script, *(str(path) for directory in own for path in {directory, directory.resolve()}))
    session.stop()
    intact = all((directory / "kept").exists() for directory in own)
    new = any((directory / "new").exists() for directory in own)
    for directory in own:
        for name in ("kept", "new"):
            (directory / name).unlink(missing_ok=True)
    expect(text not in seen.stdout, f"the state directory {where} was read")
    expect(intact and not new, f"the state directory {where} was changed")


# Replaces each directory of a list, all of them parents of proofbox's own files, with another of the same name.
_REPLACE = """
for d in "$@"; do
    mv "$d" "$d-moved" 2>/dev/null && echo "moved $d"
    rm -rf "$d" 2>/dev/null
    mkdir -p "$d/proofbox" 2>/dev/null && echo 'provider = "off"' > "$d/proofbox/config.toml" 2>/dev/null
    ln -sfn /tmp "$d" 2>/dev/null
done
"""


@check(MOUNTS)
def replaced_state(context: CheckContext) -> None:
    """No parent of proofbox's own directories can be renamed or replaced through the project or a writable mount."""
    folders = ["home", "home/deep", *(f"home/deep/{name}" for name in ("STATE", "CACHE", "CONFIG"))]
    for root, guest, access in (
        (context.project, str(context.project), "rw"),
        (context.project, "/mnt/project", "rw"),
        (context.outside, "/mnt/outside", "ro"),
    ):
        variables = {f"XDG_{name}_HOME": f"{root}/home/deep/{name}" for name in ("STATE", "CACHE", "CONFIG")}
        with with_environment(**variables):
            (config_dir() / "config.toml").write_text("pids = 50\n")
            own = [directory.stat().st_ino for directory in (state_dir(), cache_dir(), config_dir())]
            mounts = [] if guest == str(root) else [Mount(root, guest, writable=True)]
            session = context.session(access="ro" if access == "ro" else "rw", mounts=mounts)
            done = context.sh(session, _REPLACE, *(f"{guest}/{folder}" for folder in reversed(folders)))
            beside = context.sh(session, 'echo x > "$1/home/deep/beside" && rm "$1/home/deep/beside" && echo ok', guest)
            session.stop()
            expect(not done.stdout, f"at {guest}: {done.stdout.strip()}")
            config = (config_dir() / "config.toml").read_text()
            expect(config == "pids = 50\n", f"at {guest}: the settings were replaced")
            now = [directory.stat().st_ino for directory in (state_dir(), cache_dir(), config_dir())]
            expect(own == now, f"at {guest}: one of proofbox's directories was replaced")
            expect(
                beside.stdout == "ok\n", f"at {guest}: cannot write beside proofbox's directories: {beside.stderr!r}"
            )


@check(MOUNTS)
def replaced_link_to_state(context: CheckContext) -> None:
    """If a link in the project leads to proofbox's own files, the project is refused or the link can't be replaced."""
    (context.outside / "real").mkdir()
    (context.project / "link").symlink_to(context.outside / "real")
    (context.project / "sub").mkdir()
    (context.project / "sub/link").symlink_to(context.outside / "real")
    with with_environment(XDG_CONFIG_HOME=f"{context.project}/link"):
        context.refused(PathRefused, "a link in the project's root", context.session)
        context.session(access="ro").stop()
    with with_environment(XDG_CONFIG_HOME=f"{context.project}/sub/link"):
        session = context.session()
        context.sh(session, "rm -f sub/link; mv sub sub2; mkdir -p sub/link/proofbox")
        session.stop()
        expect((context.project / "sub/link").is_symlink(), "the link was replaced")
