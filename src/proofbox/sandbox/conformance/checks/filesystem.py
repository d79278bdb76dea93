"""Access to the project as requested by the policy, and no changes to the rest of the host."""

from __future__ import annotations

import os
from pathlib import Path

from proofbox.errors import PathRefused, SandboxError
from proofbox.sandbox.conformance.check import (
    FILESYSTEM,
    HIDDEN,
    OVERLAY,
    READ_ONLY,
    NotApplicable,
    ProviderChecks,
    expect,
)
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.conformance.probing import run_probes
from proofbox.sandbox.contract import Access, Isolation, Mount

subject = ProviderChecks("filesystem")
check = subject.check

OTHER_UID = 54321

# Every kind of change; each prints its name when it succeeds.
_CHANGES = """
try() { name=$1; shift; "$@" 2>/dev/null && echo "$name"; }
try create sh -c 'echo x > created'
try append sh -c 'echo x >> kept'
try truncate sh -c ': > kept'
try chmod chmod 700 kept
try touch touch -d '2001-01-01 00:00:00' dir
try mkdir mkdir made
try symlink ln -s kept link
try hardlink ln kept hard
try rename mv kept moved
try remove rm dir/gone
try rename-directory mv dir dir2
"""
CHANGES = [line.split()[1] for line in _CHANGES.strip().splitlines()[1:]]

_PLACES = (
    *("/", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/bin", "/sbin", "/lib", "/etc", "/opt", "/var", "/boot"),
    *("/root", "/home", "/srv", "/mnt"),
)


@check()
def access_rw(context: CheckContext) -> None:
    """Changes in the box appear on the host with the right owner, and changes on the host appear in the box."""
    project, session = context.project, context.session(access="rw")
    _populate(project)
    done = context.sh(session, _CHANGES).stdout.split()
    expect(done == CHANGES, f"these changes failed: {sorted(set(CHANGES) - set(done))}")
    expect((project / "moved").stat().st_mode & 0o777 == 0o700, "a changed mode did not reach the host")
    expect(
        sorted(os.listdir(project)) == ["created", "dir2", "hard", "link", "made", "moved"],
        "the names on the host differ",
    )
    expect(os.readlink(project / "link") == "kept", "the symlink on the host differs")
    for path in project.rglob("*"):
        expect(path.lstat().st_uid == project.stat().st_uid, f"{path.name} belongs to uid {path.lstat().st_uid}")
    late = project / "late"
    late.write_text("late")
    late.chmod(0o600)
    expect(context.sh(session, "cat late").stdout == "late", "the box can't read a private file created later")
    script = project / "script"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    expect(session.exec(["./script"], timeout=5).stdout == "ran\n", "a script in the project does not run")


# Every way to reach a covered path, or to move a directory that contains one; each prints its name when it succeeds.
_UNCOVER = """
try() { name=$1; shift; "$@" >/dev/null 2>&1 && echo "$name"; }
try cat cat sub/deep/secret
try list ls sub/closed/
try cat-below cat sub/closed/secret
try append sh -c 'echo x >> sub/deep/secret'
try create-below sh -c 'echo x > sub/closed/new'
try remove rm -f sub/deep/secret
try move mv sub/deep/secret sub/deep/other
try move-directory mv sub/closed sub/other
try move-parent mv sub/deep sub/other
try move-grandparent mv sub other
try hardlink ln sub/deep/secret hard
try chmod chmod 777 sub/deep/secret sub/closed
try unmount umount sub/closed
try change-frozen sh -c 'echo x >> fixed/kept'
try create-in-frozen sh -c 'echo x > fixed/new'
try remove-frozen rm -rf fixed/kept
try move-frozen mv fixed other
"""


@check(HIDDEN)
def hidden_and_frozen(context: CheckContext) -> None:
    """Hidden paths can't be opened or moved, frozen paths can't be changed; the rest of the project is unaffected."""
    project, (_, text) = context.project, context.secret()
    for path in ("sub/deep/secret", "sub/closed/secret", "sub/deep/open", "fixed/kept"):
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text if "secret" in path else "kept")
    access: Access
    for access in ("rw", "ro"):
        before = _read_tree(project)
        session = context.session(access=access, hidden=["sub/deep/secret", "sub/closed"], frozen=["fixed"])
        done = context.sh(session, _UNCOVER).stdout.split()
        expect(not done, f"with access {access} these succeeded: {', '.join(done)}")
        seen = context.sh(session, "cat fixed/kept sub/deep/open; grep -r kept- . 2>/dev/null")
        expect(seen.stdout == "keptkept", f"with access {access} the box read {seen.stdout!r}")
        expect(_read_tree(project) == before, "the project was changed")
        if access == "rw":
            made = context.sh(
                session, "echo x > sub/deep/new && rm sub/deep/new && mkdir sub/n && rmdir sub/n && echo ok"
            )
            expect(made.stdout == "ok\n", f"cannot write beside a hidden path: {made.stderr!r}")
        session.stop()
    for absent in ("none", "sub/none", "../outside", "."):
        context.refused(PathRefused, absent, context.session, hidden=[absent])
    (project / "link").symlink_to("sub")
    context.refused(PathRefused, "a link", context.session, frozen=["link/deep"])
    expect(not (project / "none").exists(), "a missing path to hide was created")


