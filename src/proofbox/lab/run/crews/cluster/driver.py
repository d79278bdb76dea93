"""The worker process that hands a run's attempts to the nodes of a cluster.

It is a worker like those of the local crew: it claims attempts from the ledger, renews their leases, waits for the rate
limiter, and records results. Only the execution differs: an attempt runs on a node, and its bundle is returned, checked
and stored here before its result is recorded. So the limits of a credential hold for all nodes together, Ray retries
nothing, and everything on the nodes ends with this process, which ends with its conductor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.config.engine import EngineSettings
from proofbox.core.files.atomic import sync_directory
from proofbox.core.files.removal import remove_tree
from proofbox.core.ids import IdSource
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.core.plurals import counted
from proofbox.errors import (
    BundleCorrupt,
    EngineLost,
    EngineUnavailable,
    LeaseLost,
    NodeLost,
    NodePreempted,
    ObjectStoreFull,
    ProofboxError,
    WorkerLost,
)
from proofbox.lab.attempt.context import AttemptControl
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.run.closing import close_torn
from proofbox.lab.run.crews.cluster.connection import connected
from proofbox.lab.run.crews.cluster.images import RunImages, find_images
from proofbox.lab.run.crews.cluster.node import ENDED, EVENT, FAILED, MISSING, PIECE, NodeWorker
from proofbox.lab.run.crews.cluster.nodes import ClusterNode, capacities, last_line, lost_to, no_capacity
from proofbox.lab.run.crews.cluster.preflight import boxes_of, refusals
from proofbox.lab.run.crews.cluster.returned import MAX_ARCHIVE, open_returned
from proofbox.lab.run.crews.cluster.sweeping import sweep_killed
from proofbox.lab.run.crews.cluster.transfer import Parcels
from proofbox.lab.run.failures import single_errors, typed
from proofbox.lab.run.ledger import Attempt, Ended
from proofbox.lab.run.placements import Placements
from proofbox.lab.run.plan import (
    TEMPLATES,
    refused_dir,
    required_keys,
)
from proofbox.lab.run.template import GIVEN
from proofbox.lab.run.worker import Worker, WorkerInputs, die_with, print_event

ENGINE_FAILED = "engine"
"""The event that reports why this process ends; see `RayCrew`."""
START_TIMEOUT = 120.0
WATCH_SECONDS = 2.0
HEAD_TIMEOUT = 20.0
"""Seconds after which a cluster that does not answer counts as lost."""
ANSWER_TIMEOUT = 60.0
"""Seconds after which a worker that does not answer is killed, as long as a lease. Its process may be suspended."""
CLEAN_TIMEOUT = 85.0
CLOSE_TIMEOUT = 5.0
MAX_DEATHS = 4
"""How many workers in succession may die on a node without ending an attempt, before it gets no more."""
MAX_SENDS = 3
"""How often the files of an attempt are sent to a node that no longer has them."""
CONTROL_CALLS = 8
"""Concurrent calls of an actor in addition to its attempts: interrupts and transfers."""


class RemoteWorker:
    """An actor on a node."""

    def __init__(self, node: ClusterNode, actor: Any, slots: int) -> None:
        self.node = node
        self.actor = actor
        self.slots = slots
        self.used = 0
        self.asked = False
        """Whether it has yet to answer whether it is alive."""


class Driver(Worker):
    """Claims attempts for all nodes of a cluster, and runs each on one of them."""

    def __init__(
        self,
        ray: Any,
        engine: EngineSettings,
        name: str,
        epoch: int,
        inputs: WorkerInputs,
    ) -> None:
        super().__init__(name, epoch, 0, inputs)
        self._ray = ray
        self._ray_error: type[Exception] = ray.exceptions.RayError
        self._plan = inputs.plan
        self._engine = engine
        self._ids = IdSource(inputs.clock)
        self._workers: list[RemoteWorker] = []
        self._starting = 0
        self._done = False
        self._images = RunImages()
        self._placements = Placements(inputs.context.work)
        self._parcels = Parcels(inputs.context.work / "parcels")
        self._sending: defaultdict[tuple[str, str], anyio.Lock] = defaultdict(anyio.Lock)
        self._sent: dict[tuple[str | RemoteWorker, Path], bytes] = {}

    # Nodes and their workers

    async def drive(self) -> None:
        """Start workers on all usable nodes, and work until everything is done."""
        self._images = await run_sync(find_images, self._plan)
        found = await run_sync(self._ray.nodes)
        nodes = list(capacities(found, self._engine, self._plan.concurrency))
        if not nodes:
            raise EngineUnavailable(no_capacity(found, self._engine), op="engine")
        refused: dict[str, str] = {}
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                tasks.start_soon(self._admit, node, refused)
        if not self._workers:
            why = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
            raise EngineUnavailable(f"no node passed the preflight: {why}", op="engine", details={"nodes": refused})
        async with anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch)
            await self.work()
            self._done = True
            self._tasks.cancel_scope.cancel()

    async def _admit(self, node: ClusterNode, refused: dict[str, str]) -> None:
        """Measure a node with its first worker; start the others if it passes."""
        slots = -(-node.slots // max(1, min(node.cpus, node.slots)))
        try:
            first = await self._start(node, min(slots, node.slots))
            for _ in range(slots, node.slots, slots):
                await self._start(node, slots)
        except (EngineUnavailable, self._ray_error) as error:
            reason = error.message if isinstance(error, ProofboxError) else last_line(error)
            refused[node.name] = self._context.redactor.redact(reason)
            self._emit_node(node, "refused", refused[node.name])
            return
        capacity = counted(node.slots, "attempt")
        self._emit_node(node, "admitted", f"{capacity}, {first.node.record and first.node.record.provider}")

    async def _start(self, node: ClusterNode, slots: int) -> RemoteWorker:
        """Start a worker on a node, and count its slots once it is ready. Raises `EngineUnavailable` if it is unfit."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        custom = {name: self._engine.amount(name) * slots for name in self._engine.resources}
        options = {"num_cpus": custom.pop("cpus", 0.0), "num_gpus": custom.pop("gpus", 0.0)}
        measured = None if node.record is None else msgspec.json.encode(node.record)
        actor = (
            self._ray.remote(NodeWorker)
            .options(
                **options,
                memory=custom.pop("memory", None),
                resources=custom,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=slots + CONTROL_CALLS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote(
                msgspec.json.encode(self._plan),
                self._images.references,
                self._ids.new_id("worker"),
                node.name,
                slots,
                measured,
            )
        )
        worker = RemoteWorker(node, actor, slots)
        began = time.time()
        try:
            with anyio.fail_after(START_TIMEOUT):
                record, clock = await actor.measure.remote(boxes_of(self._plan, self._images), self._images.in_engine)
        except TimeoutError:
            self._ray.kill(actor)
            raise EngineUnavailable(f"no worker started there within {START_TIMEOUT:g} s", op="engine") from None
        node.record = parse_json(record, NodeRecord)
        skew = max(began - clock, clock - time.time(), 0.0)
        if reasons := list(refusals(node.record, required_keys(self._plan, os.environ), skew)):
            await actor.close.remote()
            self._ray.kill(actor)
            raise EngineUnavailable("; ".join(reasons), op="engine")
        self._workers.append(worker)
        self._slots += slots
        return worker

    async def _lose(self, worker: RemoteWorker, error: Exception) -> WorkerLost:
        """Return why a worker was lost. If its process is dead, replace it as long as its node is usable."""
        cause = await run_sync(lost_to, error, self._ray, worker.node.name)
        if isinstance(cause, ObjectStoreFull) or isinstance(error, self._ray.exceptions.RayTaskError):
            return cause  # the worker is alive
        if worker in self._workers:
            self._workers.remove(worker)
            self._slots -= worker.slots
            worker.node.deaths += 1
            if isinstance(cause, NodeLost | NodePreempted) or worker.node.deaths >= MAX_DEATHS:
                self._emit_node(worker.node, "lost", cause.message)
            else:
                self._starting += 1
                self._tasks.start_soon(self._replace, worker)
        return cause

    async def _replace(self, worker: RemoteWorker) -> None:
        try:
            await self._start(worker.node, worker.slots)
        except (EngineUnavailable, self._ray_error) as error:
            self._emit_node(worker.node, "lost", self._context.redactor.redact(last_line(error)))
        finally:
            self._starting -= 1
            self._freed.set()

    def _next(self) -> tuple[Attempt, str] | float | None:
        if not self._workers and not self._starting:
            raise EngineLost("no usable node is left", op="engine")
        return super()._next()

    async def _watch(self) -> None:
        """Ask the cluster for its nodes from time to time. One whose head was lost would never answer."""
        while True:
            try:
                with anyio.fail_after(HEAD_TIMEOUT):
                    nodes = await run_sync(self._ray.nodes, abandon_on_cancel=True)
            except (TimeoutError, self._ray_error) as error:
                raise EngineLost("the head of the cluster does not answer", op="engine") from error
            dead = {each["NodeID"] for each in nodes if not each["Alive"]}
            for worker in list(self._workers):
                if worker.node.id in dead and not worker.used:
                    await self._lose(worker, self._ray.exceptions.NodeDiedError("the node died"))
                elif not worker.asked:
                    worker.asked = True
                    self._tasks.start_soon(self._ask, worker)
            await anyio.sleep(WATCH_SECONDS)

    async def _ask(self, worker: RemoteWorker) -> None:
        """Ask a worker whether it is alive, and kill it if it does not answer. Its attempts then end as lost."""
        try:
            with anyio.fail_after(ANSWER_TIMEOUT):
                await worker.actor.is_alive.remote()
        except TimeoutError:
            self._ray.kill(worker.actor)
        except self._ray_error as error:
            if not worker.used:  # otherwise, its attempts notice
                await self._lose(worker, error)
        finally:
            worker.asked = False

    # Attempts

    async def _execute(self, attempt: Attempt, control: AttemptControl) -> Ended:
        free = [each for each in self._workers if each.used < each.slots]
        if not free:  # lost since the attempt was claimed
            return await self._close(attempt, NodeLost("the node was lost before the attempt began", op="attempt"))
        worker = min(free, key=lambda each: each.used / each.slots)
        worker.used += 1
        try:
            self._placements.place(attempt, worker.node.name)
            self._emit(attempt, "placed", node=worker.node.name)
            ended = await self._run_on(worker, attempt, control)
        except Exception as error:
            found = [each for each in single_errors(error) if isinstance(each, self._ray_error)]
            if not found:
                raise
            return await self._close(attempt, await self._lose(worker, found[0]))
        finally:
            worker.used -= 1
            self._placements.release(attempt)
        worker.node.deaths = 0
        return ended

    async def _run_on(self, worker: RemoteWorker, attempt: Attempt, control: AttemptControl) -> Ended:
        archive = self._context.work / "returned" / f"{attempt.id}.e{attempt.epoch}.tar"
        archive.parent.mkdir(exist_ok=True)
        for _ in range(MAX_SENDS):
            given = await self._send(worker, self._context.work / TEMPLATES / attempt.mission / GIVEN)
            pinned = await self._send(worker, Path(self._plan.pinned or ""))
            if image := self._images.archives.get(self._images.references.get(attempt.mission, "")):
                await self._send(worker, image.archive, to_keep=True)
            index = await self._receive(worker, attempt, control, given, pinned, archive)
            if index is not None:
                return await run_sync(self._store, attempt, worker.node, archive, index)
            for key in [each for each in self._sent if each[0] == worker.node.id]:  # evicted there, or deleted
                del self._sent[key]
        lost = WorkerLost(f"{worker.node.name} does not keep the files that it is sent", op="attempt")
        return await self._close(attempt, lost)

    async def _receive(
        self,
        worker: RemoteWorker,
        attempt: Attempt,
        control: AttemptControl,
        given: bytes,
        pinned: bytes,
        archive: Path,
    ) -> str | None:
        """Let a worker run an attempt, and write its bundle to `archive`. Return the digest of the bundle's index; None
        if the node does not have the files of the attempt."""
        index: str | None = ""
        stale = None

        async def forward_interrupt() -> None:
            await control.interrupted()
            await worker.actor.interrupt.remote(attempt.id)

        with open(archive, "wb") as stream:  # noqa: ASYNC230 (a write to the page cache)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(forward_interrupt)
                async for kind, value in self._items(worker, attempt, given, pinned):
                    if kind == PIECE and isinstance(value, bytes):
                        if stream.tell() + len(value) > MAX_ARCHIVE:
                            stream.truncate(0)
                            raise BundleCorrupt(f"{worker.node.name} returned too much for a bundle", op="attempt")
                        stream.write(value)
                    elif kind == ENDED:
                        index = str(value)
                    elif kind == MISSING:
                        index = None
                    elif kind == FAILED:
                        raise WorkerLost(f"{worker.node.name} could not commit it: {value}", op="attempt")
                    elif kind == EVENT and stale is None:
                        try:
                            _forward(value, control)
                        except LeaseLost as error:
                            stale = error  # the result is still received, as a finding
                tasks.cancel_scope.cancel()
        return index

    async def _items(
        self, worker: RemoteWorker, attempt: Attempt, given: bytes, pinned: bytes
    ) -> AsyncIterator[tuple[str, Any]]:
        stream = worker.actor.run.options(num_returns="streaming").remote(msgspec.json.encode(attempt), given, pinned)
        async for reference in stream:
            for item in await reference:
                yield item

    def _store(self, attempt: Attempt, node: ClusterNode, archive: Path, index: str) -> Ended:
        """Check a returned bundle completely, and move it to its place in the run's bundle.

        A bundle whose attempt has been taken over is kept next to the run, and `LeaseLost` is raised.
        """
        returned, place = archive.with_suffix(""), self._context.run_dir / attempt.path
        ended = open_returned(archive, returned, index, attempt, node.name, self._context)
        try:
            self._ledger.enter_phase(attempt, "committing")
        except LeaseLost:
            kept = refused_dir(self._context.run_dir) / place.name
            kept.parent.mkdir(exist_ok=True)
            remove_tree(kept)
            os.rename(returned, kept)
            raise
        place.parent.mkdir(exist_ok=True)
        os.rename(returned, place)
        sync_directory(place.parent)
        return ended

    async def _close(self, attempt: Attempt, cause: WorkerLost) -> Ended:
        context = self._context
        return await run_sync(
            partial(close_torn, context.run_dir, context.run_id, attempt, context.redactor, self._clock, cause)
        )

    async def _send(self, worker: RemoteWorker, source: Path, *, to_keep: bool = False) -> bytes:
        """Make sure that the worker's node has a directory or an image; return its parcel.

        `to_keep`: each worker asks its node to keep it.
        """
        key = (worker if to_keep else worker.node.id, source)
        parcel = await run_sync(self._parcels.pack, source)
        async with self._sending[worker.node.id, parcel.sha256]:  # missions can have equal templates
            if key not in self._sent:
                encoded = msgspec.json.encode(parcel)
                here = await worker.actor.size_of.remote(encoded)
                while here < parcel.size:
                    data = await run_sync(self._parcels.read, source, here)
                    here = await worker.actor.receive.remote(encoded, here, data)
                self._sent[key] = encoded
            return self._sent[key]

    def _emit_node(self, node: ClusterNode, standing: str, message: str) -> None:
        about = {"attempt_id": "", "mission_id": "", "node": node.name}
        print_event({"event": "node", **about, "message": f"{standing}: {message}"})
        self._placements.set_node(node.name, f"{standing}: {message}")

    async def clean_up(self) -> None:
        """End all workers, and remove what they left on their nodes. Attempts may still run there after a signal."""
        if self._done or not self._workers:
            with contextlib.suppress(self._ray_error, TimeoutError), anyio.fail_after(CLOSE_TIMEOUT):
                async with anyio.create_task_group() as tasks:
                    for worker in self._workers:
                        tasks.start_soon(_call, worker.actor.close)
                return
        for worker in self._workers:
            self._ray.kill(worker.actor)
        await run_sync(sweep_killed, self._ray, self._plan.run_id)


def _forward(event: object, control: AttemptControl) -> None:
    match event:
        case {"state": str(state)} if state != "ended":
            control.on_state(state)  # type: ignore[arg-type]
        case {"activity": str(activity)}:
            control.on_activity(activity)
        case {"tokens": int(tokens)}:
            control.on_tokens(tokens)


async def _call(method: Any) -> None:
    await method.remote()


async def _drive(driver: Driver) -> None:
    """Drive until everything is done, the engine is lost, or a signal asks to end."""
    lost = False
    try:
        async with anyio.create_task_group() as tasks:

            async def end_on_signal() -> None:
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    async for _ in signals:
                        tasks.cancel_scope.cancel()

            tasks.start_soon(end_on_signal)
            await driver.drive()
            tasks.cancel_scope.cancel()
    except* EngineLost:
        lost = True
        raise
    finally:
        if not lost:
            with anyio.move_on_after(CLEAN_TIMEOUT, shield=True), contextlib.suppress(Exception):
                await driver.clean_up()


def main(argv: list[str]) -> None:
    out, run_id, name, epoch, conductor, place, chosen = argv
    if not die_with(int(conductor)):
        return
    errors = _keep_streams()
    inputs = WorkerInputs.open(Path(out), run_id, name)
    engine = parse_json(chosen, EngineSettings)
    try:
        with connected(engine, Path(place), _give_up) as ray:
            anyio.run(_drive, Driver(ray, engine, name, int(epoch), inputs))
    except Exception as error:
        found = typed(error)
        if isinstance(found, EngineLost | EngineUnavailable):
            _give_up(found)
        traceback.print_exc(file=errors)
        os._exit(1)


def _give_up(error: EngineLost | EngineUnavailable) -> NoReturn:
    print_event({"event": ENGINE_FAILED, **error.as_dict()})
    os._exit(1)  # Ray's own exit may wait for a cluster that does not answer


def _keep_streams() -> TextIO:
    """Reserve stdout for events, and return the original stderr. Ray's own output goes only to its log files."""
    sys.stdout, errors = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    return errors


if __name__ == "__main__":
    main(sys.argv[1:])
