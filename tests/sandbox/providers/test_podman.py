"""The `docker` provider with Podman's socket passes the same checks."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from private_engine import IMAGE, PrivateEngine, private_podman

from proofbox import Sandboxes, Settings
from proofbox.errors import PathRefused
from proofbox.sandbox.conformance import CHECKS, run_conformance
from proofbox.sandbox.containers.ownership import our_containers

pytestmark = [pytest.mark.needs("podman"), pytest.mark.xdist_group("podman")]

SOAK = os.environ.get("PROOFBOX_SOAK", "") not in ("", "0")
SAMPLED = (
    "commands.exit-codes",
    "kernel.settings",
    "kernel.secrets",
    "killing.timeout-daemon",
    "network.socket-families",
    "reach.hidden-state",
    "agent.descriptors-of-the-agent",
    "detached.used-by-another-process",
)
# Podman parses a bind mount's source that contains a colon as options; proofbox refuses it before.
REFUSED = "commands.odd-project-names"


@pytest.fixture(scope="module")
def engine() -> Generator[PrivateEngine]:
    with private_podman() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started.host)
        yield started
        assert our_containers(started.engine) == {}


@pytest.mark.parametrize(
    "check", [check.name for check in CHECKS if check.name != REFUSED and (SOAK or check.name in SAMPLED)]
)
def test_conformance(check: str, engine: PrivateEngine) -> None:
    [result] = run_conformance("docker", only=[check], settings=Settings(image=IMAGE)).results
    if result.outcome == "failed":
        pytest.fail(result.detail, pytrace=False)
    if result.outcome == "not_checked":
        pytest.skip(result.detail)
    assert result.outcome == "passed" or result.detail


@pytest.mark.parametrize("name", ["with:colon", "with,comma"])
def test_path_that_podman_would_misparse_is_refused(engine: PrivateEngine, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with (
        Sandboxes(tmp_path / name, settings=Settings(provider="docker", image=IMAGE)) as boxes,
        pytest.raises(PathRefused, match="Podman"),
    ):
        boxes.exec(["true"])


def test_commands_run_as_the_project_owner(engine: PrivateEngine, tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 8765)
    with Sandboxes(tmp_path, settings=Settings(provider="docker", image=IMAGE)) as boxes:
        result = boxes.exec(["sh", "-c", "id -u; id -g; touch made; touch ~/made && echo home"])
    assert result.stdout == "4321\n8765\nhome\n"
    assert (tmp_path / "made").stat().st_uid == 4321
