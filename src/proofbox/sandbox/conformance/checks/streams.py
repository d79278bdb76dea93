"""What goes in and comes out: two streams apart, any bytes, any amount, and an end to stdin."""

from __future__ import annotations

import io
import resource
import time
import zlib
from pathlib import Path

from proofbox.sandbox.conformance.check import OWN_STREAMS, NotChecked, ProviderChecks, expect
from proofbox.sandbox.conformance.context import PATIENCE, CheckContext
from proofbox.sandbox.contract import Output

subject = ProviderChecks("streams")
check = subject.check

LARGE = 100_000_000
CAP = 1 << 20
# The streamed 100 MB may raise our memory by what is kept and under way, not by what came.
FLAT = 48 << 20


@check()
def streams_apart(context: CheckContext) -> None:
    session = context.session()
    result = context.sh(session, "echo out; echo err >&2; printf tail; printf 'more\n' >&2")
    expect(result.stdout_bytes == b"out\ntail", f"stdout is {result.stdout_bytes!r}")
    expect(result.stderr_bytes == b"err\nmore\n", f"stderr is {result.stderr_bytes!r}")
    expect(not result.truncated.stdout and not result.truncated.stderr, "five bytes are called truncated")
    silent = context.sh(session, ":")
    expect((silent.stdout_bytes, silent.stderr_bytes) == (b"", b""), "a silent command said something")


@check(OWN_STREAMS)
def by_name(context: CheckContext) -> None:
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
    expect(result.stdout_bytes == bytes(range(256)), f"the 256 bytes came as {result.stdout_bytes[:40]!r}…")
    expect(result.stderr_bytes == b"\xff\x00\n", f"stderr came as {result.stderr_bytes!r}")


@check(seconds=100)
def large_output_capped(context: CheckContext) -> None:
    """100 MB into a cap of 1 MB: head and tail are kept, the loss is said, and memory stays flat."""
    session = context.session()
    before = _resident()
    result = context.sh(
        session,
        'printf HEAD; head -c "$1" /dev/zero | tr "\\0" x; printf TAIL; echo small >&2',
        str(LARGE),
        max_output=CAP,
        timeout=60,
    )
    expect(result.exit_code == 0, f"exit {result.exit_code}: {result.stderr!r}")
    expect(result.truncated.stdout, "stdout is not called truncated")
    expect(not result.truncated.stderr and result.stderr == "small\n", "stderr has lost something")
    expect(
        CAP <= len(result.stdout_bytes) <= CAP + 200, f"{len(result.stdout_bytes)} bytes were kept for a cap of {CAP}"
    )
    expect(result.stdout_bytes.startswith(b"HEADxxxx"), f"the head is {result.stdout_bytes[:20]!r}")
    expect(result.stdout_bytes.endswith(b"xxxxTAIL"), f"the tail is {result.stdout_bytes[-20:]!r}")
    left_out = str(LARGE + 8 - CAP).encode()
    expect(left_out in result.stdout_bytes, f"nothing says that {left_out.decode()} bytes were left out")
    grown = _resident() - before
    expect(grown < FLAT, f"memory grew by {grown >> 20} MB")
    context.alive(session)