@check(HIDDEN)
def writable_parts(context: CheckContext) -> None:
    """A directory of a read-only project is writable if it is mounted writable over itself."""
    project = context.project
    for name in ("src", "doc"):
        (project / name).mkdir()
        (project / name / "f").write_text("before")
    session = context.session(access="ro", mounts=[Mount(project / "src", str(project / "src"), writable=True)])
    done = context.sh(session, "echo x > src/f && mkdir src/new; echo x > doc/f; echo x > top; mv src other").stderr
    expect(
        (project / "src/f").read_text() == "x\n" and (project / "src/new").is_dir(),
        f"cannot write to the writable directory: {done!r}",
    )
    expect((project / "src/f").stat().st_uid == project.stat().st_uid, "the written file has another owner")
    expect((project / "doc/f").read_text() == "before", "a file in the read-only part was written")
    expect(sorted(os.listdir(project)) == ["doc", "src"], "the read-only root was changed")


@check(HIDDEN)
def covers_at_another_place(context: CheckContext) -> None:
    """A mount of the project at another path has the same read-only, hidden and frozen parts."""
    project, (_, text) = context.project, context.secret()
    for path in ("src/f", "src/fixed", "doc/f", "doc/secret"):
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text if "secret" in path else "before")
    place = "/place/of/it"
    mounts = [Mount(project, place, writable=True), Mount(project / "src", str(project / "src"), writable=True)]
    session = context.session(access="ro", mounts=mounts, hidden=["doc/secret"], frozen=["src/fixed"])
    for where in (str(project), place):
        seen = context.sh(session, 'cd "$1"; cat doc/secret; for f in doc/f src/fixed new; do echo x > $f; done', where)
        expect(text not in seen.stdout, f"a hidden file was read at {where}")
        written = context.sh(session, 'echo "$1" > "$1/src/f"', where)
        expect((project / "src/f").read_text() == f"{where}\n", f"cannot write at {where}: {written.stderr!r}")
    expect((project / "doc/f").read_text() == "before", "a file in the read-only part was written")
    expect((project / "src/fixed").read_text() == "before", "a frozen file was written")
    expect(sorted(os.listdir(project)) == ["doc", "src"], "the read-only root was changed")


@check(READ_ONLY)
def access_ro(context: CheckContext) -> None:
    _populate(context.project)
    session = context.session(access="ro")
    read = context.sh(session, "cat kept; cat dir/gone")
    expect(read.stdout == "keptgone", f"the project can't be read: {read.stderr!r}")
    run_probes(context, "readonly.*", access="ro")
    own = context.sh(session, "echo x > /tmp/x && cat /tmp/x").stdout
    expect(own == "x\n", "the box can't write to its own /tmp")


