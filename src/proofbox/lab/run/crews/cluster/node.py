"""The Ray actor that runs attempts on one node of a cluster, in its own process.

It receives claimed attempts, runs them in the node's sandbox, commits their bundles in a private directory, and sends
them back in pieces. It never sees the ledger. It removes its directory when it ends; if it was killed, the next worker
on the node or `proofbox gc --engine` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import msgspec
from anyio.to_thread import current_default_thread_limiter, run_sync

from proofbox.core.clock import SystemClock
from proofbox.core.dirs import cache_dir
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import IoFailed
from proofbox.lab.attempt.context import AttemptControl, RunContext
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.attempt.runner import run_attempt
from proofbox.lab.run.crews.cluster.preflight import measure_node
from proofbox.lab.run.crews.cluster.transfer import PIECE_SIZE, Parcel, ParcelCache, bundle_pieces
from proofbox.lab.run.failures import typed
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import TEMPLATES, WORK, Plan, key_names, run_context
from proofbox.lab.run.resources import size_of
from proofbox.lab.run.template import GIVEN
from proofbox.lab.run.worker import THREADS

EVENT, PIECE, ENDED, FAILED = "event", "piece", "ended", "failed"
"""The kinds of items that `NodeWorker.run` yields."""
Item = tuple[str, Any]
GATHER_SECONDS = 0.25
"""How long an event may wait for others, to be sent together."""


class NodeWorker:
    """A worker on a node. Its methods are called from the run's driver, over Ray."""

    def __init__(self, plan: bytes, name: str, node: str, slots: int, measured: bytes | None) -> None:
        """`measured` is the record of an earlier worker on this node, so that a node is measured once per run."""
        self._plan = parse_json(plan, Plan)
        self._node = node
        self._slots = slots
        self._record = None if measured is None else parse_json(measured, NodeRecord)
        sweep_node()
        self._lock = contextlib.ExitStack()
        self._place = _claim_place(f"{self._plan.run_id}.{name}", self._lock)
        # Stores and scratch files of its attempts are removed together with the directory.
        os.environ["XDG_STATE_HOME"] = str(self._place / "state")
        self._cache = ParcelCache(cache_dir() / "ray" / "parcels", f"{self._plan.run_id}.{node}")
        self._context: RunContext | None = None
        self._unpacking = asyncio.Lock()
        self._running: dict[str, AttemptControl] = {}
        self._name = name

    async def measure(self, images: dict[str, str]) -> tuple[bytes, float]:
        """Return the record of this node, and its clock. `images` are the digests of the images that it must have."""
        if self._record is None:
            keys = key_names(self._plan)
            provider = self._plan.provider
            self._record = await run_sync(measure_node, self._node, provider, keys, images, self._place)
        return msgspec.json.encode(self._record), time.time()

    async def is_alive(self) -> bool:
        """Answer, which a suspended process cannot."""
        return True

    async def size_of(self, parcel: bytes) -> int:
        return await run_sync(self._cache.size_of, parse_json(parcel, Parcel))

    async def receive(self, parcel: bytes, offset: int, data: bytes) -> int:
        return await run_sync(self._cache.receive, parse_json(parcel, Parcel), offset, data)

    async def run(self, attempt: bytes, given: bytes, pinned: bytes) -> AsyncIterator[list[Item]]:
        """Run an attempt. Yield its events, then the pieces of its bundle, then the digest of the bundle's index.

        Small items are sent together, because every transmission costs CPU time on both sides.
        """
        claimed = parse_json(attempt, Attempt)
        queue: asyncio.Queue[Item | None] = asyncio.Queue()
        task = asyncio.create_task(self._run(claimed, parse_json(given, Parcel), parse_json(pinned, Parcel), queue))
        try:
            while not (found := await _next_items(queue))[1]:
                yield found[0]
            items = found[0]  # the last events travel with the bundle
            try:
                bundle, index = await task
                pieces = bundle_pieces(bundle, self._place / f"{claimed.id}.e{claimed.epoch}.tar")
                while piece := await run_sync(next, pieces, None):
                    items.append((PIECE, piece))
                    if len(piece) == PIECE_SIZE:
                        yield items
                        items = []
                items.append((ENDED, index))
                await run_sync(remove_tree, bundle)
            except Exception as error:
                items.append((FAILED, f"{type(error).__name__}: {typed(error).message}"))
            yield items
        finally:
            task.cancel()  # the driver no longer listens

    def interrupt(self, attempt_id: str) -> None:
        if attempt_id in self._running:
            self._running[attempt_id].interrupt()

    async def close(self) -> None:
        """Remove everything of this worker from the node, and what killed ones left."""
        await run_sync(_remove, self._place)
        self._lock.close()
        await run_sync(sweep_node)

    async def _run(
        self, attempt: Attempt, given: Parcel, pinned: Parcel, queue: asyncio.Queue[Item | None]
    ) -> tuple[Path, str]:
        """Run an attempt, put its events into the queue, then None; return its bundle and the digest of the index."""

        def tell(**event: Any) -> None:
            queue.put_nowait((EVENT, event))

        control = self._running[attempt.id] = AttemptControl(
            lambda state: tell(state=state), lambda what: tell(activity=what), lambda spent: tell(tokens=spent)
        )
        if attempt.interrupt:
            control.interrupt()
        try:
            context = await self._prepared(attempt.mission, given, pinned)
            ended = await run_attempt(attempt, context, control)
            return context.run_dir / attempt.path, ended.index_sha256
        finally:
            del self._running[attempt.id]
            queue.put_nowait(None)

    async def _prepared(self, mission: str, given: Parcel, pinned: Parcel) -> RunContext:
        """Return the context of the run on this node, with the mission's template in place."""
        async with self._unpacking:
            out = self._place / "out"
            work = out / WORK / self._plan.run_id
            if self._context is None:
                threads = current_default_thread_limiter()
                threads.total_tokens = max(threads.total_tokens, THREADS * self._slots)
                work.mkdir(parents=True)
                (out / self._plan.run_id / "attempts").mkdir(parents=True)
                await run_sync(self._cache.unpack, pinned, work / "pinned")
                plan = msgspec.structs.replace(self._plan, pinned=str(work / "pinned"))
                made = run_context(plan, out, self._name, clock=SystemClock(), mounted=False)
                self._context = msgspec.structs.replace(made, node=self._record)
            place = work / TEMPLATES / mission / GIVEN
            if not place.exists():
                await run_sync(self._cache.unpack, given, place)
            return self._context