@check(seconds=100)
def large_output_streamed(context: CheckContext) -> None:
    """100 MB to a reader: every byte arrives, in order, and none of it is kept beyond the cap."""
    session = context.session()
    seen = {"bytes": 0, "crc": 0, "peak": 0, "pieces": 0}
    before = _resident()

    def on_output(piece: Output) -> None:
        seen["bytes"] += len(piece.data)
        seen["crc"] = zlib.crc32(piece.data, seen["crc"])
        seen["pieces"] += 1
        if seen["pieces"] % 64 == 0:
            seen["peak"] = max(seen["peak"], _resident())

    script = 'yes 0123456789abcde | head -c "$1"'  # 16 bytes a line, so that an order mixed up would show
    result = context.sh(session, script, str(LARGE), on_output=on_output, max_output=CAP, timeout=60)
    expect(result.exit_code == 0, f"exit {result.exit_code}: {result.stderr!r}")
    expect(seen["bytes"] == LARGE, f"{seen['bytes']} of {LARGE} bytes arrived")
    line, crc = b"0123456789abcde\n" * 6250, 0
    for _ in range(LARGE // len(line)):
        crc = zlib.crc32(line, crc)
    expect(seen["crc"] == crc, "the bytes are not those that were written")
    grown = seen["peak"] - before
    expect(grown < FLAT, f"memory grew by {grown >> 20} MB")
    expect(result.truncated.stdout and len(result.stdout_bytes) <= CAP + 200, "the result kept more than its cap")


@check()
def both_streams_full(context: CheckContext) -> None:
    """Two full pipes at once: neither waits for the other's reader."""
    session = context.session()
    result = context.sh(session, "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait")
    expect(len(result.stdout_bytes) == 3_000_000, f"stdout has {len(result.stdout_bytes)} bytes")
    expect(len(result.stderr_bytes) == 3_000_000, f"stderr has {len(result.stderr_bytes)} bytes")


@check()
def output_as_it_comes(context: CheckContext) -> None:
    """A reader sees output while the command still runs, with the stream it came from."""
    session = context.session()
    pieces: list[Output] = []

    def on_output(piece: Output) -> None:
        pieces.append(piece)
        (context.project / "seen").touch()

    result = context.sh(
        session, "echo one; until [ -e seen ]; do sleep 0.05; done; sleep 0.3; echo two >&2", on_output=on_output
    )
    expect(not result.timed_out, "what was written before something else is waited for did not come")
    expect([(p.stream, p.data) for p in pieces] == [("stdout", b"one\n"), ("stderr", b"two\n")], f"came as {pieces}")
    expect(pieces[1].at_ms - pieces[0].at_ms > 150, "the times do not say when it was written")


@check()
def stdin_to_its_end(context: CheckContext) -> None:
    session = context.session()
    for given in (b"hello\n", b"\x00\xff\x04", "text"):
        result = session.exec(["cat"], stdin=given, timeout=PATIENCE)
        wanted = given.encode() if isinstance(given, str) else given
        expect(
            result.stdout_bytes == wanted and not result.timed_out, f"{given!r} came back as {result.stdout_bytes!r}"
        )
    result = session.exec(["cat"], stdin=io.BytesIO(b"from a file"), timeout=PATIENCE)
    expect(result.stdout == "from a file", f"a file as stdin came back as {result.stdout!r}")


@check()
def stdin_absent_or_empty(context: CheckContext) -> None:
    """A command that reads gets the end of its input at once: it never waits for a terminal."""
    session = context.session()
    for given in (None, b"", io.BytesIO()):
        result = session.exec(["cat"], stdin=given, timeout=PATIENCE)
        expect(not result.timed_out and result.exit_code == 0, f"with stdin {given!r} it waited")
        expect(result.stdout_bytes == b"", f"with stdin {given!r} it read {result.stdout_bytes!r}")


@check()
def stdin_large(context: CheckContext) -> None:
    """Far more than any buffer, in and out at once: no deadlock, nothing lost."""
    session = context.session()
    data = bytes(range(251)) * 40_000  # 10 MB; a prime, so that no block repeats
    result = session.exec(["cat"], stdin=data, timeout=PATIENCE, max_output=len(data) + 1)
    expect(result.stdout_bytes == data, f"{len(result.stdout_bytes)} of {len(data)} bytes came back, or others")
    counted = session.exec(["wc", "-c"], stdin=io.BytesIO(data), timeout=PATIENCE)
    expect(counted.stdout.strip() == str(len(data)), f"{counted.stdout.strip()} of {len(data)} bytes were read")


@check()
def stdin_unread(context: CheckContext) -> None:
    """A command that does not read its input, or stops reading it, ends all the same."""
    session = context.session()
    data = b"x" * 2_000_000
    result = session.exec(["true"], stdin=data, timeout=PATIENCE)
    expect(result.exit_code == 0 and not result.timed_out, f"`true` came back as {result.exit_code}")
    result = session.exec(["head", "-c", "3"], stdin=data, timeout=PATIENCE)
    expect(result.stdout == "xxx", f"`head -c 3` came back as {result.stdout!r}")
    context.alive(session)


@check()
def background_holds_the_pipes(context: CheckContext) -> None:
    """A child that is left in the background with the pipes does not hold back its parent's result, and is said."""
    session = context.session()
    began = time.monotonic()
    result = context.sh(session, "sleep 60 & echo done; exit 4")
    took = time.monotonic() - began
    expect((result.exit_code, result.stdout) == (4, "done\n"), f"it came back as {result.exit_code}, {result.stdout!r}")
    expect(took < 20, f"the result came after {took:.1f} s")
    expect(result.background, "the result does not say that something was left in the background")
    expect(not context.sh(session, "echo x").background, "a command that left nothing is said to have")


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError as error:
        raise NotChecked(f"our own memory can't be measured: {error}") from None
    return pages * resource.getpagesize()
