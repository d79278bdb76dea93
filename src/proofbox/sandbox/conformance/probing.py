"""Attacks that a shell cannot make: system calls and sockets, through python3 or perl in the box.

Debian boxes always have perl and often python3. In a box with neither, such as busybox, the checks that need one are
`not_checked`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from proofbox.sandbox.conformance.check import Failed, NotChecked
from proofbox.sandbox.conformance.context import COMMAND_TIMEOUT, CheckContext
from proofbox.sandbox.service import Session

# Each argument is one call: a label, the number, then integers, `s:text` for a string, `$` for the last call's result.
# Each call prints its label, result and errno.
_SYSCALL = {
    "python3": """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
last = 0
for call in sys.argv[1:]:
    label, *words = call.split(",")
    args = []
    for word in words:
        if word[:2] == "s:":
            args.append(ctypes.c_char_p(word[2:].encode()))
        else:
            args.append(ctypes.c_long(last if word == "$" else int(word)))
    ctypes.set_errno(0)
    last = libc.syscall(*args)
    print(label, last, ctypes.get_errno(), flush=True)
""",
    "perl": """
$| = 1;
my $last = 0;
for my $call (@ARGV) {
    my ($label, @words) = split /,/, $call;
    my @args = map { s/^s:// ? "$_" : $_ eq '$' ? 0 + $last : 0 + $_ } @words;
    $! = 0;
    $last = syscall(shift(@args), @args);
    print "$label $last ", $! + 0, "\\n";
}
""",
}

# Each argument is a destination: tcp=PORT, udp=PORT (of 127.0.0.1), abstract=NAME, path=PATH, name=HOSTNAME.
_CONNECT = {
    "python3": """
import socket, sys
for way in sys.argv[1:]:
    kind, _, to = way.partition("=")
    try:
        if kind == "name":
            print(kind, "reached", socket.getaddrinfo(to, 80)[0][4][0], flush=True)
            continue
        s = socket.socket(socket.AF_INET if kind in ("tcp", "udp") else socket.AF_UNIX,
                          socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        s.settimeout(2)
        s.connect(("127.0.0.1", int(to)) if kind in ("tcp", "udp") else ("\\0" + to if kind == "abstract" else to))
        s.sendall(b"out")
        print(kind, "sent" if kind == "udp" else "reached", flush=True)
    except OSError as error:
        print(kind, "blocked", error, flush=True)
""",
    "perl": """
use Socket;
$| = 1;
for my $way (@ARGV) {
    my ($kind, $to) = split /=/, $way, 2;
    if ($kind eq 'name') { print "$kind ", (gethostbyname($to) ? 'reached' : 'blocked'), "\\n"; next; }
    my $inet = $kind eq 'tcp' || $kind eq 'udp';
    my $address = $inet ? pack_sockaddr_in($to, inet_aton('127.0.0.1'))
        : pack('S a*', AF_UNIX, $kind eq 'abstract' ? "\\0$to" : $to);
    $SIG{ALRM} = sub { };
    alarm 2;
    my $s;
    my $ok = socket($s, $inet ? PF_INET : PF_UNIX, $kind eq 'udp' ? SOCK_DGRAM : SOCK_STREAM, 0)
        && connect($s, $address) && send($s, 'out', 0);
    print "$kind ", ($ok ? $kind eq 'udp' ? 'sent' : 'reached' : "blocked $!"), "\\n";
    alarm 0;
}
""",
}

_NUMBERS = {
    "x86_64": {
        "open": 2,
        "socket": 41,
        "socketpair": 53,
        "clone": 56,
        "creat": 85,
        "chmod": 90,
        "fchmod": 91,
        "ptrace": 101,
        "getppid": 110,
        "mknod": 133,
        "chroot": 161,
        "mount": 165,
        "umount2": 166,
        "openat": 257,
        "mknodat": 259,
        "fchmodat": 268,
        "unshare": 272,
        "io_uring_setup": 425,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
        "fchmodat2": 452,
    },
    "aarch64": {
        "mknodat": 33,
        "umount2": 39,
        "mount": 40,
        "chroot": 51,
        "fchmod": 52,
        "fchmodat": 53,
        "openat": 56,
        "unshare": 97,
        "ptrace": 117,
        "getppid": 173,
        "socket": 198,
        "socketpair": 199,
        "clone": 220,
        "io_uring_setup": 425,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
        "fchmodat2": 452,
    },
}


class SystemCalls:
    """Makes system calls from a process inside the box."""

    def __init__(self, context: CheckContext, session: Session) -> None:
        self._session = session
        self._program = _interpreter(context, session, _SYSCALL)
        machine = context.sh(session, "uname -m").stdout.strip()
        if machine not in _NUMBERS:
            raise NotChecked(f"system call numbers for {machine} are not known")
        self._numbers = _NUMBERS[machine]

    def allowed(self, *calls: Sequence[object]) -> list[str]:
        """Make calls, each (label, name, argument…), from one process; return the labels of those that succeeded."""
        known = [("control", "getppid"), *(call for call in calls if call[1] in self._numbers)]
        words = [",".join([str(call[0]), str(self._numbers[str(call[1])]), *map(_word, call[2:])]) for call in known]
        result = self._session.exec([*self._program, *words], timeout=COMMAND_TIMEOUT)
        answers: dict[str, list[tuple[int, int]]] = {}
        for line in result.stdout.splitlines():
            label, value, error = line.rsplit(" ", 2)
            # A clone returns twice, in parent and child.
            answers.setdefault(label, []).append((int(value), int(error)))
        missing = [str(call[0]) for call in known if call[0] not in answers]
        if missing:
            raise Failed(f"{missing[0]} printed no result; exit {result.exit_code}: {result.stderr[-300:]!r}")
        if answers.pop("control")[0][0] < 0:
            raise NotChecked("getppid failed, which is impossible: the system call numbers do not match this kernel")
        return [label for label, results in answers.items() if any(value >= 0 for value, _ in results)]


def connect(context: CheckContext, session: Session, way: str) -> str:
    """Try to reach a destination from inside the box, and return the result that the process printed."""
    kind, _, to = way.partition("=")
    try:
        argv = [*_interpreter(context, session, _CONNECT), way]
    except NotChecked:
        # Busybox can make a TCP connection.
        if kind != "tcp" or not context.sh(session, "command -v nc").stdout:
            raise
        argv = ["sh", "-c", 'nc -w 2 127.0.0.1 "$1" </dev/null && echo "tcp reached" || echo "tcp blocked"', "sh", to]
    result = session.exec(argv, timeout=COMMAND_TIMEOUT)
    if not result.stdout.startswith(f"{kind} "):
        raise Failed(f"connecting to {way} printed no result; exit {result.exit_code}: {result.stderr[-300:]!r}")
    return result.stdout.partition(" ")[2].strip()


class Listener:
    """A listening socket on this host that a box must not reach."""

    def __init__(self, family: socket.AddressFamily, kind: socket.SocketKind, address: object) -> None:
        self._socket = socket.socket(family, kind)
        self._socket.bind(address)  # type: ignore[arg-type]
        self._stream = kind == socket.SOCK_STREAM
        if self._stream:
            self._socket.listen(8)
        self._socket.settimeout(0.1)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def visited(self) -> bool:
        """Return whether a connection or datagram has arrived."""
        with contextlib.suppress(TimeoutError):
            if self._stream:
                self._socket.accept()[0].close()
            else:
                self._socket.recv(16)
            return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()


@contextlib.contextmanager
def listeners(context: CheckContext) -> Iterator[dict[str, tuple[str, Listener]]]:
    """Open one listener of each kind; yield kind → (destination for `connect`, listener)."""
    path = context.outside / "socket"
    tcp = Listener(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
    udp = Listener(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
    abstract = Listener(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{context.marker}")
    by_path = Listener(socket.AF_UNIX, socket.SOCK_STREAM, str(path))
    path.chmod(0o777)
    with tcp, udp, abstract, by_path:
        yield {
            "tcp": (f"tcp={tcp.port}", tcp),
            "udp": (f"udp={udp.port}", udp),
            "abstract": (f"abstract={context.marker}", abstract),
            "path": (f"path={path}", by_path),
        }


def _interpreter(context: CheckContext, session: Session, programs: dict[str, str]) -> list[str]:
    for name, text in programs.items():
        found = context.sh(session, 'command -v "$1"', name).stdout.strip()
        if found:
            return [found, "-c" if name == "python3" else "-e", text]
    raise NotChecked("the box has neither python3 nor perl, and a shell cannot do this")


def _word(value: object) -> str:
    return f"s:{value}" if isinstance(value, str) and value != "$" else str(value)
