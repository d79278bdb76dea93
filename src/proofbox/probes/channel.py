"""The channel: what the measuring process finds out about itself, so that it need not trust environment variables.

A clean channel is a process made for the measurement: it leads a session without a terminal, ignores and blocks no
signals, and has inherited no descriptors and no variables but the few that it needs. Its confinement (seccomp,
capabilities, namespaces, Landlock) is measured by the driver, a child that inherits it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

KEPT: Final = (
    *("PATH", "HOME", "LANG", "TMPDIR", "DOCKER_HOST"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"),
)
"""The variables of a clean process: where programs are, and where proofbox keeps its own files."""
_ADDED: Final = frozenset(("LC_CTYPE",))  # the interpreter itself sets it in an environment without a locale
_INITIAL_USER_NAMESPACE: Final = "user:[4026531837]"  # a constant of the kernel
_CAPABILITIES: Final = {
    "CapInh": "inheritable",
    "CapPrm": "permitted",
    "CapEff": "effective",
    "CapBnd": "bounding",
    "CapAmb": "ambient",
}


class ChannelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """How the measuring process was started; it reports its own state."""

    clean: bool
    """Whether there is no sign that the process was not made for the measurement."""
    faults: tuple[str, ...]
    """What speaks against it."""
    session_leader: bool
    """Whether it leads its session."""
    terminal: bool
    """Whether it has a controlling terminal."""
    ignored_signals: tuple[int, ...]
    """The numbers of the signals that it ignores."""
    blocked_signals: tuple[int, ...]
    """The numbers of the signals that it blocks."""
    descriptors: tuple[int, ...]
    """Open descriptors besides stdin, stdout and stderr."""
    variables: tuple[str, ...]
    """The names of those environment variables that a clean process may have."""
    other_variables: int
    """The number of its other environment variables, whose names may be private."""


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """The confinement of a process, as the driver measured it; null: not known."""

    seccomp: int | None
    """The mode: 0 off, 1 strict, 2 a filter."""
    no_new_privs: bool | None
    """Whether it and its children can gain no privileges by executing a program."""
    capabilities: Mapping[str, Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,16}$")]]
    """The capability sets by name, as bits in hexadecimal."""
    user_namespace: str | None
    """The kernel's name of the user namespace."""
    initial_user_namespace: bool | None
    """Whether it is the user namespace that the machine started with."""
    landlock_layers: int | None
    """The number of Landlock rulesets that restrict the process."""


def observe_channel() -> ChannelCheck:
    """Return how this process was started. Its own handlers for SIGPIPE and the like must be reset before."""
    leader, terminal = os.getsid(0) == os.getpid(), _has_terminal()
    ignored = tuple(
        int(number)
        for number in sorted(signal.valid_signals())
        if number not in (signal.SIGKILL, signal.SIGSTOP) and signal.getsignal(number) == signal.SIG_IGN
    )
    blocked = tuple(int(number) for number in sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    descriptors = _descriptors()
    expected = {*KEPT, *_ADDED}
    foreign = set(os.environ) - expected
    faults = {
        "it does not lead a session": not leader,
        "it has a terminal": terminal,
        "it ignores signals": bool(ignored),
        "it blocks signals": bool(blocked),
        "it has inherited descriptors": bool(descriptors),
        "it has inherited variables": bool(foreign),
    }
    found = tuple(text for text, wrong in faults.items() if wrong)
    return ChannelCheck(
        clean=not found,
        faults=found,
        session_leader=leader,
        terminal=terminal,
        ignored_signals=ignored,
        blocked_signals=blocked,
        descriptors=descriptors,
        variables=tuple(sorted(expected & set(os.environ))),
        other_variables=len(foreign),
    )


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _descriptors() -> tuple[int, ...]:
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return tuple(sorted(fd for fd in listed if fd > 2 and _is_open(fd)))


def _is_open(fd: int) -> bool:
    """Return whether a descriptor is open: the one that listed the others is closed by now."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def parse_status(text: str) -> dict[str, str]:
    """Return the lines of the driver's own status by their names."""
    pairs = (line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return {name: " ".join(value.split()) for name, value in pairs}


def confinement(status: Mapping[str, str]) -> Confinement:
    """Return what a driver's status says about its confinement. Malformed values are not known."""
    layers = _number(status.get("LandlockLayers"))
    privs = _number(status.get("NoNewPrivs"))
    user = status.get("UserNs") or None
    sets = {name: status.get(line, "") for line, name in _CAPABILITIES.items()}
    return Confinement(
        seccomp=_number(status.get("Seccomp")),
        no_new_privs=None if privs is None else privs == 1,
        capabilities={name: bits for name, bits in sets.items() if bits and not bits.strip("0123456789abcdef")},
        user_namespace=user,
        initial_user_namespace=None if user is None else user == _INITIAL_USER_NAMESPACE,
        landlock_layers=layers,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 4 else None


def sandbox_signs(found: Confinement) -> list[str]:
    """Return the signs that a process is in a sandbox. Something that is not known is a sign too."""
    signs = {
        f"seccomp is {_shown(found.seccomp)}": found.seccomp != 0,
        f"no_new_privs is {_shown(found.no_new_privs)}": found.no_new_privs is not False,
        f"its user namespace is {_shown(found.user_namespace)}": found.initial_user_namespace is not True,
        f"its Landlock rulesets are {_shown(found.landlock_layers)}": found.landlock_layers != 0,
    }
    return [text for text, on in signs.items() if on]


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value).lower()
