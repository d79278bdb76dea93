"""Tests that share a costly fixture run in one worker: without that it is made in each."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("groups")
def test_groups_of_tests_stay_together(request: pytest.FixtureRequest) -> None:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not run by --dist loadgroup")
    assert request.node.nodeid.endswith("@groups")
