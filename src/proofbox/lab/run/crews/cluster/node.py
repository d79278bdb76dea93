"""The Ray actor that runs attempts on one node of a cluster, in its own process.

It receives claimed attempts, runs them in the node's sandbox, commits their bundles in a private directory, and sends
them back in pieces. It never sees the ledger. It removes its directory when it ends; if it was killed, the next worker
on the node or `proofbox gc --engine` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
from anyio.to_thread import current_default_thread_limiter, run_sync

from proofbox.core.clock import SystemClock
from proofbox.core.files.removal import remove_tree
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.lab.attempt.context import AttemptControl, RunContext
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.attempt.runner import run_attempt
from proofbox.lab.run.crews.cluster.images import with_images
from proofbox.lab.run.crews.cluster.places import claim_worker_place, remove_worker_place, sweep_node
from proofbox.lab.run.crews.cluster.preflight import MeasuredBox, measure_node
from proofbox.lab.run.crews.cluster.transfer import PIECE_SIZE, Parcel, ParcelCache, ParcelMissing, bundle_pieces
from proofbox.lab.run.failures import typed
from proofbox.lab.run.ledger import Attempt
from proofbox.lab.run.plan import TEMPLATES, WORK, Plan, key_names, run_context
from proofbox.lab.run.template import GIVEN
from proofbox.lab.run.worker import THREADS
from proofbox.sandbox.images.received import own_image, received_dir

EVENT, PIECE, ENDED, FAILED, MISSING = "event", "piece", "ended", "failed", "missing"
"""The kinds of items that `NodeWorker.run` yields."""
Item = tuple[str, Any]
GATHER_SECONDS = 0.25
"""How long an event may wait for others, to be sent together."""


class NodeWorker:
    """A worker on a node. Its methods are called from the run's driver, over Ray."""

    def __init__(
        self, plan: bytes, images: dict[str, str], name: str, node: str, slots: int, measured: bytes | None
    ) -> None:
        """`images` are the references of `RunImages`. `measured` is the record of an earlier worker on this node, so
        that a node is measured once per run."""
        self._plan = parse_json(plan, Plan)
        self._images = images
        self._node = node
        self._slots = slots
        self._record = None if measured is None else parse_json(measured, NodeRecord)
        sweep_node()
        self._lock = contextlib.ExitStack()
        self._place = claim_worker_place(f"{self._plan.run_id}.{name}", self._lock)
        # Stores and scratch files of its attempts are removed together with the directory.
        os.environ["XDG_STATE_HOME"] = str(self._place / "state")
        self._cache = ParcelCache(received_dir(), f"{self._plan.run_id}.{node}")
        self._context: RunContext | None = None
        self._unpacking = asyncio.Lock()
        self._running: dict[str, AttemptControl] = {}
        self._name = name

    async def measure(self, boxes: list[MeasuredBox], images: list[str]) -> tuple[bytes, float]:
        """Return the record of this node, with such boxes, and its clock. Its container engine must have `images`."""
        if self._record is None:
            keys = key_names(self._plan)
            self._record = await run_sync(measure_node, self._node, boxes, keys, images, self._place)
        return msgspec.json.encode(self._record), time.time()

    async def is_alive(self) -> bool:
        """Answer, which a suspended process cannot."""
        return True

    async def size_of(self, parcel: bytes) -> int:
        found = parse_json(parcel, Parcel)
        if found.is_image and await run_sync(own_image, found.sha256) is not None:
            return found.size
        return await run_sync(self._cache.size_of, found)

    async def receive(self, parcel: bytes, offset: int, data: bytes) -> int:
        return await run_sync(self._cache.receive, parse_json(parcel, Parcel), offset, data)

    async def run(self, attempt: bytes, given: bytes, pinned: bytes) -> AsyncIterator[list[Item]]:
        """Run an attempt. Yield its events, then the pieces of its bundle, then the digest of the bundle's index. If
        its files are no longer here, say so before anything is run.

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
            except ParcelMissing as error:
                items.append((MISSING, str(error)))
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
        await run_sync(remove_worker_place, self._place)
        self._lock.close()
        self._cache.close()
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
                for each in (work, out / self._plan.run_id / "attempts"):
                    each.mkdir(parents=True, exist_ok=True)  # it exists if the parcel was missing at the last attempt
                await run_sync(self._cache.unpack, pinned, work / "pinned")
                plan = msgspec.structs.replace(self._plan, pinned=str(work / "pinned"))
                made = run_context(plan, out, self._name, clock=SystemClock(), mounted=False)
                suite = with_images(made.suite, self._images)
                self._context = msgspec.structs.replace(made, suite=suite, node=self._record)
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
