"""What the machinery failed with, as an error of the tree: an attempt records it, and nobody else has to die of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

from proofbox.core.clock import Clock
from proofbox.errors import InternalError, IoFailed, ProofboxError
from proofbox.lab.limiter import LONGEST

RETRY_SOON = 1.0


def typed(error: Exception) -> ProofboxError:
    """The error itself, where it is one of ours, also inside a group of several; else what it comes to."""
    found = list(_single(error))
    for each in found:
        if isinstance(each, ProofboxError):
            return each
    first = found[0]
    if isinstance(first, OSError):
        return IoFailed(f"the machine would not: {first}", op="attempt", details=_place(first))
    return InternalError(f"{type(first).__name__}: {first}", op="attempt", details=_place(first))


def retry_after(infra: ProofboxError | None, clock: Clock) -> float | None:
    """In how many seconds another try may go better; None: it would go the same. A model's word has its bounds."""
    if infra is None or not infra.retryable:
        return None
    if "resets_at" in infra.details:
        said = max(RETRY_SOON, float(infra.details["resets_at"]) - clock.now().timestamp())
    else:
        said = max(0.0, float(infra.details.get("retry_after") or RETRY_SOON))
    return min(said, LONGEST)


def _single(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, those of groups in it too, in their order."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _single(each)
    else:
        yield error


def _place(error: BaseException) -> dict[str, str]:
    """Where it was raised: for whoever reports it as a defect."""
    frames = traceback.extract_tb(error.__traceback__)
    return {"raised_at": f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"} if frames else {}
