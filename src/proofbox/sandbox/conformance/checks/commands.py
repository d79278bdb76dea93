"""Starting and ending commands: exit codes, environment, working directory, concurrency."""

from __future__ import annotations

import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from proofbox.errors import CommandNotExecutable, CommandNotFound, PathRefused, ProofboxError, RequestInvalid
from proofbox.sandbox.conformance.check import FILESYSTEM, ProviderChecks, expect
from proofbox.sandbox.conformance.context import COMMAND_TIMEOUT, CheckContext, with_environment
from proofbox.sandbox.service import Session

subject = ProviderChecks("commands")
check = subject.check

# The allowlist: variables that a command may have without the caller setting them.
_ALLOWED = {"PATH", "HOME", "USER", "SHELL", "LANG", "TERM", "TMPDIR", "TZ"}
CONCURRENT = 20


@check()
def exit_codes(context: CheckContext) -> None:
    session = context.session()
    for code in (0, 1, 2, 126, 127, 128, 254, 255):
        result = context.sh(session, f"exit {code}")
        expect(result.exit_code == code, f"exit {code} was reported as {result.exit_code}")
        expect(result.signal is None and not result.timed_out, f"exit {code} was reported as a signal or a timeout")
        expect(result.provider == context.provider, f"the result names the provider {result.provider!r}")
        expect(result.isolation == context.isolation, f"the result states the isolation {result.isolation.value!r}")


@check()
def signal_deaths(context: CheckContext) -> None:
    """Death by signal n gives exit code 128 + n and sets `signal`; a shell that exits with 128 + n does not set it."""
    session = context.session()
    for name, number in (("KILL", 9), ("TERM", 15), ("INT", 2), ("ABRT", 6), ("USR1", 10)):
        result = context.sh(session, f"kill -{name} $$; sleep 5")
        expect(result.signal == number, f"death by SIG{name} was reported as signal {result.signal}")
        expect(result.exit_code == 128 + number, f"death by SIG{name} was reported as exit {result.exit_code}")
        expect(not result.timed_out, f"death by SIG{name} was reported as a timeout")
    result = context.sh(session, "sh -c 'kill -9 $$'; exit $?")
    expect(result.exit_code == 137, f"a shell's exit code 137 was reported as {result.exit_code}")
    expect(result.signal is None, "a child's death by signal was reported as the shell's")


@check()
def not_started(context: CheckContext) -> None:
    """A command that can't be started raises an error, unlike one that runs and fails."""
    session = context.session()
    plain, empty = context.project / "plain", context.project / "garbage"
    plain.write_text("#!/bin/sh\necho no\n")
    plain.chmod(0o644)
    empty.write_bytes(b"\x01\x02\x03\x04")
    empty.chmod(0o755)
    for kind, what, argv in (
        (CommandNotFound, "a command that does not exist", [context.marker]),
        (CommandNotExecutable, "a file without an x bit", ["./plain"]),
        (CommandNotExecutable, "a file in no executable format", ["./garbage"]),
        (CommandNotExecutable, "a directory", ["/"]),
        (RequestInvalid, "a NUL byte", ["echo", "a\0b"]),
        (RequestInvalid, "10 MB of argv", ["echo", "x" * 10_000_000]),
    ):
        context.refused(kind, what, session.exec, argv, timeout=COMMAND_TIMEOUT)
    context.alive(session)


@check()
def arguments(context: CheckContext) -> None:
    """No shell interprets the arguments: each arrives unchanged, including empty and unprintable ones."""
    session = context.session()
    words = ["", "a b", "$HOME", "*", "'\"", "\\", "-n", "\n", "ü", "x" * 100_000]
    result = session.exec(["printf", "%s\\0", *words], timeout=COMMAND_TIMEOUT)
    expect(
        result.stdout_bytes == b"".join(word.encode() + b"\0" for word in words),
        f"argv arrived as {result.stdout[:300]!r}",
    )
    raw = bytes(range(128, 256))
    result = session.exec([b"printf", b"%s", raw], timeout=COMMAND_TIMEOUT)
    expect(result.stdout_bytes == raw, f"bytes that are not UTF-8 arrived as {result.stdout_bytes[:100]!r}")


