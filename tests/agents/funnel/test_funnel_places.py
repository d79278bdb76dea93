"""Tests of the funnel in different boxes: a minimal container, with a network, and for other owners of the project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from capabilities import OrdinaryUser
from drive import Driven, drive
from private_engine import IMAGE, private_engine

from proofbox.agents.events import ToolCall
from proofbox.agents.runtimes.process.runtime import ProcessRuntime

SCRIPT = "echo hi | proofbox run -- sh -c 'cat; id -u >made; exit 3'; echo $?"


def play(base: Path, **options: Any) -> Driven:
    async def work(driven: Driven) -> None:
        assert (await driven.turn()).final_message == "hi\n3\n"

    return drive(ProcessRuntime(), base, {"command": ["sh", "-c", SCRIPT]}, work, **options)


def observed(driven: Driven) -> list[tuple[str, int | None, str]]:
    return [(call.source, call.exit_code, call.output) for call in driven.of(ToolCall)]


@pytest.fixture(scope="module")
def engine() -> Generator[None]:
    with private_engine() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started.host)
        yield


@pytest.mark.needs("docker")
@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("owner", [0, 4321])
@pytest.mark.usefixtures("engine")
def test_funnel_works_in_a_minimal_container(tmp_path: Path, owner: int) -> None:
    (tmp_path / "workspace").mkdir()
    os.chown(tmp_path / "workspace", owner, owner)
    driven = play(tmp_path, provider="docker", policy={"image": IMAGE})
    assert observed(driven) == [("observed", 3, "hi\n")]
    assert (tmp_path / "workspace/made").stat().st_uid == owner


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("network", ["none", "full", "allow:example.org"])
def test_funnel_works_with_and_without_a_network(tmp_path: Path, network: str) -> None:
    assert observed(play(tmp_path, policy={"network": network})) == [("observed", 3, "hi\n")]


@pytest.mark.needs("bubblewrap", "root")
def test_funnel_works_in_the_project_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    os.chown(tmp_path / "workspace", 4321, 4321)
    assert observed(play(tmp_path)) == [("observed", 3, "hi\n")]
    assert (tmp_path / "workspace/made").stat().st_uid == 4321


def test_there_is_no_funnel_without_a_box(tmp_path: Path) -> None:
    async def work(driven: Driven) -> None:
        assert (await driven.turn()).final_message == "unset\n"
        assert driven.session.facts()["funnel"] is False

    settings = {"command": ["sh", "-c", 'echo "${PROOFBOX_FUNNEL-unset}"']}
    drive(ProcessRuntime(), tmp_path, settings, work, provider="off")


ALONE = """
import json, sys
from pathlib import Path
import anyio
from proofbox.agents.contract import SessionOptions
from proofbox.agents.events import ToolCall
from proofbox.agents.runtimes.process.runtime import ProcessRuntime

async def main():
    base, script = Path(sys.argv[1]), sys.argv[2]
    options = SessionOptions(workspace=base / "workspace", scratch=base / "scratch", provider="bubblewrap",
                             settings={"command": ["sh", "-c", script]})
    session = await ProcessRuntime().start_session(options)
    told = []
    async def hear(event): told.append(event)
    session.add_listener(hear)
    turn = await session.start_turn(await session.start_thread(), "")
    said = (await session.wait_turn(turn)).final_message
    await session.close()
    calls = [(e.source, e.exit_code, e.output) for e in told if isinstance(e, ToolCall)]
    print(json.dumps([said, calls]))

anyio.run(main)
"""


@pytest.mark.needs("bubblewrap", "unprivileged-user")
def test_as_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    place = Path(tempfile.mkdtemp(prefix="pb-user-"))
    try:
        for path in (place, place / "workspace", place / "scratch"):
            path.mkdir(exist_ok=True)
            os.chown(path, ordinary_user.uid, ordinary_user.uid)
        done = subprocess.run(
            [ordinary_user.python, "-c", ALONE, str(place), SCRIPT],
            capture_output=True,
            text=True,
            cwd="/",
            env=dict(ordinary_user.env),
            timeout=120,
            **ordinary_user.identity,
        )
        assert json.loads(done.stdout) == ["hi\n3\n", [["observed", 3, "hi\n"]]], done.stderr
    finally:
        shutil.rmtree(place)
