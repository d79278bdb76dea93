"""The worker on a node of a cluster, without Ray: what it tells its driver, and how it continues after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from suites import HEAD, attempts, mission, plan, say

from proofbox.lab.run.crews.cluster.node import MISSING, NodeWorker
from proofbox.lab.run.crews.cluster.transfer import ParcelCache, Parcels
from proofbox.sandbox.images.received import received_dir


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_worker_goes_on_after_a_parcel_was_missing(tmp_path: Path, out: Path) -> None:
    """Another process may evict a parcel between its transfer and its use. The driver sends it again."""
    made = plan(HEAD + mission("answer", say("done")), out, tmp_path)
    [attempt] = attempts(made, out).values()
    parcels, cache = Parcels(tmp_path / "parcels"), ParcelCache(received_dir(), "test")
    for name in ("given", "pinned"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    given, pinned = parcels.pack(tmp_path / "given"), parcels.pack(tmp_path / "pinned")

    async def run_twice() -> list[tuple[str, Any]]:
        worker = NodeWorker(msgspec.json.encode(made), {}, "worker-1", "node-1", 1, None)
        encoded = [msgspec.json.encode(each) for each in (attempt, given, pinned)]

        async def run() -> list[tuple[str, Any]]:
            return [item async for items in worker.run(*encoded) for item in items]

        first = await run()
        cache.receive(pinned, 0, parcels.read(tmp_path / "pinned", 0))
        second = await run()
        await worker.close()
        return first + second

    assert anyio.run(run_twice) == [(MISSING, pinned.sha256), (MISSING, given.sha256)]