@check(FILESYSTEM)
def shared_memory(context: CheckContext) -> None:
    """The box has its own /dev/shm, which POSIX semaphores and `multiprocessing` need."""
    place = f"/dev/shm/proofbox-{os.getpid()}"  # noqa: S108
    own = context.sh(context.session(access="ro"), f"echo x > {place} && cat {place} && stat -c %a /dev/shm")
    expect(own.stdout == "x\n1777\n", f"shared memory can't be used: {own.stdout!r} {own.stderr!r}")
    expect(not os.path.exists(place), "the box shares the host's shared memory")


@check(OVERLAY)
def access_overlay(context: CheckContext) -> None:
    """All changes succeed and last as long as the session; the project's contents, modes and times don't change."""
    _populate(context.project)
    before = _read_tree(context.project)
    session = context.session(access="overlay")
    done = context.sh(session, _CHANGES).stdout.split()
    expect(done == CHANGES, f"changes failed in an overlay: {sorted(set(CHANGES) - set(done))}")
    seen = context.sh(session, "ls -a . dir2; cat moved; rm -rf ./*; ls")
    expect("created" in seen.stdout and "kept\n" not in seen.stdout, f"the session sees {seen.stdout!r}")
    expect(_read_tree(context.project) == before, "the project under the overlay was changed")
    session.stop()
    expect(_read_tree(context.project) == before, "stopping the session changed the project under the overlay")
    later = context.once("cat kept", access="overlay").stdout
    expect(later == "kept", "a later overlay does not start from the project")


@check(FILESYSTEM)
def read_only_host(context: CheckContext) -> None:
    """Writes to system directories never reach the host; they fail if the directories are the host's."""
    session = context.session()
    context.fence(session)
    context.sh(session, 'for d in "$@"; do (echo x > "$d/$0") 2>/dev/null; done', *_PLACES)
    hit = [path for place in _PLACES if os.path.lexists(path := f"{place}/{context.marker}")]
    for path in hit:
        os.unlink(path)
    expect(not hit, f"a command made {', '.join(hit)} on the host")
    run_probes(context, "system.write-*")
    if context.isolation is Isolation.NAMESPACE:
        changed = context.sh(session, "chmod u+w /usr 2>/dev/null && echo changed").stdout
        expect(not changed, "a command may change the mode of /usr")


@check(FILESYSTEM)
def project_of_another_user(context: CheckContext) -> None:
    """A box that root starts for a user's project runs as that user and creates no files owned by root."""
    if os.geteuid() != 0:
        raise NotApplicable("only root can work in another user's project")
    home = context.scratch / "home"
    project = home / "theirs"
    project.mkdir(parents=True)
    home.chmod(0o700)
    os.chown(project, OTHER_UID, OTHER_UID + 1)
    result = context.sh(context.session(context.over(project)), "mkdir dir && echo made > dir/made")
    expect(result.exit_code == 0, f"exit {result.exit_code}: {result.stderr!r}")
    owner = (project / "dir" / "made").stat()
    owned = (owner.st_uid, owner.st_gid) == (OTHER_UID, OTHER_UID + 1)
    expect(owned, f"a file created in the box belongs to {owner.st_uid}:{owner.st_gid}")


@check()
def vanished_project(context: CheckContext) -> None:
    """When its project is removed, a running session fails with an error or continues, and can be stopped."""
    doomed = context.scratch / "doomed"
    doomed.mkdir()
    session = context.session(context.over(doomed))
    context.alive(session)
    doomed.rmdir()
    try:
        result = context.sh(session, "echo here")
    except SandboxError:
        return
    expect(result.stdout == "here\n", f"a command returned exit {result.exit_code}, {result.stdout!r}")


def _populate(project: Path) -> None:
    (project / "dir").mkdir()
    for name in ("kept", "dir/gone", "dir/other"):
        (project / name).write_text(Path(name).name)


def _read_tree(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    tree = {}
    for path in [root, *sorted(root.rglob("*"))]:
        st = path.lstat()
        tree[str(path)] = (st.st_mode, st.st_uid, st.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return tree
