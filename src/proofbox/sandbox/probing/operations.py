"""The operations that a probe can try, and how the kernel's answer to each is read.

The driver (`sandbox/agent/boxprobe.c`) performs an operation and reports its result. Whether that means "allowed" or
"denied" is decided here. An answer that is not clear is `unknown`, never a denial.
"""

from __future__ import annotations

import errno
import signal
from typing import Annotated, Final, Literal

import msgspec

from proofbox.sandbox.probing.plan import Decision, Probe

# Errors that mean a refusal by the sandbox or the kernel: no permission, hidden, read-only or unreachable.
_REFUSED: Final = frozenset(
    (
        *(errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOSYS),
        *(errno.ENOENT, errno.ENOTDIR, errno.ESRCH, errno.ENXIO, errno.ENODEV, errno.ELOOP, errno.EXDEV),
        *(errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.ENETDOWN),
        *(errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.EPROTOTYPE),
    )
)
_OVER_LIMIT: Final = frozenset((errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EFBIG))
_ABSENT: Final = frozenset((errno.ENOENT, errno.ENOTDIR))
# The calls have arguments without effect. Any other error shows that the kernel examined them.
_CALL_REFUSED: Final = frozenset((errno.EPERM, errno.EACCES, errno.ENOSYS))


class Operation(msgspec.Struct, frozen=True):
    """One operation of the driver."""

    args: tuple[str, ...]
    changes: bool = False
    """It changes the file it names, so every path must be a decoy."""
    host_wide: bool = False
    """It acts on the whole host or uses up resources, so there is no baseline."""
    refused: frozenset[int] = _REFUSED
    reached: frozenset[int] = frozenset()
    """Errors that the kernel reports only after it has granted permission."""


OPERATIONS: Final[dict[str, Operation]] = {
    "dir-list": Operation(("path",)),
    "dir-make": Operation(("path",), changes=True),
    "env-read": Operation(("name",)),
    "file-chmod": Operation(("path", "mode"), changes=True),
    "file-chown": Operation(("path", "uid", "gid"), changes=True, refused=_REFUSED | {errno.EINVAL, errno.EOVERFLOW}),
    "file-create": Operation(("path",), changes=True),
    "file-device": Operation(("path", "kind", "major", "minor"), changes=True, host_wide=True),
    "file-handle": Operation(("path",), refused=_REFUSED | {errno.EOPNOTSUPP}),
    "file-link": Operation(("path", "new path"), changes=True),
    "file-open-write": Operation(("path",), reached=frozenset((errno.ETXTBSY,))),
    "file-read": Operation(
        ("path",), refused=_REFUSED | {errno.EISDIR}, reached=frozenset((errno.EINVAL, errno.EAGAIN, errno.EIO))
    ),
    "file-rename": Operation(("path", "new path"), changes=True),
    "file-setid": Operation(("path", "mode"), changes=True),
    "file-stat": Operation(("path",)),
    "file-symlink": Operation(("text", "path"), changes=True),
    "file-truncate": Operation(("path",), changes=True),
    "file-unlink": Operation(("path",), changes=True),
    "file-write": Operation(("path", "text"), changes=True),
    "identity-set": Operation(("kind", "id"), refused=_REFUSED | {errno.EINVAL}),
    "mount-bind": Operation(("path", "at"), changes=True, host_wide=True),
    "mount-new": Operation(("type", "at"), changes=True, host_wide=True),
    "mount-remove": Operation(("path",), host_wide=True, refused=_REFUSED | {errno.EINVAL}),
    "mount-writable": Operation(("path",), host_wide=True, refused=_REFUSED | {errno.EINVAL}),
    "namespace-clone": Operation(("kind",), refused=_REFUSED | {errno.EINVAL, errno.ENOSPC, errno.EUSERS}),
    "namespace-join": Operation(("path",), refused=_REFUSED | {errno.EINVAL}),
    "namespace-new": Operation(("kind",), refused=_REFUSED | {errno.EINVAL, errno.ENOSPC, errno.EUSERS}),
    "network-dns": Operation(("address", "port", "name")),
    "network-listen": Operation(("address", "port")),
    "network-pair": Operation(("families", "types", "protocols"), refused=_REFUSED | {errno.EINVAL, errno.EOPNOTSUPP}),
    "network-socket": Operation(("families", "types", "protocols"), refused=_REFUSED | {errno.EINVAL}),
    "network-tcp": Operation(("address", "port", "text")),
    "network-udp": Operation(("address", "port", "text")),
    "network-unix": Operation(("path or @name", "text")),
    "process-descriptor": Operation(("pid", "descriptors"), refused=_REFUSED | {errno.EINVAL}),  # no such process
    "process-exec": Operation(("path", "arguments")),
    "process-memory": Operation(("pid", "address"), reached=frozenset((errno.EFAULT, errno.EIO))),
    "process-reach": Operation(("path",)),
    "ptrace": Operation(("pid",)),
    "resource-descriptors": Operation(("count",), host_wide=True, refused=_OVER_LIMIT),
    "resource-disk": Operation(("path", "megabytes"), changes=True, host_wide=True, refused=_REFUSED | _OVER_LIMIT),
    "resource-memory": Operation(("megabytes",), host_wide=True, refused=_OVER_LIMIT),
    "resource-pids": Operation(("count",), host_wide=True, refused=_OVER_LIMIT),
    "root-change": Operation(("path",)),
    "root-pivot": Operation(("path",), host_wide=True, refused=_REFUSED | {errno.EINVAL, errno.EBUSY}),
    "signal": Operation(("pid", "signal")),
    "system-call": Operation(("name",), refused=_CALL_REFUSED),
    "tree-open-write": Operation(("path",)),
}
READS: Final = ("file-read", "process-reach")
"""The operations whose value is the beginning of a file."""
SELF_STATUS: Final = "self-status"
LOST: Final = "the box was lost"
_MAX_NUMBER: Final = 2**53 - 1  # the largest integer that evidence can contain


