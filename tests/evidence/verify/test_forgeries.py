"""Every forgery is tried on every command, and the documentation states the outcomes as measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forgeries import FORGERIES, GOOD, Forgery, Scene
from forgery_matrix import COMMANDS, DIGEST, REASONS, Lab, lab, measure, page, row

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("forgeries")]
PAGE = Path(__file__).parents[3] / "docs/forgeries.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("forgeries")) as made:
        yield made


def test_genuine_evidence_is_accepted_by_every_command(made: Lab) -> None:
    def change_nothing(_: Scene) -> None:
        pass

    genuine = Forgery("drop", "", change_nothing, ("run", GOOD), undetected=dict.fromkeys(COMMANDS, "genuine"))
    assert set(measure(made, genuine).values()) == {"genuine"}


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: forgery.forge.__name__)
def test_forgery_has_the_documented_outcomes(made: Lab, forgery: Forgery, rounds: Callable[[int, int], int]) -> None:
    """`measure` also checks that nothing counts as proven or signed that the owner of the key did not sign."""
    cells = measure(made, forgery, flips=rounds(5, 10))
    assert row(forgery, cells) in PAGE.read_text().splitlines(), "regenerate the page: scripts/forgeries"
    if forgery.kind != "replay":
        assert DIGEST not in cells.values(), "a key catches every change to evidence that its owner signed"


def test_page_has_every_forgery_and_reason() -> None:
    text = PAGE.read_text()
    lines = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert len({forgery.what for forgery in FORGERIES}) == len(FORGERIES)
    assert page({forgery.name: lines[f"| {forgery.what}"] for forgery in FORGERIES}) == text
    assert all(f"no ({number})" in text for number in range(1, len(REASONS) + 1))
