"""Infrastructure failures as typed errors, and when to retry after one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from proofbox.core.clock import Clock
from proofbox.errors import (
    InternalError,
    IoFailed,
    NodeLost,
    NodePreempted,
    ObjectStoreFull,
    ProofboxError,
    UsageLimited,
    WorkerLost,
    WorkerOutOfMemory,
)
from proofbox.lab.run.ledger import Ended
from proofbox.lab.run.limiter import MAX_PAUSE, MIN_PAUSE, backoff

LOST = frozenset(kind.code for kind in (WorkerLost, NodeLost, NodePreempted, WorkerOutOfMemory, ObjectStoreFull))
"""The codes of attempts that were lost with their worker."""
MAX_PAST = 12
"""How many usage limits with a reset time in the past are tolerated, since the last one in the future, before they
count as failures. The pauses add up to most of an hour, more than the error of any maintained clock."""


def typed(error: Exception) -> ProofboxError:
    """Return the first ProofboxError, even from inside exception groups; otherwise wrap the error in one."""
    found = list(single_errors(error))
    for each in found:
        if isinstance(each, ProofboxError):
            return each
    first = found[0]
    if isinstance(first, OSError):
        return IoFailed(f"the operating system refused: {first}", op="attempt", details=_place(first))
    return InternalError(f"{type(first).__name__}: {first}", op="attempt", details=_place(first))


def retry_after(infra: ProofboxError | None, clock: Clock) -> float | None:
    """Return the seconds after which a retry may succeed, bounded; None if a retry would fail in the same way."""
    if infra is None or not infra.retryable:
        return None
    if "resets_at" in infra.details:
        seconds = max(MIN_PAUSE, float(infra.details["resets_at"]) - clock.now().timestamp())
    else:
        seconds = max(0.0, float(infra.details.get("retry_after") or MIN_PAUSE))
    return min(seconds, MAX_PAUSE)


def pause(results: Sequence[Ended | None]) -> float:
    """Return the seconds until the next retry, given the results so far; grows while no future reset is named.

    The limiter does the same for all attempts of a credential. An agent with its own account has no limiter.
    """
    past = 0
    for each in reversed(results):
        if each is None or each.infra != UsageLimited.code or (each.retry_after or 0.0) > MIN_PAUSE:
            break
        past += 1
    last = results[-1]
    wait = 0.0 if last is None or last.retry_after is None else last.retry_after
    return backoff(past - 1) if past else wait


def counted_tries(results: Sequence[Ended | None]) -> int:
    """Return how many of these results count against the number of retries.

    A usage limit with a reset in the future does not count: nothing was tried, and the only remedy is to wait. One
    without a reset time counts, because it may never end, as for an account without credit. Lost workers are counted
    separately.
    """
    count = past = 0
    for each in results:
        if each is None or each.infra in LOST:
            continue
        if each.infra != UsageLimited.code:
            count += 1
        elif (each.retry_after or 0.0) > MIN_PAUSE:
            past = 0
        elif each.reset_named:
            past += 1
            count += past > MAX_PAST
        else:
            count += 1
    return count


def single_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of a group in order, including those of nested groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from single_errors(each)
    else:
        yield error


def _place(error: BaseException) -> dict[str, str]:
    """Return where the error was raised, for bug reports."""
    import traceback  # for unexpected errors

    frames = traceback.extract_tb(error.__traceback__)
    return {"raised_at": f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"} if frames else {}
