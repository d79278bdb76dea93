"""The pages of the reference backend in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running_backend import KEY, Backend

from proofbox.viewer.rendering import STYLE, assets

pytestmark = [pytest.mark.needs("chromium", "git"), pytest.mark.xdist_group("viewer")]


def test_browser_signs_in_with_the_key(browser: Any, tmp_path: Path, axe: Callable[..., list[str]]) -> None:
    backend = Backend(tmp_path)
    backend.start()
    try:
        page = browser.new_page()
        page.goto(backend.url)
        assert axe(page) == []
        page.locator("input[name=key]").fill(KEY)
        page.get_by_role("button").click()
        page.get_by_role("heading", name="Repositories").wait_for(timeout=20_000)
        assert axe(page) == []
        style = assets()[STYLE].decode()
        assert page.evaluate("getComputedStyle(document.body).getPropertyValue('--accent')") in style, (
            "as in the viewer"
        )
        page.close()
    finally:
        backend.stop()
