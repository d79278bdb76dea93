"""What the machinery failed with, as an error of the tree: an attempt records it, and nobody else has to die of it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from proofbox.core.clock import Clock
from proofbox.errors import InternalError, IoFailed, ProofboxError, UsageLimited, WorkerLost
from proofbox.lab.run.ledger import Ended
from proofbox.lab.run.limiter import LONGEST, SOON, growing

MOST_PAST = 12
"""How often a usage limit may name a reset that is past, since the last one to come, before it counts as a failure: the
pauses grow to most of an hour together, which no clock that is kept at all is wrong by."""


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
        said = max(SOON, float(infra.details["resets_at"]) - clock.now().timestamp())
    else:
        said = max(0.0, float(infra.details.get("retry_after") or SOON))
    return min(said, LONGEST)


def pause(results: Sequence[Ended | None]) -> float:
    """In how many seconds to try again, after these tries at one thing; it grows while no reset to come is named.

    The gate of a credential does the same for all of its attempts. An agent with an account of its own has no gate.
    """
    past = 0
    for each in reversed(results):
        if each is None or each.infra != UsageLimited.code or (each.retry_after or 0.0) > SOON:
            break
        past += 1
    last = results[-1]
    said = 0.0 if last is None or last.retry_after is None else last.retry_after
    return growing(past - 1) if past else said


def counted_tries(results: Sequence[Ended | None]) -> int:
    """How many of these tries at one thing count against the retries it has.

    A usage limit whose reset is to come does not: nothing was tried, and waiting for it is all there is to do. One that
    names none may never be over, as of an account without credit. Workers that were lost are counted for themselves.
    """
    count = past = 0
    for each in results:
        if each is None or each.infra == WorkerLost.code:
            continue
        if each.infra != UsageLimited.code:
            count += 1
        elif (each.retry_after or 0.0) > SOON:
            past = 0
        elif each.reset_named:
            past += 1
            count += past > MOST_PAST
        else:
            count += 1
    return count


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
