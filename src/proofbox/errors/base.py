"""The root of the error tree and the errors that any package may raise. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class ProofboxError(Exception):
    """The root: catch this to catch everything proofbox raises on purpose.

    For example:

        try:
            proofbox.load_bundle("out")
        except proofbox.ProofboxError as error:
            print(error.code, error.message, *error.fix_hints)
    """

    code: ClassVar[str] = "PROOFBOX_ERROR"
    exit_code: ClassVar[int] = 4
    retryable: bool = False
    hints: ClassVar[tuple[str, ...]] = ()
    """Default advice, used when an instance is raised without `fix_hints`."""

    def __init__(
        self,
        message: str,
        *,
        op: str = "",
        fix_hints: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.fix_hints = tuple(fix_hints) or self.hints
        self.details: dict[str, Any] = dict(details or {})
        if retryable is not None:
            self.retryable = retryable

    def as_dict(self) -> dict[str, Any]:
        """Return the `error` member of a `proofbox.error/1` document."""
        return {
            "code": self.code,
            "message": self.message,
            "op": self.op,
            "fix_hints": list(self.fix_hints),
            "retryable": self.retryable,
            **self.details,
        }


class UsageError(ProofboxError):
    """The request is invalid: an unknown flag or a bad value."""

    code = "PROOFBOX_USAGE"
    exit_code = 2
    hints = ("see the usage: proofbox COMMAND --help",)


class NotFoundError(ProofboxError):
    """A file or directory named by the caller does not exist or can't be read."""

    code = "PROOFBOX_NOT_FOUND"
    exit_code = 2
    hints = ("check the path and its permissions",)


class InternalError(ProofboxError):
    """A bug in proofbox."""

    code = "PROOFBOX_INTERNAL"
    hints = ("report this bug, with the output of PROOFBOX_DEBUG=1 proofbox …",)


class DemoFailed(ProofboxError):
    """A step of the demo failed."""

    code = "PROOFBOX_DEMO_FAILED"
    exit_code = 1
    hints = ("check that the sandbox works on this machine: proofbox doctor",)


class CorruptError(ProofboxError):
    """Stored bytes do not match their digest, hash chain or schema."""

    code = "PROOFBOX_CORRUPT"
    exit_code = 1
    hints = ("restore it from a copy, or create it again",)


class VersionUnknown(CorruptError):
    """A stored document has a version that this version of proofbox does not know."""

    code = "PROOFBOX_VERSION_UNKNOWN"
    exit_code = 1
    hints = ("use the version of proofbox that wrote it, or a newer one",)


class IoFailed(ProofboxError):
    """Reading or writing failed: a full disk, a closed stream, missing permissions."""

    code = "PROOFBOX_IO"
    exit_code = 3
    retryable = True
    hints = ("check that the path exists and is writable, and that the disk is not full",)
