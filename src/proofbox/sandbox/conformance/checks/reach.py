"""Nothing of the host but what was given: not by path, link, /proc or any other name."""

from __future__ import annotations

import os
from pathlib import Path

from proofbox.core.dirs import cache_dir, config_dir, state_dir
from proofbox.errors import PathRefused
from proofbox.sandbox.conformance.check import FILESYSTEM, MOUNTS, NotApplicable, ProviderChecks, expect
from proofbox.sandbox.conformance.checks.filesystem import STRANGER
from proofbox.sandbox.conformance.context import CheckContext, with_environment
from proofbox.sandbox.contract import Isolation, Mount

subject = ProviderChecks("reach")
check = subject.check

# What a box may have from the host, or has of its own by the same name.
_SHARED = frozenset(
    ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt", "nix", "etc", "proc", "dev", "sys")
)
_HOSTS_OWN = ("/etc/machine-id", "/etc/fstab", "/etc/hostname", "/etc/ssh/sshd_config", "/etc/crontab")
_PRIVATE = "/etc/shadow /etc/gshadow /etc/shadow- /etc/sudoers /etc/ssl/private/* /root/.ssh/* /root/.* /etc/ssh/*_key"
_BY_PROC = """
for p in /proc/[0-9]* /proc/self /proc/thread-self; do
    for w in "root$1" "cwd$1" cwd/../outside/secret "cwd/../../../../../..$1" "task/*/root$1"; do
        cat "$p/"$w
    done
    for f in "$p"/fd/*; do
        cat "$f$1" "$f/../outside/secret"
    done
done 2>/dev/null
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
    """The neighbours of the project are not there, however they are named; nor is anything of the caller's home."""
    secret, text = context.secret()
    session = context.session()
    names = ["../outside/secret", "/proc/self/cwd/../outside/secret", f"{context.project}/../outside/secret"]
    for name in (str(secret), f"//{secret}", *names):
        result = context.sh(session, 'cat "$1"; cat < "$1"', name)
        expect(text not in result.stdout, f"{name} was read")
    tampering = "mkdir -p ../outside; for f in new secret; do echo x >> ../outside/$f; done; echo x > ../new"
    context.sh(session, f"{tampering}; rm -rf ../outside")
    expect(secret.exists() and secret.read_text() == text + "\n", "a file outside was written to, or removed")
    strays = [str(path) for path in (context.outside / "new", context.scratch / "new") if path.exists()]
    expect(not strays, f"a command made {strays}")
    home = Path.home()
    if home.is_dir() and not context.project.is_relative_to(home):
        listed = context.sh(session, 'ls -A "$1" 2>/dev/null', str(home)).stdout.splitlines()
        seen = sorted(set(listed) & set(os.listdir(home)))
        expect(not seen, f"in the caller's home can be seen: {seen[:3]}")


@check(FILESYSTEM)
def only_what_was_allowed(context: CheckContext) -> None:
    """Of the host's top directories a box shows programs and libraries, and nothing else of what there is."""
    if context.isolation is not Isolation.NAMESPACE:
        raise NotApplicable(f"the system's files in a box of {context.provider} are its image's own")
    session, seen = context.session(), []
    for top in sorted(set(os.listdir("/")) - _SHARED):
        if (
            context.project.is_relative_to(f"/{top}")
            or not os.access(f"/{top}", os.R_OK)
            or not os.path.isdir(f"/{top}")
        ):
            continue
        listed = set(context.sh(session, 'ls -A "$1" 2>/dev/null', f"/{top}").stdout.splitlines())
        # An entry that the box has of its own, under a name that the host has too, is told apart by what is in it.
        for name in sorted(listed & set(os.listdir(f"/{top}"))):
            inner = set(context.sh(session, 'ls -A "$1" 2>/dev/null', f"/{top}/{name}").stdout.splitlines())
            path = Path("/", top, name)
            if not path.is_dir() or (os.access(path, os.R_OK) and inner & set(os.listdir(path))):
                seen.append(str(path))
    expect(not seen, f"of the host can be seen: {', '.join(seen[:6])}")
    read = context.sh(session, 'for f in "$@"; do [ -r "$f" ] && echo "$f"; done', *_HOSTS_OWN).stdout.split()
    expect(not read, f"of the host's settings can be read: {', '.join(read)}")