async def _next_items(queue: asyncio.Queue[Item | None]) -> tuple[list[Item], bool]:
    """Return the next item with those that arrive within a moment, and whether they are the last."""
    item = await queue.get()
    items: list[Item] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GATHER_SECONDS):
            while item is not None:
                items.append(item)
                item = await queue.get()
            return items, True
    return items, False


def sweep_node(*, remove: bool = True, killed_run: str = "") -> list[tuple[str, int]]:
    """Return what killed workers left on this node, with the bytes on disk, and remove it, if asked.

    The workers of `killed_run` have just been killed: wait until they are dead. Other live workers are left alone.
    """
    found: list[tuple[str, int]] = []
    try:
        locks = sorted(_work_place().glob("*.lock"))
    except FileNotFoundError:  # removed meanwhile, because it was empty
        return found
    for lock in locks:
        place = lock.with_suffix("")
        dying = bool(killed_run) and lock.name.startswith(f"{killed_run}.")
        # A worker is alive, or another process sweeps at the same time and removed it first.
        with contextlib.suppress(BlockingIOError, FileNotFoundError), locked(lock, wait=dying):
            if place.exists():
                found.append((str(place), size_of(place, sys.maxsize)))
            if remove or not place.exists():
                _remove(place)
    return found


def _work_place() -> Path:
    """Return the directory for all workers of this user on this machine."""
    return Path(gettempdir()) / f"proofbox-nodes-{os.getuid()}"


def _claim_place(name: str, lock: contextlib.ExitStack) -> Path:
    """Create and lock the directory of a worker. The one above it must not have been made by another user."""
    above = _work_place()
    while True:
        with contextlib.suppress(FileNotFoundError):  # a worker that has just ended removed the empty directory
            above.mkdir(mode=0o700, exist_ok=True)
            found = above.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
                raise IoFailed(f"{above} does not belong to this user alone", op="node", fix_hints=[f"rm -r {above}"])
            lock.enter_context(locked(_lock_of(above / name)))
            (above / name).mkdir(mode=0o700)
            return above / name


def _lock_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.lock")


def _remove(place: Path) -> None:
    remove_tree(place)
    _lock_of(place).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others are there
        place.parent.rmdir()
