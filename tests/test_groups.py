"""Tests that share a slow fixture run in one worker; otherwise each worker would create it."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("groups")
def test_groups_of_tests_stay_together(request: pytest.FixtureRequest) -> None:
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not run by --dist loadgroup")
    assert request.node.nodeid.endswith("@groups")