@check(FILESYSTEM)
def outside_by_symlink(context: CheckContext) -> None:
    """A link in the project that points out of it points nowhere, for reading and for writing."""
    secret, text = context.secret()
    (context.project / "link").symlink_to(secret)
    (context.project / "directory").symlink_to(context.outside)
    (context.project / "relative").symlink_to("../outside/secret")
    (context.project / "magic").symlink_to(f"/proc/1/root{secret}")
    script = "for f in link relative directory/secret magic; do cat $f; echo x >> $f; done; echo x > directory/new"
    result = context.sh(context.session(), script)
    expect(text not in result.stdout, "a link led to the secret")
    expect(secret.read_text() == text + "\n", "a file outside was written to through a link")
    expect(not (context.outside / "new").exists(), "a file was made outside through a link")


@check(FILESYSTEM)
def outside_by_hardlink(context: CheckContext) -> None:
    """No second name for what is not the project's: it would carry the right to write over to another path."""
    secret, _ = context.secret()
    targets = [str(secret), "/etc/passwd", "/usr/bin/env", "/bin/sh", "/proc/1/exe", "/proc/self/exe", "/run/boxagent"]
    made = context.sh(context.session(), _LINK, *targets).stdout.split()
    linked = [path.name for path in context.project.iterdir() if path.is_file() and path.stat().st_nlink > 1]
    if context.isolation is Isolation.NAMESPACE:
        expect(not made, f"hard links were made to {made}")
    expect(not linked, f"in the project are hard links: {linked}")


@check(FILESYSTEM)
def outside_by_proc(context: CheckContext) -> None:
    """/proc/PID/root, cwd and fd of whatever is visible lead no further than the box does."""
    secret, text = context.secret()
    with context.host_process():
        result = context.sh(context.session(), _BY_PROC, str(secret))
    expect(text not in result.stdout, "the secret was read through /proc")


@check(FILESYSTEM)
def private_system_files(context: CheckContext) -> None:
    """The shadow of passwords and root's own keys are not there, or can't be read."""
    if context.isolation is not Isolation.NAMESPACE:
        raise NotApplicable(f"the system's files in a box of {context.provider} are its image's own")
    read = context.sh(context.session(), f"cat {_PRIVATE} 2>/dev/null | wc -c").stdout.strip()
    expect(read == "0", f"{read} bytes of {_PRIVATE} were read")


@check(FILESYSTEM)
def private_files_of_others(context: CheckContext) -> None:
    """Started by root, the box has none of root's power over other users' files."""
    if os.geteuid() != 0:
        raise NotApplicable("the caller is not root: it has no such power to lend")
    file = context.project / "private"
    file.write_text("private")
    file.chmod(0o600)
    os.chown(file, STRANGER, STRANGER)
    script = "cat private; echo x >> private; chmod 666 private; chown 0 private; cat private"
    result = context.sh(context.session(), script)
    expect("private" not in result.stdout, "a private file of another user was read")
    unchanged = file.stat().st_uid == STRANGER and file.stat().st_mode & 0o777 == 0o600
    expect(unchanged and file.read_text() == "private", "a private file of another user was changed")


@check(FILESYSTEM)
def hidden_state(context: CheckContext) -> None:
    """proofbox's own directories are not in the box, not even when the project, or a way into it, holds them."""
    _hidden(context, "in their usual place")
    for access in ("rw", "ro", "overlay") if context.enforcement.access_overlay else ("rw",):
        variables = {f"XDG_{name}_HOME": f"{context.project}/{access}/{name}" for name in ("STATE", "CACHE", "CONFIG")}
        with with_environment(**variables):
            _hidden(context, f"within the project, with access {access}", access)
    (context.scratch / "link").symlink_to(context.project)
    with with_environment(XDG_STATE_HOME=f"{context.scratch}/link/linked"):
        _hidden(context, "behind a link into the project")


def _hidden(context: CheckContext, where: str, access: str = "rw") -> None:
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


# Replace each directory of the list, which lead to proofbox's own files, by others of the same name.
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
    """No directory above proofbox's own can be renamed or replaced, through the project or a writable mount."""
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
            said = (config_dir() / "config.toml").read_text()
            expect(said == "pids = 50\n", f"at {guest}: the settings were replaced")
            now = [directory.stat().st_ino for directory in (state_dir(), cache_dir(), config_dir())]
            expect(own == now, f"at {guest}: a directory of proofbox's own was replaced")
            expect(beside.stdout == "ok\n", f"at {guest}: nothing can be written beside them: {beside.stderr!r}")


@check(MOUNTS)
def replaced_link_to_state(context: CheckContext) -> None:
    """A project with a link to proofbox's own files that could be replaced is refused, or the link can't be."""
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