@check()
def environment(context: CheckContext) -> None:
    """A command gets the allowlist and the variables that the caller passes; the caller's other variables stay out."""
    value = f"kept-{secrets.token_hex(12)}"
    with with_environment(PROOFBOX_CHECK_API_KEY=value, LD_PRELOAD_CHECK=value, XPATH=value):
        session = context.session()
        bare = session.exec(["env"], timeout=COMMAND_TIMEOUT)
        named = session.exec(["env"], env={"ASKED_FOR": "yes & no", "EMPTY": ""}, timeout=COMMAND_TIMEOUT)
    expect(value not in bare.stdout, "a variable from the caller's environment reached the command")
    names = {line.partition("=")[0] for line in bare.stdout.splitlines()}
    extra = sorted(name for name in names - _ALLOWED - {"_", "PWD", "SHLVL"} if not name.startswith("LC_"))
    expect(not extra, f"not on the allowlist: {', '.join(extra)}")
    expect("PATH" in names, "PATH is not set")
    lines = named.stdout.splitlines()
    expect(
        "ASKED_FOR=yes & no" in lines and "EMPTY=" in lines, f"variables passed by the caller did not arrive: {lines}"
    )


@check(FILESYSTEM)
def environment_by_proc(context: CheckContext) -> None:
    """No process that is visible to a command, including the agent, has the caller's environment."""
    value = f"kept-{secrets.token_hex(12)}"
    with with_environment(PROOFBOX_CHECK_API_KEY=value), context.host_process({"PROOFBOX_CHECK_API_KEY": value}):
        session = context.session()
        # Control: the same search finds a variable in a command's own environment.
        script = 'for p in /proc/[0-9]*; do cat "$p/environ" 2>/dev/null; done | tr "\\0" "\\n" | grep -c "$1"'
        found = context.sh(session, script, value)
        control = context.sh(session, script, "CONTROL=seen", env={"CONTROL": "seen"})
    expect(int(control.stdout or 0) > 0, f"the command can't see its own environment: {control.stderr!r}")
    expect(int(found.stdout or 0) == 0, f"{found.stdout.strip()} processes in the box have the caller's secret")


@check()
def working_directory(context: CheckContext) -> None:
    (context.project / "sub" / "deep").mkdir(parents=True)
    (context.project / "inner").symlink_to("sub/deep")
    session = context.session()
    context.sh(session, "echo here > mark")
    expect((context.project / "mark").read_text() == "here\n", "the default working directory is not the project")
    for cwd in ("sub/deep", context.project / "sub" / "deep", "inner", "sub/../sub/deep", "."):
        result = context.sh(session, "pwd -P; echo x > here", cwd=cwd)
        expect(result.exit_code == 0, f"cannot use cwd {str(cwd)!r}: {result.stderr!r}")
        where = context.project / cwd / "here"
        expect(where.exists(), f"cwd {str(cwd)!r} led to {result.stdout.strip()!r}")
        where.unlink()


@check()
def working_directory_refused(context: CheckContext) -> None:
    """A working directory outside the project is refused, by any path or link, and the command does not run."""
    (context.project / "file").write_text("")
    (context.project / "way-out").symlink_to(context.outside)
    (context.project / "loop").symlink_to("loop")
    session = context.session()
    for cwd in (
        "..",
        "/",
        context.outside,
        "way-out",
        "../outside",
        "missing",
        "file",
        "loop",
        "way-out/../project/..",
    ):
        ran = context.project / "ran"
        argv = ["touch", str(ran)]
        context.refused(PathRefused, f"cwd {str(cwd)!r}", session.exec, argv, cwd=cwd, timeout=COMMAND_TIMEOUT)
        expect(not ran.exists(), f"cwd {str(cwd)!r} was refused, but the command ran")
    context.alive(session)


@check()
def odd_project_names(context: CheckContext) -> None:
    """A project may have any name that the file system allows; no name is parsed as an option, separator or pattern."""
    for name in ("a b", "-x", "com,ma:colon", "new\nline", "quo'te\"$(x)`", "ü", "%s\\n*?"):
        project = context.scratch / name
        project.mkdir()
        session = context.session(context.over(project))
        result = context.sh(session, "echo x > made")
        expect(result.exit_code == 0 and (project / "made").exists(), f"project named {name!r}: {result.stderr!r}")
        session.stop()


