"""Every error proofbox raises on purpose, in one tree.

    ProofboxError
    ├── UsageError               PROOFBOX_USAGE              exit 2
    ├── NotFoundError            PROOFBOX_NOT_FOUND          exit 2
    ├── InternalError            PROOFBOX_INTERNAL           exit 4
    ├── CorruptError             PROOFBOX_CORRUPT            exit 1
    ├── SandboxError             SANDBOX_FAILED              exit 4
    │   ├── ProviderUnknown      SANDBOX_PROVIDER_UNKNOWN    exit 2
    │   ├── ProviderUnavailable  SANDBOX_UNAVAILABLE         exit 3
    │   ├── PolicyRefused        SANDBOX_POLICY_REFUSED      exit 3
    │   ├── PathRefused          SANDBOX_PATH_REFUSED        exit 2
    │   ├── RequestInvalid       SANDBOX_REQUEST_INVALID     exit 2
    │   ├── CommandNotFound      SANDBOX_COMMAND_NOT_FOUND   exit 127
    │   ├── CommandNotExecutable SANDBOX_COMMAND_NOT_EXECUTABLE exit 126
    │   ├── StartFailed          SANDBOX_START_FAILED        exit 3
    │   ├── EngineRefused        SANDBOX_ENGINE_REFUSED      exit 3
    │   ├── SandboxLost          SANDBOX_LOST                exit 4, retryable
    │   ├── ProtocolError        SANDBOX_PROTOCOL            exit 4
    │   └── SessionUnknown       SANDBOX_SESSION_UNKNOWN     exit 2
    └── WorkspaceError           WORKSPACE_FAILED            exit 4
        ├── WorkspaceUnknown     WORKSPACE_UNKNOWN           exit 2
        ├── WorkspaceExists      WORKSPACE_EXISTS            exit 2
        ├── WorkspacePathRefused WORKSPACE_PATH_REFUSED      exit 2
        ├── SnapshotUnknown      WORKSPACE_SNAPSHOT_UNKNOWN  exit 2
        ├── WorkspaceCorrupt     WORKSPACE_CORRUPT           exit 1
        └── WorkspaceChanging    WORKSPACE_CHANGING          exit 4, retryable

A class owns its code, its exit code and whether trying again may help. An instance says what happened (`message`),
during what (`op`), what to do about it (`fix_hints`), and carries facts as data (`details`, JSON-ready), never inside
the prose alone. The tree uses the standard library only, so that an auditor's tool can raise from it.

Exit codes: 0 ok · 1 evaluated, and the answer is no · 2 usage · 3 known but not available here · 4 internal. `exec` and
`session exec` pass the command's own code through and report every failure of proofbox itself as 125, but for 126 and
127, which mean what a shell means by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar


class ProofboxError(Exception):
    """The root: catch this to catch everything proofbox raises on purpose."""

    code: ClassVar[str] = "PROOFBOX_ERROR"
    exit_code: ClassVar[int] = 4
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        op: str = "",
        fix_hints: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.fix_hints = tuple(fix_hints)
        self.details: dict[str, Any] = dict(details or {})

    def as_dict(self) -> dict[str, Any]:
        """The `error` member of a `proofbox.error/1` document."""
        return {
            "code": self.code,
            "message": self.message,
            "op": self.op,
            "fix_hints": list(self.fix_hints),
            "retryable": self.retryable,
            **self.details,
        }


class UsageError(ProofboxError):
    """The caller asked for something that means nothing: a wrong flag, a bad value."""

    code = "PROOFBOX_USAGE"
    exit_code = 2


class NotFoundError(ProofboxError):
    """A file or directory the caller named is not there, or can't be read."""

    code = "PROOFBOX_NOT_FOUND"
    exit_code = 2


class InternalError(ProofboxError):
    """A defect in proofbox. The message names it; the fix is a bug report."""

    code = "PROOFBOX_INTERNAL"


