"""The backend carried out a request but the response was lost: the client detects it and does not repeat the request.

And everything that a delivery leaves behind, searched for the key.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import anyio
import fault_server as faults
import pytest
from async_parity import blocking_calls, coroutines
from fault_server import FaultServer, forward
from running_backend import KEY, Backend, backend, bare, clone, deliver, git, here, run, settings, tree_of

from proofbox.delivery.client.async_client import AsyncBackendClient
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.client.wire import InitialExport, PullRequest, RepositoryChange
from proofbox.delivery.source.tree import open_source
from proofbox.errors import BackendNotFound

pytestmark = pytest.mark.needs("git")

FAULTS = {
    "reset": faults.reset,
    "truncated": faults.truncate,
    "garbage": faults.garbage,
    "not http": faults.not_http,
    "too large": faults.huge,
    "a 503 of something in between": faults.answer(503, {}),
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for name in ("a", "b"):
        (root / name).write_text(name)
    return root


@pytest.fixture(scope="module", params=[{}, {"forgetful": True}], ids=["whole", "forgetful"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with backend(tmp_path_factory.mktemp("data"), **request.param) as started:
        yield started


@pytest.mark.parametrize("name", FAULTS)
def test_lost_response_is_detected(name: str, running: Backend, source: Path) -> None:
    """For each pair of requests (check, act) the response to the act is lost; the next check finds the result."""
    app = f"app {name}"
    good, lost = forward(running.url), forward(running.url, then=FAULTS[name])
    before = set(bare(running.data))
    with open_source(source) as tree, FaultServer(good, lost, good, good, lost, good) as proxy:
        with BackendClient(settings(proxy.url)) as client:
            made = client.initial_export(app, InitialExport(user_id="u"), tree.files)
            change = RepositoryChange(path="n", operation="add", mode="100644")
            asked = PullRequest(user_id="u", base_commit_sha=made.base_commit_sha, branch_name="proofbox/1", title="t")
            proposed = client.create_pull_request(app, asked, [(change, tree.files[0])])
        asked_for = [request.head.split(b" ")[1].rpartition(b"/")[2] for request in proxy.requests]
    assert asked_for == [b"manifest", b"initial-export", b"manifest", b"manifest", b"pull-requests", b"manifest"]
    assert proposed.pr_url.endswith("/pulls/1")
    (repository,) = set(bare(running.data)) - before
    assert git(repository, "rev-parse", "main").strip() == made.base_commit_sha
    refs = git(repository, "for-each-ref", "--format=%(refname)").split()
    assert refs == ["refs/heads/main", "refs/heads/proofbox/1"]


def test_async_client_detects_a_lost_response(running: Backend, source: Path) -> None:
    async def whole_way(url: str) -> str:
        with open_source(source) as tree:
            async with AsyncBackendClient(settings(url)) as client:
                made = await client.initial_export("async", InitialExport(user_id="u"), tree.files)
                again = await client.initial_export("async", InitialExport(user_id="u"), tree.files)
                assert made == again
                manifest = await client.get_repo_manifest("async", user_id="u")
                assert {file.path: file.sha256 for file in manifest.files} == {
                    file.path: file.sha256 for file in tree.files
                }
                change = RepositoryChange(path="a", operation="delete")
                asked = PullRequest(
                    user_id="u", base_commit_sha=made.base_commit_sha, branch_name="proofbox/1", title="t"
                )
                first = await client.create_pull_request("async", asked, [(change, None)])
                second = await client.create_pull_request("async", asked, [(change, None)])
                assert first.pr_url == second.pr_url
                return first.pr_url

    assert anyio.run(whole_way, running.url).endswith("/apps/async/pulls/1")


def test_no_async_call_blocks_the_event_loop(running: Backend, source: Path) -> None:
    called: set[str] = set()
    blocked: dict[str, list[str]] = {}

    async def do(name: str, work: Awaitable[Any]) -> Any:
        called.add(name)
        with blocking_calls() as found:
            try:
                return await work
            finally:
                if found:
                    blocked[name] = found

    async def work() -> None:
        client = AsyncBackendClient(settings(running.url))
        with open_source(source) as tree, contextlib.suppress(BackendNotFound):
            export = InitialExport(user_id="u")
            made = await do("initial_export", client.initial_export("loop", export, tree.files))
            await do("get_repo_manifest", client.get_repo_manifest("loop", user_id="u"))
            change = RepositoryChange(path="n", operation="add", mode="100644")
            pull = PullRequest(user_id="u", base_commit_sha=made.base_commit_sha, branch_name="proofbox/1", title="t")
            changes = [(change, tree.files[0])]
            await do("create_pull_request", client.create_pull_request("loop", pull, changes))
            await do("get_app_spec", client.get_app_spec("enterprise"))
        await do("close", client.close())

    anyio.run(work)
    assert blocked == {}
    assert called == coroutines(AsyncBackendClient)


def test_delivery_of_many_files_is_complete(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(300):
        path = source / f"{number % 10}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 3 % 2000))
        path.chmod(0o755 if number % 7 == 0 else 0o644)
    (source / "large").write_bytes(os.urandom(3_000_001))
    with backend(tmp_path / "data") as running:
        common = ["--app-id", "many", "--source", source, "--allow-unpromoted"]
        made = deliver(running.url, "init", *common)
        assert tree_of(clone(made["repo_url"], tmp_path / "one")) == tree_of(source)
        for number in range(0, 300, 2):
            (source / f"{number % 10}" / f"{number}.bin").write_bytes(b"changed %d" % number)
        (source / "large").unlink()
        proposed = deliver(running.url, "pr", *common)
        assert len(proposed["changes"]) == 151
        assert tree_of(clone(made["repo_url"], tmp_path / "two", proposed["branch_name"])) == tree_of(source)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One directory for everything that a user's commands write, to search it."""
    place = tmp_path / "home"
    for name in ("STATE", "CACHE", "CONFIG"):
        (place / name).mkdir(parents=True, mode=0o700)
        monkeypatch.setenv(f"XDG_{name}_HOME", str(place / name))
    monkeypatch.setenv("PROOFBOX_DEBUG", "1")
    return place