@check()
def concurrent_commands(context: CheckContext) -> None:
    """Commands of one session run concurrently, each with its own streams and exit code."""
    session = context.session()
    up = threading.Semaphore(0)
    script = 'echo up; until [ -e go ]; do sleep 0.1; done; echo "out $1"; echo "err $1" >&2; exit "$1"'

    def one(number: int) -> str:
        result = context.sh(session, script, str(number), on_output=lambda _: up.release())
        answer = (result.exit_code, result.stdout, result.stderr)
        as_expected = answer == (number, f"up\nout {number}\n", f"err {number}\n")
        return "" if as_expected else f"command {number} returned {answer}"

    with ThreadPoolExecutor(CONCURRENT) as pool:
        running = [pool.submit(one, number) for number in range(CONCURRENT)]
        started = [up.acquire(timeout=COMMAND_TIMEOUT) for _ in running]
        (context.project / "go").touch()
        wrong = [text for text in (each.result() for each in running) if text]
    expect(all(started), f"only {sum(started)} of {CONCURRENT} commands ran concurrently")
    expect(not wrong, "; ".join(wrong[:3]))


@check()
def one_failure_among_many(context: CheckContext) -> None:
    """A command that dies or times out affects neither its session nor the other commands in it."""
    session = context.session()
    up = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        steady = pool.submit(context.sh, session, "sleep 1; echo steady; exit 3")
        dying = pool.submit(context.sh, session, "sleep 0.1; kill -9 $$")
        late = pool.submit(context.sh, session, "echo up; sleep 30", timeout=0.6, on_output=lambda _: up.set())
        up.wait(COMMAND_TIMEOUT)
        younger = pool.submit(context.sh, session, "sleep 1; echo steady; exit 3")
        expect(dying.result().signal == 9, "the killed command was not reported as killed by SIGKILL")
        expect(late.result().timed_out, "the command that exceeded its timeout was reported without timed_out")
        for which, command in (("an earlier", steady), ("a later", younger)):
            result = command.result()
            answer = (result.exit_code, result.stdout)
            expect(answer == (3, "steady\n"), f"{which} command in the session returned {answer}")
    context.alive(session)


@check()
def started_by_a_thread_that_ended(context: CheckContext) -> None:
    """A box outlives the thread that started it; bubblewrap's --die-with-parent would kill it with that thread."""
    started: list[Session] = []
    thread = threading.Thread(target=lambda: started.append(context.session()))
    thread.start()
    thread.join()
    expect(started, "the session did not start in a thread")
    time.sleep(0.2)
    context.alive(started[0])


@check()
def private_project(context: CheckContext) -> None:
    """A box can use the caller's project with mode 0700 in a directory with mode 0700, even as root; the caller keeps
    ownership of all files."""
    home = context.scratch / "home"
    project = home / "project"
    project.mkdir(parents=True)
    (project / "mine").write_text("mine")
    for path, mode in ((project / "mine", 0o600), (project, 0o700), (home, 0o700)):
        path.chmod(mode)
    session = context.session(context.over(project))
    result = context.sh(session, "cat mine && echo more >> mine && echo made > made && mkdir dir && echo x > dir/x")
    expect(result.exit_code == 0, f"exit {result.exit_code}: {result.stderr!r}")
    expect((project / "mine").read_text() == "minemore\n", "the change did not reach the file on the host")
    for path in (project / "made", project / "dir" / "x"):
        owner = path.stat().st_uid
        expect(owner == os.geteuid(), f"a file created in the box belongs to uid {owner}")


@check()
def errors_have_diagnostics(context: CheckContext) -> None:
    """Every error from a box names its provider and carries diagnostics."""
    session = context.session()
    try:
        session.exec([context.marker], timeout=COMMAND_TIMEOUT)
    except ProofboxError as error:
        expect(error.details.get("provider") == context.provider, f"the error's details are {error.details}")
        expect("diagnostics" in error.details, "the error carries no diagnostics")
        return
    expect(False, "a command that does not exist ran")
