"""Stores: one contract, a trial that detects stores that break it, and bundles that arrive complete or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from proofbox import BundleWriter, load_bundle
from proofbox.cli import main
from proofbox.errors import (
    BundleCorrupt,
    BundleError,
    BundleExists,
    BundleLocked,
    BundleNotFound,
    StoreConflict,
    StoreError,
    StoreTooLarge,
    StoreUntrusted,
    UsageError,
)
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.store.contract import BundleStore, Stored, open_store
from proofbox.evidence.store.local import Local
from proofbox.evidence.store.transfer import SMALL_BYTES, pull_bundle, push_bundle
from proofbox.evidence.store.write_check import KEY, check_store

BUCKET = "evidence"
WRITERS = 16


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """A bucket of moto's server, configured like any other S3: through the environment."""
    import obstore
    from obstore.store import S3Store

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    served: Any = server._server
    answer, lock = served.app, threading.Lock()

    def one_at_a_time(environ: Any, start: Any) -> list[bytes]:
        with lock:  # moto checks a condition and writes in two steps, S3 in one
            return list(answer(environ, start))

    served.app = one_at_a_time
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        import urllib.request

        # A new server in this process still has the data of an earlier one.
        for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
            urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/{path}", method=method)).close()
        assert obstore.list(S3Store(BUCKET, client_options={"allow_http": True})).collect() == []
        yield f"s3://{BUCKET}"
    server.stop()


@pytest.fixture(params=["local", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('s3_url')}/{tmp_path.name}"


@pytest.fixture
def store(store_url: str) -> BundleStore:
    return open_store(store_url)


def race(work: Callable[[int], object]) -> list[int]:
    """Run the functions concurrently, and return those that were not refused."""
    barrier = threading.Barrier(WRITERS)

    def run(number: int) -> int | None:
        barrier.wait()
        try:
            work(number)
        except StoreConflict:
            return None
        return number

    with ThreadPoolExecutor(WRITERS) as pool:
        return [number for number in pool.map(run, range(WRITERS)) if number is not None]


# The contract


def test_create_get_list(store: BundleStore) -> None:
    assert store.get("a/b") is None
    version = store.create("a/b", b"1")
    store.create("a/c/d", b"2")
    store.create("ab", b"3")
    assert store.get("a/b") == Stored(b"1", version)
    assert store.list("a") == ["a/b", "a/c/d"]
    assert store.list("") == ["a/b", "a/c/d", "ab"]
    assert store.list("none") == []


def test_create_only(store: BundleStore) -> None:
    store.create("k", b"first")
    with pytest.raises(StoreConflict):
        store.create("k", b"second")
    with pytest.raises(StoreConflict):
        store.create("k", b"first")
    found = store.get("k")
    assert found is not None
    assert found.data == b"first"


def test_compare_and_swap(store: BundleStore) -> None:
    with pytest.raises(StoreConflict):
        store.swap("absent", b"x", '"0"')
    first = store.create("k", b"1")
    second = store.swap("k", b"2", first)
    with pytest.raises(StoreConflict):
        store.swap("k", b"3", first)
    assert store.get("k") == Stored(b"2", second)


def test_16_racing_creators_have_one_winner(store: BundleStore) -> None:
    winners = race(lambda number: store.create("k", str(number).encode()))
    assert len(winners) == 1
    found = store.get("k")
    assert found is not None
    assert found.data == str(winners[0]).encode()


def test_16_racing_swappers_have_one_winner(store: BundleStore) -> None:
    version = store.create("k", b"before")
    winners = race(lambda number: store.swap("k", str(number).encode(), version))
    assert len(winners) == 1
    found = store.get("k")
    assert found is not None
    assert found.data == str(winners[0]).encode()


@pytest.mark.parametrize("key", ["", "/a", "../a", "a/../b", "a//b", "a\n"])
def test_keys_that_are_refused(store: BundleStore, key: str) -> None:
    for call in (lambda: store.create(key, b""), lambda: store.get(key), lambda: store.swap(key, b"", "v")):
        with pytest.raises(UsageError):
            call()


@pytest.mark.parametrize("url", ["gs://bucket", "s3://", "s3://Not_A_Bucket/x", "https://example.org/x"])
def test_unsupported_store_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url)


def test_missing_store_is_an_error(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError) as refused:
        open_store(s3_url).get("k")
    assert refused.value.retryable
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        Local(tmp_path / "file" / "below")


# The trial


def test_a_store_that_keeps_the_contract_is_trusted(store: BundleStore) -> None:
    check_store(store)
    check_store(store)
    assert store.list("") == [KEY]


class Liar(Local):
    """A store with one fault."""

    def __init__(self, directory: Path, fault: str) -> None:
        super().__init__(directory)
        self.fault = fault

    def create(self, key: str, data: bytes) -> str:
        if self.fault == "creates over":
            (Path(self._root) / key).unlink(missing_ok=True)
        return super().create(key, data)

    def swap(self, key: str, data: bytes, version: str) -> str:
        if self.fault == "swaps blindly":
            found = self.get(key)
            version = found.version if found else version
        if self.fault == "swaps nothing":
            return version
        return super().swap(key, data, version)

    def list(self, prefix: str) -> list[str]:
        return [] if self.fault == "lists nothing" else super().list(prefix)


