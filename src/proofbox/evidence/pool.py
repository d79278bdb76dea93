"""Run the same work on many files in threads: hashing and syncing release the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_BATCH = 16


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None, batch: int = _BATCH
) -> list[Result]:
    """Return `[work(item) for item in items]`, in order. The first exception stops the work and is raised.

    By default there are as many threads as cores; pass `threads` for work that waits for something else.
    """
    todo: Sequence[Item] = list(items)
    if len(todo) < 2 or len(todo) <= batch * 3 // 2 or (most := threads or cores()) < 2:  # little for another thread
        return [work(item) for item in todo]
    done: list[list[Result]] = [[] for _ in range(0, len(todo), batch)]
    batches = iter(range(len(done)))
    errors: list[BaseException] = []
    mutex = threading.Lock()

    def run() -> None:
        while not errors:
            with mutex:
                number = next(batches, -1)
            if number < 0:
                return
            try:
                done[number] = [work(item) for item in todo[number * batch : (number + 1) * batch]]
            except BaseException as error:
                errors.append(error)

    others = [threading.Thread(target=run, daemon=True) for _ in range(min(most, len(done)) - 1)]
    for thread in others:
        thread.start()
    try:
        run()
    finally:
        for thread in others:
            thread.join()
    if errors:
        raise errors[0]
    return [result for batch in done for result in batch]