class Answer(msgspec.Struct, frozen=True):
    """What the driver reported about one request."""

    id: str
    result: Annotated[int, msgspec.Meta(ge=-1, le=_MAX_NUMBER)]
    errno: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    ns: Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
    timed_out: bool
    signal: Annotated[int, msgspec.Meta(ge=0, le=64)]
    path: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    links: Literal["", "none", "followed"] = ""
    value: Annotated[str, msgspec.Meta(max_length=4096)] = ""

    @property
    def error(self) -> str:
        """The name of the error (`EACCES`), or an empty string."""
        return errno.errorcode.get(self.errno, str(self.errno)) if self.errno else ""


class Oracle(msgspec.Struct, frozen=True):
    """What was seen from outside: whether the operation took effect on the host."""

    happened: bool
    seen: str


class ProbeDecision(msgspec.Struct, frozen=True):
    """The decision about one probe in one lane, and the evidence that it rests on."""

    decision: Decision
    evidence: str
    """`host_fact` (seen from outside), `constrained_observation` (an answer from our own driver), or `self_report`."""
    detail: str


def skipped(probe: Probe) -> str:
    """Return why the probe has no baseline; empty if it has one."""
    if OPERATIONS[probe.operation].host_wide:
        return probe.baseline_reason or "it acts on the whole host, or uses up resources"
    return (probe.baseline_reason or "the plan skips it") if probe.baseline == "skip" else ""


def decide(
    probe: Probe, answer: Answer | None, oracle: Oracle | None, *, secret: str = "", problem: str = ""
) -> ProbeDecision:
    """Decide whether an operation was allowed. What was seen from outside takes precedence.

    `secret` is the content of the decoy that a probe reads: an answer that contains it proves that it was read.
    `problem` says why there is no answer.
    """
    operation = probe.operation
    if oracle is not None and oracle.happened:
        return ProbeDecision("allow", "host_fact", oracle.seen)
    if answer is None and operation == "resource-memory" and problem.startswith(LOST):
        return ProbeDecision("deny", "host_fact", problem)  # some sandboxes kill the whole box at the limit
    if answer is None:
        return ProbeDecision("unknown", "self_report", problem or "the driver gave no answer")
    own = "constrained_observation"
    if answer.timed_out:
        return ProbeDecision("unknown", own, "the operation did not end in time")
    if answer.signal:
        killed = operation == "resource-memory" and answer.signal == signal.SIGKILL
        return ProbeDecision("deny" if killed else "unknown", own, f"the process was killed by signal {answer.signal}")
    if answer.result >= 0:
        return _succeeded(operation, answer, oracle, secret)
    # Without a baseline only a decoy is known to exist, so the absence of another target is not a refusal.
    exists = not skipped(probe) or ("{" in probe.args[0] and "{new_" not in probe.args[0])
    refused = OPERATIONS[operation].refused - (frozenset() if exists else _ABSENT)
    if answer.errno in refused:
        return (
            ProbeDecision("deny", own, answer.error)
            if oracle is None
            else ProbeDecision("deny", "host_fact", f"{answer.error}; {oracle.seen}")
        )
    if answer.errno in OPERATIONS[operation].reached or (operation == "system-call" and answer.errno != errno.EBADRQC):
        return ProbeDecision("allow", own, f"{answer.error}: the kernel granted permission, and failed later")
    return ProbeDecision("unknown", own, f"{answer.error or 'no error'} says neither allowed nor denied")


def _succeeded(operation: str, answer: Answer, oracle: Oracle | None, secret: str) -> ProbeDecision:
    own = "constrained_observation"
    if operation in READS:
        if secret:
            read = answer.value == secret.encode()[:64].hex()
            found = ProbeDecision("allow", "host_fact", "the decoy's content was read")
            return found if read else ProbeDecision("deny", own, "masked")
        return ProbeDecision("allow", own, "read") if answer.result else ProbeDecision("deny", own, "empty, or masked")
    if operation == "env-read" and secret and answer.value != secret:
        return ProbeDecision("deny", own, "another value")
    if operation == "dir-list" and not answer.result:
        return ProbeDecision("deny", own, "empty, or masked")
    if oracle is not None and operation in ("network-udp", "network-tcp", "network-unix", "network-dns", "signal"):
        return ProbeDecision("deny", "host_fact", oracle.seen)  # it reached something in the box, not the decoy
    return ProbeDecision("allow", own, "succeeded")
