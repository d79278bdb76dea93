"""What the driver of a cluster passes to Ray, and how it ends attempts that Ray cannot run. Ray itself is replaced."""

from __future__ import annotations

import platform
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from suites import HEAD, attempts, mission, plan, say

from proofbox.config.engine import EngineSettings
from proofbox.errors import BundleCorrupt
from proofbox.evidence.bundle.identity import world
from proofbox.lab.attempt.context import AttemptControl
from proofbox.lab.attempt.documents import NodeRecord
from proofbox.lab.run.crews.cluster import transfer
from proofbox.lab.run.crews.cluster.driver import Driver, RemoteWorker
from proofbox.lab.run.crews.cluster.nodes import ClusterNode
from proofbox.lab.run.crews.cluster.transfer import Parcel, ParcelCache
from proofbox.lab.run.failures import typed
from proofbox.lab.run.plan import Plan
from proofbox.lab.run.worker import WorkerInputs
from proofbox.sandbox.images.imports import import_image

SECRET = "sk-proof-91c2f0d7a6b34e18"
KEY = "MODEL_API_KEY"


class Recorded:
    """A callable of Ray: `.options(…).remote(…)` records the arguments, and returns the answer to them."""

    def __init__(self, sent: list[Any], answer: Callable[..., Any]) -> None:
        self._sent = sent
        self._answer = answer

    def options(self, **options: Any) -> Recorded:
        self._sent.append(options)
        return self

    def remote(self, *args: Any) -> Any:
        self._sent.append(args)
        return self._answer(*args)


class FakeActor:
    """An actor whose node has nothing, receives everything, and cannot store the result of an attempt."""

    def __init__(self, sent: list[Any], error: Exception) -> None:
        self._sent = sent
        self._error = error

    def __getattr__(self, name: str) -> Recorded:
        if name == "run":
            return Recorded(self._sent, lambda *_: self._fail())

        async def answer(*args: Any) -> Any:
            return _answer(name, *args)

        return Recorded(self._sent, answer)

    async def _fail(self) -> AsyncIterator[Any]:
        raise self._error
        yield


def _answer(name: str, *args: Any) -> Any:
    match name:
        case "measure":
            record = NodeRecord(
                name="node",
                kernel="6.1",
                machine=platform.machine(),
                python="3.11",
                proofbox=world()["tool"]["version"],
                provider="bubblewrap",
                checks={},
                problem="",
                disk_free=1 << 40,
                keys=(KEY,),
                measured_at="2026-01-01T00:00:00Z",
            )
            return msgspec.json.encode(record), time.time()
        case "size_of":
            return 0
        case "receive":
            return msgspec.json.decode(args[0], type=Parcel).size
    return True


NODE = {
    "NodeID": "1" * 56,
    "NodeManagerHostname": "host",
    "Alive": True,
    "Resources": {"CPU": 1.0, "memory": float(4 << 30), "box": 8.0},
}


def drive(actor: Callable[[], Any], made: Plan, sent: list[Any], out: Path) -> None:
    """Drive a run on one node, whose workers are such actors."""
    from ray import exceptions

    ray = SimpleNamespace(
        exceptions=exceptions, nodes=lambda: [NODE], remote=lambda _: Recorded(sent, lambda *_: actor())
    )
    (out / made.run_id).mkdir()  # as its conductor does
    inputs = WorkerInputs.open(out, made.run_id, "driver")
    driver = Driver(ray, made.engine, "driver", inputs.ledger.begin_epoch(), inputs)
    anyio.run(driver.drive)
    inputs.ledger.close()


class ForgetfulActor(FakeActor):
    """An actor whose node says twice that it does not have the files of the attempt any more."""

    missing = 2

    async def _fail(self) -> AsyncIterator[Any]:
        async def answer() -> list[tuple[str, str]]:
            return [("missing", "0" * 64)]

        if self.missing:
            self.missing -= 1
            yield answer()
        else:
            raise self._error


@pytest.mark.needs("ray")
@pytest.mark.parametrize(("missing", "infra"), [(2, "ATTEMPT_OBJECT_STORE_FULL"), (3, "ATTEMPT_WORKER_LOST")])
def test_files_that_a_node_lost_are_sent_again(tmp_path: Path, out: Path, missing: int, infra: str) -> None:
    from ray import exceptions

    def actor() -> ForgetfulActor:
        made = ForgetfulActor(sent, exceptions.ObjectStoreFullError("full"))
        made.missing = missing
        return made

    sent: list[Any] = []
    engine = EngineSettings(name="ray:127.0.0.1:1")
    made = plan(HEAD + mission("answer", say("done")), out, tmp_path, engine=engine, retries=0)
    drive(actor, made, sent, out)
    [ended] = attempts(made, out).values()
    assert ended.result is not None
    assert ended.result.infra == infra
    parcels = [each for each in sent if isinstance(each, tuple) and len(each) == 3 and each[1] == 0]
    assert len(parcels) == 6, "the template and the pinned files, three times"