@pytest.mark.parametrize("fault", ["creates over", "swaps blindly", "swaps nothing", "lists nothing"])
def test_store_that_breaks_the_contract_is_refused(tmp_path: Path, fault: str) -> None:
    liar = Liar(tmp_path / "store", fault)
    with pytest.raises(StoreUntrusted):
        check_store(liar)
    run = write(tmp_path / "out")
    with pytest.raises(StoreUntrusted):
        push_bundle(run, liar)
    assert run.name not in os.listdir(tmp_path / "store")


# Bundles


def write(out: Path, run_id: str | None = None, content: bytes = b"1") -> Path:
    with BundleWriter.create(out, run_id=run_id) as run:
        run.write_bytes("deep/blob", content * 1000)
        with run.open_log("trace.jsonl") as log:
            log.append({"n": 1})
        with run.nested("attempts/a-1") as attempt:
            attempt.write_json("outcome.json", {"n": 1})
            with attempt.nested("inner") as inner:
                inner.write_bytes("x", b"y")
    return run.path


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_bundle_round_trips_through_a_store(tmp_path: Path, store: BundleStore) -> None:
    run = write(tmp_path / "out")
    assert push_bundle(tmp_path / "out", store) == run.name
    pulled = pull_bundle(store, tmp_path / "back")
    assert contents(Path(pulled.path)) == contents(run)
    assert sorted(os.listdir(tmp_path / "back")) == [".runtime.lock", run.name]
    push_bundle(run, store)  # a repeated push changes nothing
    with pytest.raises(BundleExists):
        pull_bundle(store, tmp_path / "back")


def test_large_artifact_is_pushed_in_pieces(
    tmp_path: Path, store: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "out", content=os.urandom(20_000))
    small = Bundle.read_bytes

    def read_small(bundle: Bundle, path: str, *, limit: int | None = None) -> bytes:
        assert bundle.artifact(path).file_size <= SMALL_BYTES, "a large artifact is not read whole"
        return small(bundle, path, limit=limit)

    monkeypatch.setattr(Bundle, "read_bytes", read_small)
    push_bundle(run, store)
    push_bundle(run, store)  # a repeated push changes nothing
    assert contents(Path(pull_bundle(store, tmp_path / "back").path)) == contents(run)


def test_large_artifact_that_changes_during_the_push_is_not_stored(tmp_path: Path, store: BundleStore) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x" * (3 << 20)
        raise BundleCorrupt("it has changed", op="bundle read")

    with pytest.raises(BundleCorrupt):
        store.upload("run/large", pieces())
    assert store.get("run/large") is None
    store.upload("run/large", iter([b"one", b"two"]))
    assert store.get("run/large") is not None
    with pytest.raises(StoreConflict):
        store.upload("run/large", iter([b"other"]))


def test_the_index_is_last(tmp_path: Path) -> None:
    order: list[str] = []

    class Recording(Local):
        def create(self, key: str, data: bytes) -> str:
            order.append(key)
            return super().create(key, data)

        def swap(self, key: str, data: bytes, version: str) -> str:
            order.append(key)
            return super().swap(key, data, version)

    run = write(tmp_path / "out")
    push_bundle(run, Recording(tmp_path / "store"))
    assert order[-2:] == [f"{run.name}/artifact_index.json", "LATEST"]
    assert order.index(f".proofbox/claims/{run.name}") < min(
        number for number, key in enumerate(order) if key.startswith(run.name)
    )


def test_one_of_16_bundles_with_the_same_name_is_stored(tmp_path: Path, store: BundleStore) -> None:
    runs = [write(tmp_path / str(number), "run-1", b"%02d" % number) for number in range(WRITERS)]
    winners = race(lambda number: push_bundle(runs[number], store))
    assert len(winners) == 1
    pulled = pull_bundle(store, tmp_path / "back")
    assert contents(Path(pulled.path)) == contents(runs[winners[0]])


def test_interrupted_push_can_be_repeated(tmp_path: Path, store: BundleStore) -> None:
    class Cut(Exception):
        pass

    class Flaky:
        left = 5

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def create(self, key: str, data: bytes) -> str:
            self.left -= 1
            if self.left < 0:
                raise Cut
            return store.create(key, data)

    run = write(tmp_path / "out")
    with pytest.raises(Cut):
        push_bundle(run, Flaky())  # type: ignore[arg-type]
    with pytest.raises(BundleNotFound):
        pull_bundle(store, tmp_path / "back", run.name)
    push_bundle(run, store)
    assert pull_bundle(store, tmp_path / "back").run_id == run.name


def test_failed_runs_are_pushed_and_latest_stays(tmp_path: Path, store: BundleStore) -> None:
    good = write(tmp_path / "out")
    push_bundle(good, store)
    with pytest.raises(ValueError, match="broken"), BundleWriter.create(tmp_path / "out") as failed:
        raise ValueError("broken")
    push_bundle(failed.path, store)
    assert pull_bundle(store, tmp_path / "a").run_id == good.name
    assert pull_bundle(store, tmp_path / "a", failed.run_id).index.status == "failed"