def test_key_is_not_written_anywhere(home: Path, source: Path, tmp_path: Path) -> None:
    received: list[str] = []
    with backend(home / "data") as running:
        common = ["--app-id", "shop", "--source", source, "--allow-unpromoted", "--timeout", "2"]
        received += here("deliver", "init", *common, url=running.url)[1:]
        (source / "a").write_text("changed")
        received += here("deliver", "plan", "--app-id", "shop", "--source", source, url=running.url)[1:]
        received += here("deliver", "pr", *common, "--json", url=running.url)[1:]
        (source / "b").write_text("changed too")
        other = ["--app-id", "other", *common[2:]]
        for fault in (faults.garbage, faults.echo_key(401), faults.drip_head):
            with FaultServer(forward(running.url), fault) as proxy:
                code, *words = here("deliver", "init", *other, url=proxy.url)
                assert code in (3, 4), words
                received += words
        with FaultServer(forward(running.url), faults.echo_key(500)) as proxy:
            done = run("deliver", "init", *other, url=proxy.url)
            assert done.returncode == 3
            received += [done.stdout, done.stderr]
        assert KEY not in command_lines()
    (source / "leak").write_text(f"key={KEY}")
    code, *words = here("deliver", "pr", *common, "--json", url=running.url)
    assert "DELIVERY_SECRET_FOUND" in words[0]
    received += words
    (source / "leak").unlink()
    assert not [text for text in received if KEY in text]
    assert any(received)
    written = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.name == "baseline.json" for path in written)
    assert any(path.name == "backend.db" for path in written)
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path


def command_lines() -> str:
    """Return the command lines of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


def test_backend_needs_a_key_and_stores_specs(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "INTERNAL_API_KEY"}
    argv = [sys.executable, "-m", "proofbox", "backend"]
    done = subprocess.run(
        [*argv, "serve", "--port", "0", "--json", "--data", str(tmp_path / "data")],
        env={**env, "INTERNAL_API_KEY": "your-secret-key"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "DELIVERY_SETTINGS_INVALID" in done.stdout
    (tmp_path / "spec.json").write_text('{"appId": "shop", "appName": "Shop"}')
    words = ["spec", str(tmp_path / "spec.json"), "--enterprise-id", "e-1", "--data", str(tmp_path / "data")]
    assert here("backend", *words, url="")[0] == 0
    (tmp_path / "bad.json").write_text('{"appId": "shop", "description": "password: hunter2hunter2"}')
    words[1] = str(tmp_path / "bad.json")
    assert here("backend", *words, url="")[0] == 2
    with backend(tmp_path / "data") as running:
        assert deliver(running.url, "spec", "--enterprise-id", "e-1")["spec"]["appName"] == "Shop"