class CachingActor:
    """An actor with the cache of its node, which is slow."""

    def __init__(self, cache: ParcelCache) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Recorded:
        async def answer(parcel: bytes, *args: Any) -> Any:
            await anyio.sleep(0.01)
            return getattr(self._cache, name)(msgspec.json.decode(parcel, type=Parcel), *args)

        return Recorded([], answer)


@pytest.mark.needs("ray")
@pytest.mark.parametrize("workers", [1, 2])
def test_equal_templates_are_sent_to_a_node_once(
    tmp_path: Path, out: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import exceptions

    monkeypatch.setattr(transfer, "PIECE_SIZE", 4096)
    node, cache = ClusterNode("1", "node-1", 2, 2), ParcelCache(tmp_path / "cache", "run.node")
    given = [tmp_path / "first", tmp_path / "second"]
    for each in given:
        each.mkdir()
        (each / "data").write_bytes(b"x" * 10_000)
    made = plan(HEAD + mission("answer", say("done")), out, tmp_path)
    inputs = WorkerInputs.open(out, made.run_id, "driver")
    driver = Driver(SimpleNamespace(exceptions=exceptions), made.engine, "driver", 1, inputs)
    used = [RemoteWorker(node, CachingActor(cache), 2) for _ in range(workers)]

    async def send() -> None:
        async with anyio.create_task_group() as tasks:
            for number, each in enumerate(given):
                tasks.start_soon(driver._send, used[number % workers], each)

    anyio.run(send)
    [kept] = (tmp_path / "cache").iterdir()
    assert kept.suffix == ".tar"
    inputs.ledger.close()


class ReturningActor(FakeActor):
    """An actor whose node returns a bundle in five pieces."""

    pieces = 0

    async def _fail(self) -> AsyncIterator[Any]:
        async def answer(*item: Any) -> list[tuple[Any, ...]]:
            return [item]

        for _ in range(5):
            self.pieces += 1
            yield answer("piece", b"0" * 1000)
        yield answer("ended", "digest")


@pytest.mark.needs("ray")
@pytest.mark.parametrize(("limit", "received"), [(5000, 5), (4999, 5), (2000, 3)])
def test_archive_larger_than_any_bundle_is_not_received(
    tmp_path: Path, out: Path, limit: int, received: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node must not fill the disk of the machine that conducts the run."""
    from ray import exceptions

    monkeypatch.setattr("proofbox.lab.run.crews.cluster.driver.MAX_ARCHIVE", limit)
    made = plan(HEAD + mission("answer", say("done")), out, tmp_path)
    [attempt] = attempts(made, out).values()
    actor, archive = ReturningActor([], RuntimeError()), tmp_path / "archive"
    worker = RemoteWorker(ClusterNode("1", "node-1", 1, 1), actor, 1)
    inputs = WorkerInputs.open(out, made.run_id, "driver")
    driver = Driver(SimpleNamespace(exceptions=exceptions), made.engine, "driver", 1, inputs)
    control = AttemptControl(print, print, print)

    async def receive() -> str | None:
        return await driver._receive(worker, attempt, control, b"", b"", archive)

    if limit == 5000:
        assert anyio.run(receive) == "digest"
        assert archive.stat().st_size == 5000
    else:
        with pytest.raises(ExceptionGroup) as refused:
            anyio.run(receive)
        found = typed(refused.value)
        assert isinstance(found, BundleCorrupt)
        assert found.message == "node-1 returned too much for a bundle"
        assert archive.stat().st_size == 0
    assert actor.pieces == received
    inputs.ledger.close()


@pytest.mark.needs("ray")
def test_full_object_store_ends_the_attempt_and_no_task_argument_contains_a_key(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import exceptions

    sent: list[Any] = []
    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "root/bin").mkdir(parents=True)
    image = import_image(tmp_path / "root", "tools")
    source = HEAD + mission("answer", say("done"), image="tools")
    engine = EngineSettings(name="ray:127.0.0.1:1", resources={"cpus": 0.5, "memory": "1g", "box": 2.0})
    made = plan(source, out, tmp_path, engine=engine, flags={"api_key_env": KEY}, retries=0, trust=True)
    drive(lambda: FakeActor(sent, exceptions.ObjectStoreFullError("full")), made, sent, out)

    [ended] = attempts(made, out).values()
    assert ended.result is not None
    assert ended.result.infra == "ATTEMPT_OBJECT_STORE_FULL"
    placement = sent[0]
    assert (placement["num_cpus"], placement["memory"], placement["resources"]) == (0.5, float(1 << 30), {"box": 2.0})
    assert (placement["max_restarts"], placement["max_task_retries"]) == (0, 0), "only the ledger decides on retries"
    text = repr(sent)
    assert KEY in text, "the plan names the variable"
    assert image.reference in text
    assert SECRET not in text
