"""The Ray cluster that all tests of one worker share: two nodes with one CPU, and so with one worker, each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray_cluster import RayCluster, ray_cluster


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[RayCluster]:
    with ray_cluster(2, 1) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    """The shared cluster, with its token in the environment."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", shared_cluster.token)
    return shared_cluster