class CorruptError(ProofboxError):
    """Stored bytes are not what their digest, chain or schema says."""

    code = "PROOFBOX_CORRUPT"
    exit_code = 1


class SandboxError(ProofboxError):
    """Anything that goes wrong between asking for a sandbox and having its command's result.

    `details["diagnostics"]`, where there are any, says of each provider considered whether it is available and why not.
    """

    code = "SANDBOX_FAILED"


class ProviderUnknown(SandboxError):
    """No provider has that name."""

    code = "SANDBOX_PROVIDER_UNKNOWN"
    exit_code = 2


class ProviderUnavailable(SandboxError):
    """The provider is known, and a real trial of it failed on this machine."""

    code = "SANDBOX_UNAVAILABLE"
    exit_code = 3


class PolicyRefused(SandboxError):
    """A policy was asked for that this provider can't enforce here. Nothing was started."""

    code = "SANDBOX_POLICY_REFUSED"
    exit_code = 3


class PathRefused(SandboxError):
    """A project, cwd or mount that doesn't exist, escapes, or has no place inside the box."""

    code = "SANDBOX_PATH_REFUSED"
    exit_code = 2


class RequestInvalid(SandboxError):
    """The request itself can't be carried out: NUL bytes, too long an argv, a bad environment name."""

    code = "SANDBOX_REQUEST_INVALID"
    exit_code = 2


class CommandNotFound(SandboxError):
    """The command does not exist inside the box."""

    code = "SANDBOX_COMMAND_NOT_FOUND"
    exit_code = 127


class CommandNotExecutable(SandboxError):
    """The command exists inside the box and can't be executed."""

    code = "SANDBOX_COMMAND_NOT_EXECUTABLE"
    exit_code = 126


class StartFailed(SandboxError):
    """The provider works on this machine, but this box did not start."""

    code = "SANDBOX_START_FAILED"
    exit_code = 3


class EngineRefused(SandboxError):
    """A container engine answered, and the answer was no. `details["status"]` is its HTTP status."""

    code = "SANDBOX_ENGINE_REFUSED"
    exit_code = 3


class SandboxLost(SandboxError):
    """The box died under the command. Not the command's failure: its exit code is not known."""

    code = "SANDBOX_LOST"
    retryable = True


class ProtocolError(SandboxError):
    """The other end of the box's stream spoke something else than the box agent's protocol."""

    code = "SANDBOX_PROTOCOL"


class SessionUnknown(SandboxError):
    """No session has that id, or it ended long enough ago to be forgotten."""

    code = "SANDBOX_SESSION_UNKNOWN"
    exit_code = 2


class WorkspaceError(ProofboxError):
    """Anything that goes wrong with a directory's history."""

    code = "WORKSPACE_FAILED"


class WorkspaceUnknown(WorkspaceError):
    """The directory is not a workspace of this user."""

    code = "WORKSPACE_UNKNOWN"
    exit_code = 2


class WorkspaceExists(WorkspaceError):
    """The directory is a workspace already."""

    code = "WORKSPACE_EXISTS"
    exit_code = 2


class WorkspacePathRefused(WorkspaceError):
    """A directory that can't be a workspace, or a fork's destination that is taken."""

    code = "WORKSPACE_PATH_REFUSED"
    exit_code = 2


class SnapshotUnknown(WorkspaceError):
    """No snapshot of this workspace has that id, prefix or name, or several have that prefix."""

    code = "WORKSPACE_SNAPSHOT_UNKNOWN"
    exit_code = 2


class WorkspaceCorrupt(WorkspaceError):
    """Stored history is not what its digests say."""

    code = "WORKSPACE_CORRUPT"
    exit_code = 1


class WorkspaceChanging(WorkspaceError):
    """The files kept changing while they were put back. The rollback is finished at the next open."""

    code = "WORKSPACE_CHANGING"
    retryable = True


def error_classes(root: type[ProofboxError] = ProofboxError) -> Iterator[type[ProofboxError]]:
    """Every class of the tree, parents first, in the order of definition."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)
