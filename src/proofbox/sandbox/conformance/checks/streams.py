"""Standard streams: stdout and stderr stay separate, carry any bytes in any amount, and stdin ends."""

from __future__ import annotations

import io
import resource
import time
import zlib
from pathlib import Path

from proofbox.sandbox.conformance.check import OWN_STREAMS, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import COMMAND_TIMEOUT, CheckContext
from proofbox.sandbox.contract import Output

subject = ProviderChecks("streams")
check = subject.check

LARGE = 100_000_000
CAP = 1 << 20
# Memory may grow by the output kept and in transit, but not by the whole 100 MB.
FLAT = 48 << 20


@check()
def separate_streams(context: CheckContext) -> None:
    session = context.session()
    result = context.sh(session, "echo out; echo err >&2; printf tail; printf 'more\n' >&2")
    expect(result.stdout_bytes == b"out\ntail", f"stdout is {result.stdout_bytes!r}")
    expect(result.stderr_bytes == b"err\nmore\n", f"stderr is {result.stderr_bytes!r}")
    expect(not result.truncated.stdout and not result.truncated.stderr, "short output is reported as truncated")
    silent = context.sh(session, ":")
    expect((silent.stdout_bytes, silent.stderr_bytes) == (b"", b""), "a command that prints nothing has output")


@check(OWN_STREAMS)
def dev_stdout(context: CheckContext) -> None:
    """/dev/stdout and /dev/stderr can be opened, as scripts do, with and without a stdin."""
    session = context.session()
    for stdin in (None, b"in\n"):
        script = 'echo out > /dev/stdout; echo err > /dev/stderr; [ -z "$1" ] || cat /dev/stdin'
        result = context.sh(session, script, "x" if stdin else "", stdin=stdin)
        expect((result.stdout, result.stderr) == ("out\n" + ("in\n" if stdin else ""), "err\n"), f"{result.stderr!r}")


@check()
def binary_output(context: CheckContext) -> None:
    session = context.session()
    every = "".join(f"\\{value:03o}" for value in range(256))
    result = context.sh(session, f"printf '{every}'; printf '\\377\\000\\n' >&2")
    expect(result.stdout_bytes == bytes(range(256)), f"the 256 bytes arrived as {result.stdout_bytes[:40]!r}…")
    expect(result.stderr_bytes == b"\xff\x00\n", f"stderr arrived as {result.stderr_bytes!r}")


@check(seconds=100)
def large_output_capped(context: CheckContext) -> None:
    """Of 100 MB with a cap of 1 MB, head and tail are kept, the omission is stated, and memory use stays low."""
    session = context.session()
    before = _resident()
    result = context.sh(
        session,
        'printf HEAD; head -c "$1" /dev/zero | tr "\\0" x; printf TAIL; echo small >&2',
        str(LARGE),
        max_output=CAP,
        timeout=context.patience(60),
    )
    expect(result.exit_code == 0, f"exit {result.exit_code}: {result.stderr!r}")
    expect(result.truncated.stdout, "stdout is not reported as truncated")
    expect(not result.truncated.stderr and result.stderr == "small\n", "stderr is truncated or differs")
    expect(
        CAP <= len(result.stdout_bytes) <= CAP + 200, f"{len(result.stdout_bytes)} bytes were kept for a cap of {CAP}"
    )
    expect(result.stdout_bytes.startswith(b"HEADxxxx"), f"the head is {result.stdout_bytes[:20]!r}")
    expect(result.stdout_bytes.endswith(b"xxxxTAIL"), f"the tail is {result.stdout_bytes[-20:]!r}")
    omitted = str(LARGE + 8 - CAP).encode()
    expect(omitted in result.stdout_bytes, f"the output does not state that {omitted.decode()} bytes were omitted")
    grown = _resident() - before
    expect(grown < FLAT, f"memory grew by {grown >> 20} MB")
    context.alive(session)