def test_damaged_bundle_is_neither_pushed_nor_pulled(tmp_path: Path) -> None:
    store = Local(tmp_path / "store")
    run = write(tmp_path / "out")
    push_bundle(run, store)
    blob = tmp_path / "store" / run.name / "deep" / "blob"
    blob.write_bytes(b"2" * 1000)
    with pytest.raises(BundleCorrupt, match="deep/blob"):
        pull_bundle(store, tmp_path / "back")
    assert os.listdir(tmp_path / "back") == []
    (run / "deep" / "blob").write_bytes(b"2")
    with pytest.raises(BundleCorrupt):
        push_bundle(run, store)
    with pytest.raises(BundleNotFound):
        push_bundle(run / "attempts" / "a-1", store)


def test_run_with_another_id_is_not_pulled(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        with BundleWriter.create(tmp_path / "out", run_id=name) as run:
            run.write_json("who.json", {"name": name})
        push_bundle(run.path, Local(tmp_path / "store"))
        runs.append(tmp_path / "store" / name)
    shutil.rmtree(runs[0])
    runs[1].rename(runs[0])
    with pytest.raises(BundleCorrupt, match="is actually the run b"):
        pull_bundle(Local(tmp_path / "store"), tmp_path / "in", "a")
    assert [path.name for path in (tmp_path / "in").iterdir() if path.name[0] != "."] == []


def test_dead_pull_does_not_block_a_new_one(tmp_path: Path) -> None:
    store = Local(tmp_path / "store")
    run = write(tmp_path / "out")
    push_bundle(run, store)
    left = tmp_path / "back" / f".proofbox-pull-{run.name}"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "stale").touch()
    fd = os.open(left, os.O_RDONLY)
    import fcntl

    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BundleLocked):
        pull_bundle(store, tmp_path / "back")
    assert (left / "deep" / "stale").exists()
    os.close(fd)
    pulled = pull_bundle(store, tmp_path / "back")
    assert load_bundle(pulled.path).run_id == run.name
    assert not left.exists()


@pytest.mark.parametrize("name", ["../x", "", "a/b"])
def test_invalid_latest_in_a_store_is_refused(tmp_path: Path, name: str) -> None:
    store = Local(tmp_path / "store")
    store.create("LATEST", name.encode())
    with pytest.raises(BundleNotFound):
        pull_bundle(store, tmp_path / "back")


def test_the_commands(tmp_path: Path, store_url: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    run = write(tmp_path / "out")
    assert main(["bundle", "push", str(tmp_path / "out"), store_url, "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["run_id"] == run.name
    assert main(["bundle", "pull", store_url, str(tmp_path / "back"), "--json"]) == 0
    assert load_bundle(json.loads(capfdbinary.readouterr().out)["path"]).run_id == run.name
    shutil.rmtree(tmp_path / "back")
    assert main(["bundle", "pull", store_url, str(tmp_path / "back"), "--run", "absent", "--json"]) == 2
    assert json.loads(capfdbinary.readouterr().out)["error"]["code"] == "BUNDLE_NOT_FOUND"


@contextlib.contextmanager
def within(limit: int) -> Iterator[None]:
    """Fail if Python's memory grows by more than `limit` bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["data.bin", "artifact_index.json", "attempts/a/artifact_index.json"])
def test_an_object_larger_than_the_index_says_is_not_read(tmp_path: Path, name: str) -> None:
    store = Local(tmp_path / "store")
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("data.bin", b"small")
        with bundle.nested("attempts/a") as inner:
            inner.write_bytes("a", b"a")
    run_id = push_bundle(bundle.path, store)
    os.truncate(tmp_path / "store" / run_id / name, 6 << 30)
    with within(1 << 23), pytest.raises(BundleError):
        pull_bundle(store, tmp_path / "copy", run_id)
    assert list((tmp_path / "copy").glob("run-*")) == []


def test_an_artifact_is_pulled_in_pieces(tmp_path: Path) -> None:
    store = Local(tmp_path / "store")
    with BundleWriter.create(tmp_path / "out") as bundle:
        bundle.write_bytes("large.bin", bytes(1 << 25))
    run_id = push_bundle(bundle.path, store)
    with within(1 << 24):
        pulled = pull_bundle(store, tmp_path / "copy", run_id)
    assert pulled.path == str(tmp_path / "copy" / run_id)
    assert pulled.read_bytes("large.bin") == bytes(1 << 25)


def test_no_more_than_the_limit_is_read(store: BundleStore) -> None:
    store.create("k", b"12345")
    found = store.get("k", limit=5)
    assert found is not None
    assert found.data == b"12345"
    pieces = store.stream("k", limit=5)
    assert pieces is not None
    assert b"".join(pieces) == b"12345"
    assert store.stream("absent", limit=5) is None
    with pytest.raises(StoreTooLarge):
        store.get("k", limit=4)
    with pytest.raises(StoreTooLarge):
        list(store.stream("k", limit=4) or ())
