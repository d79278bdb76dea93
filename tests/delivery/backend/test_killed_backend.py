"""A backend is killed at any step and clients retry: there is exactly one repository and one pull request.

This also holds for a backend that ignores idempotency keys, and for the first API version, where the client cannot look
up a branch and only has the branch's name.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from running_backend import Backend, bare, git, settings

from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.client.wire import InitialExport, PullRequest, RepositoryChange
from proofbox.delivery.source.tree import SourceTree, open_source
from proofbox.errors import BackendConflict

pytestmark = pytest.mark.needs("git")

KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "forgetful": {"forgetful": True},
    "old": {"forgetful": True, "old": True},
}


@contextmanager
def kept_alive(backend: Backend) -> Iterator[None]:
    backend.start()
    done = threading.Event()
    keeper = threading.Thread(target=backend.keep_alive, args=(done,))
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join(60)
        backend.stop()


def one_round(place: Path, die_at: int, faults: dict[str, Any], tree: SourceTree) -> int:
    backend = Backend(place, die_at=die_at, **faults)
    old = bool(faults.get("old"))
    with kept_alive(backend), BackendClient(settings(backend.url)) as client:
        made = client.initial_export("app", InitialExport(user_id="u", repo_name="app"), tree.files)
        change = RepositoryChange(path="new", operation="add", mode="100755", after_sha256=tree.files[0].sha256)
        request = PullRequest(
            user_id="u", base_commit_sha=made.base_commit_sha, branch_name="proofbox/1", title="t", body="b"
        )
        try:
            proposed = client.create_pull_request("app", request, [(change, tree.files[0])])
            assert proposed.pr_url.endswith("/apps/app/pulls/1")
        except BackendConflict:
            assert old, "this backend can say which pull request it is"
    (repository,) = bare(place)
    assert git(repository, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/heads/proofbox/1",
    ]
    assert git(repository, "rev-list", "--count", "main").strip() == "1"
    assert git(repository, "rev-parse", "proofbox/1^", "main").split() == [made.base_commit_sha] * 2
    names = git(repository, "ls-tree", "-r", "--name-only", "proofbox/1").split()
    assert names == sorted([*(file.path for file in tree.files), "new"])
    with sqlite3.connect(place / "backend.db") as db:
        assert db.execute("SELECT state FROM pulls").fetchall() == [("open",)]
        assert db.execute("SELECT state FROM repositories").fetchall() == [("ready",)]
    db.close()
    git(repository, "fsck", "--strict")
    return backend.deaths


@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_any_step_creates_no_duplicates(kind: str, tmp_path: Path, rounds: Callable[[int, int], int]) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a", "b", "c"):
        (source / name).write_text(name * 100_000)  # sent in several pieces
    chance = random.Random()  # noqa: S311
    seed = chance.randrange(1 << 30)
    chance.seed(seed)
    deaths = 0
    with open_source(source) as tree:
        # An export and a pull request take about 110 steps; later points kill nothing. The first point always kills.
        points = [chance.randrange(1, 60), *(chance.randrange(1, 115) for _ in range(rounds(1, 50)))]
        for number, point in enumerate(points):
            try:
                deaths += one_round(tmp_path / str(number), point, KINDS[kind], tree)
            except BaseException as error:
                error.add_note(f"died at step {point} (seed {seed})")
                raise
    assert deaths