@check(seconds=100)
def large_output_streamed(context: CheckContext) -> None:
    """Of 100 MB streamed to a reader, every byte arrives in order, and no more than the cap is kept."""
    session = context.session()
    seen = {"bytes": 0, "crc": 0, "peak": 0, "pieces": 0}
    before = _resident()

    def on_output(piece: Output) -> None:
        seen["bytes"] += len(piece.data)
        seen["crc"] = zlib.crc32(piece.data, seen["crc"])
        seen["pieces"] += 1
        if seen["pieces"] % 64 == 0:
            seen["peak"] = max(seen["peak"], _resident())

    script = 'yes 0123456789abcde | head -c "$1"'  # 16 bytes per line, so that a wrong order would show
    result = context.sh(session, script, str(LARGE), on_output=on_output, max_output=CAP, timeout=context.patience(60))
    expect(result.exit_code == 0, f"exit {result.exit_code}: {result.stderr!r}")
    expect(seen["bytes"] == LARGE, f"{seen['bytes']} of {LARGE} bytes arrived")
    line, crc = b"0123456789abcde\n" * 6250, 0
    for _ in range(LARGE // len(line)):
        crc = zlib.crc32(line, crc)
    expect(seen["crc"] == crc, "the bytes that arrived differ from those written")
    grown = seen["peak"] - before
    expect(grown < FLAT, f"memory grew by {grown >> 20} MB")
    expect(result.truncated.stdout and len(result.stdout_bytes) <= CAP + 200, "the result kept more than its cap")


@check()
def both_streams_full(context: CheckContext) -> None:
    """Two full pipes do not block each other."""
    session = context.session()
    result = context.sh(session, "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait")
    expect(len(result.stdout_bytes) == 3_000_000, f"stdout has {len(result.stdout_bytes)} bytes")
    expect(len(result.stderr_bytes) == 3_000_000, f"stderr has {len(result.stderr_bytes)} bytes")


@check()
def live_output(context: CheckContext) -> None:
    """A reader sees output while the command still runs, with the stream it came from."""
    session = context.session()
    pieces: list[Output] = []

    def on_output(piece: Output) -> None:
        pieces.append(piece)
        (context.project / "seen").touch()

    result = context.sh(
        session, "echo one; until [ -e seen ]; do sleep 0.05; done; sleep 0.3; echo two >&2", on_output=on_output
    )
    expect(not result.timed_out, "output written before a wait did not arrive during the wait")
    expect(
        [(p.stream, p.data) for p in pieces] == [("stdout", b"one\n"), ("stderr", b"two\n")],
        f"the output arrived as {pieces}",
    )
    expect(pieces[1].at_ms - pieces[0].at_ms > 150, "the timestamps do not show when the output was written")


@check()
def stdin_until_eof(context: CheckContext) -> None:
    session = context.session()
    for stdin in (b"hello\n", b"\x00\xff\x04", "text"):
        result = session.exec(["cat"], stdin=stdin, timeout=COMMAND_TIMEOUT)
        expected = stdin.encode() if isinstance(stdin, str) else stdin
        expect(
            result.stdout_bytes == expected and not result.timed_out,
            f"`cat` returned {result.stdout_bytes!r} for {stdin!r}",
        )
    result = session.exec(["cat"], stdin=io.BytesIO(b"from a file"), timeout=COMMAND_TIMEOUT)
    expect(result.stdout == "from a file", f"`cat` returned {result.stdout!r} for a file as stdin")


@check()
def stdin_absent_or_empty(context: CheckContext) -> None:
    """Without stdin, a command that reads gets end of file immediately; it never waits for a terminal."""
    session = context.session()
    for stdin in (None, b"", io.BytesIO()):
        result = session.exec(["cat"], stdin=stdin, timeout=COMMAND_TIMEOUT)
        expect(not result.timed_out and result.exit_code == 0, f"with stdin {stdin!r}, `cat` timed out or failed")
        expect(result.stdout_bytes == b"", f"with stdin {stdin!r}, `cat` read {result.stdout_bytes!r}")


@check()
def stdin_large(context: CheckContext) -> None:
    """Far more input than any buffer holds, while output is written: no deadlock, and nothing is lost."""
    session = context.session()
    data = bytes(range(251)) * 40_000  # 10 MB; 251 is prime, so that no block repeats
    result = session.exec(["cat"], stdin=data, timeout=COMMAND_TIMEOUT, max_output=len(data) + 1)
    expect(
        result.stdout_bytes == data, f"`cat` returned {len(result.stdout_bytes)} bytes for {len(data)}, or other bytes"
    )
    counted = session.exec(["wc", "-c"], stdin=io.BytesIO(data), timeout=COMMAND_TIMEOUT)
    expect(counted.stdout.strip() == str(len(data)), f"{counted.stdout.strip()} of {len(data)} bytes were read")


@check()
def stdin_unread(context: CheckContext) -> None:
    """A command that does not read its input, or stops reading it, ends normally."""
    session = context.session()
    data = b"x" * 2_000_000
    result = session.exec(["true"], stdin=data, timeout=COMMAND_TIMEOUT)
    expect(result.exit_code == 0 and not result.timed_out, f"`true` returned exit {result.exit_code}")
    result = session.exec(["head", "-c", "3"], stdin=data, timeout=COMMAND_TIMEOUT)
    expect(result.stdout == "xxx", f"`head -c 3` returned {result.stdout!r}")
    context.alive(session)


@check()
def background_holds_the_pipes(context: CheckContext) -> None:
    """A background child that holds the pipes does not delay its parent's result, and the result mentions it."""
    session = context.session()
    began = time.monotonic()
    result = context.sh(session, "sleep 60 & echo done; exit 4")
    took = time.monotonic() - began
    expect(
        (result.exit_code, result.stdout) == (4, "done\n"),
        f"the command returned exit {result.exit_code}, {result.stdout!r}",
    )
    expect(took < 20, f"the result arrived after {took:.1f} s")
    expect(result.background, "the result does not report the background process")
    expect(not context.sh(session, "echo x").background, "a background process is reported for a command without one")


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError as error:
        raise NotChecked(f"this process's memory can't be measured: {error}") from None
    return pages * resource.getpagesize()
