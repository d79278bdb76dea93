"""Every tool environment passes the same checks: on the host, in a box and in memory, with either search engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox import Sandboxes
from proofbox.errors import CapabilityDenied, PolicyRefused
from proofbox.workspace.search.engines import PythonEngine, SearchEngine
from proofbox.workspace.tools.conformance import CHECKS, GUARDED, Make, ToolFixture, run_conformance
from proofbox.workspace.tools.contract import ToolEnvironment
from proofbox.workspace.tools.environments.host import HostEnvironment, SandboxEnvironment
from proofbox.workspace.tools.environments.memory import MemoryEnvironment
from proofbox.workspace.tools.tree import Guard

BUBBLEWRAP = pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def maker(kind: str, root: Path) -> Make:
    @contextlib.contextmanager
    def make(guard: Guard) -> Iterator[ToolFixture]:
        engine: SearchEngine | None = PythonEngine() if kind == "host-python" else None
        if kind == "memory":
            yield ToolFixture(MemoryEnvironment(guard=guard))
        elif kind == "bubblewrap":
            with (
                Sandboxes(root) as boxes,
                boxes.start_session(provider="bubblewrap") as session,
                SandboxEnvironment(session, guard=guard) as boxed,
            ):
                yield ToolFixture(boxed, str(root))
        else:
            with HostEnvironment(root, guard=guard, engine=engine) as env:
                yield ToolFixture(env, str(root))

    return make


@pytest.mark.parametrize("kind", ["host", "host-python", "memory", BUBBLEWRAP])
@pytest.mark.parametrize("name", [*CHECKS, *GUARDED])
def test_environment_passes_check(name: str, kind: str, root: Path) -> None:
    [result] = run_conformance(maker(kind, root), only=[name])
    if result.outcome == "failed":
        pytest.fail(result.detail, pytrace=False)
    assert result.outcome == "passed" or kind == "memory", result.detail


def test_environments_implement_the_protocol(root: Path) -> None:
    with HostEnvironment(root) as env:
        assert isinstance(env, ToolEnvironment)
    assert isinstance(MemoryEnvironment({"a": "b"}), ToolEnvironment)


def test_suite_detects_a_faulty_environment(root: Path) -> None:
    class Leaky(MemoryEnvironment):
        def read_file(self, path: str, **_: object):  # type: ignore[no-untyped-def]
            return super().read_file(path.replace("../", ""))

    @contextlib.contextmanager
    def leaky(guard: Guard) -> Iterator[ToolFixture]:
        yield ToolFixture(Leaky(guard=guard))

    failed = [result.check for result in run_conformance(leaky) if result.outcome == "failed"]
    assert "paths-outside-the-root-are-refused" in failed
    assert "line-ranges-are-read" in failed


@pytest.mark.needs("bubblewrap")
def test_tools_are_read_only_if_the_box_is(root: Path) -> None:
    (root / "f").write_text("x")
    with Sandboxes(root) as boxes:
        with boxes.start_session(provider="bubblewrap", access="ro") as session, SandboxEnvironment(session) as env:
            assert env.read_file("f").content == "x"
            with pytest.raises(CapabilityDenied):
                env.write_file("f", "y")
            with pytest.raises(CapabilityDenied):
                env.remove_file("f")
        with (
            boxes.start_session(provider="bubblewrap", access="overlay") as session,
            pytest.raises(PolicyRefused, match="overlay"),
        ):
            SandboxEnvironment(session)
