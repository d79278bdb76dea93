"""The root of the tree, and what any room may raise. The standard library alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar


class ProofboxError(Exception):
    """The root: catch this to catch everything proofbox raises on purpose."""

    code: ClassVar[str] = "PROOFBOX_ERROR"
    exit_code: ClassVar[int] = 4
    retryable: bool = False
    hints: ClassVar[tuple[str, ...]] = ()
    """What to do, where the instance has no better advice."""

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
    hints = ("see how it is called: proofbox COMMAND --help",)


class NotFoundError(ProofboxError):
    """A file or directory the caller named is not there, or can't be read."""

    code = "PROOFBOX_NOT_FOUND"
    exit_code = 2
    hints = ("check the path, and that you may read it",)


class InternalError(ProofboxError):
    """A defect in proofbox. The message names it; the fix is a bug report."""

    code = "PROOFBOX_INTERNAL"
    hints = ("report it as a defect, with the output of PROOFBOX_DEBUG=1 proofbox …",)


class DemoFailed(ProofboxError):
    """A step of the demo did not end as it should."""

    code = "PROOFBOX_DEMO_FAILED"
    exit_code = 1
    hints = ("see whether the sandbox works here: proofbox doctor",)


class CorruptError(ProofboxError):
    """Stored bytes are not what their digest, chain or schema says."""

    code = "PROOFBOX_CORRUPT"
    exit_code = 1
    hints = ("restore it from a copy, or do again what made it",)


class IoFailed(ProofboxError):
    """The machine would not read or write: a full disk, a closed stream, a place without permission."""

    code = "PROOFBOX_IO"
    exit_code = 3
    retryable = True
    hints = ("check that the place exists, is writable and has room",)


def error_classes(root: type[ProofboxError] = ProofboxError) -> Iterator[type[ProofboxError]]:
    """Every class of the tree, parents first, in the order of definition."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)
