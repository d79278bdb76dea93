"""A policy that a provider can't enforce is refused in one place, whatever the provider itself does."""

from __future__ import annotations

import ast
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import proofbox
from proofbox import AsyncSandboxes, Sandboxes
from proofbox.cli import main
from proofbox.config.settings import Settings
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import PolicyRefused, ProviderUnavailable
from proofbox.lab.attempt.verifier import check
from proofbox.lab.suite.spec import Verify
from proofbox.sandbox import provisioning, selection
from proofbox.sandbox.conformance import run_conformance
from proofbox.sandbox.containers import images
from proofbox.sandbox.contract import Box, BoxSpec, CheckedSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.images import build
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.providers import PROVIDERS
from proofbox.sandbox.providers.off import Off
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.tools.environments.boxed import BoxedEnvironment

SOURCE = Path(proofbox.__file__).parent
LIMITED = Settings(network="none")


class Forgetful:
    """A provider that enforces nothing and refuses nothing."""

    name = "forgetful"
    isolation = Isolation.NONE
    systems = frozenset({"Linux"})
    started: list[Policy]

    def identity(self) -> str:
        return "forgetful-1"

    def enforcement(self, policy: Policy | None = None) -> Enforcement:
        return Enforcement(detached=False)

    def start(self, spec: CheckedSpec) -> Box:
        self.started.append(spec.policy)
        return Off().start(spec)

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        return stderr, []


class Kept:
    """A store of provisioned boxes, so that a provision script reaches the provider."""

    def basis(self, spec: BoxSpec) -> str:
        return spec.label

    def find(self, key: str, spec: BoxSpec) -> BoxSpec | None:
        return None

    def begin(self, key: str, spec: BoxSpec) -> BoxSpec:
        return spec

    def keep(self, key: str, box: Box) -> None: ...

    def discard(self) -> None: ...


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Policy]:
    monkeypatch.setattr(Forgetful, "started", [], raising=False)
    monkeypatch.setitem(PROVIDERS, "forgetful", Forgetful)
    monkeypatch.setattr(provisioning, "_store_for", lambda _: Kept())
    monkeypatch.setattr(selection, "AUTO_ORDER", ("forgetful",))
    return Forgetful.started


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "part").write_text("")
    return tmp_path / "project"


REQUESTS = [
    {"network": "none"},
    {"network": "allow:example.org"},
    {"access": "ro"},
    {"access": "overlay"},
    {"access": "overlay", "disk": 16},
    {"mounts": ["/usr:/mnt/usr:ro"]},
    {"hidden": ["part"]},
    {"frozen": ["part"]},
    {"memory": 256},
    {"cpus": 0.5},
    {"pids": 64},
    {"image": "some"},
    {"runtime": "some"},
]


@pytest.mark.parametrize("options", REQUESTS, ids=str)
def test_every_policy_is_refused_for_a_provider_that_checks_none(
    project: Path, started: list[Policy], options: Any
) -> None:
    with Sandboxes(project) as boxes, pytest.raises(PolicyRefused, match="forgetful can't enforce"):
        boxes.exec(["true"], provider="forgetful", **options)
    assert started == []


def sync_entries(boxes: Sandboxes) -> list[Callable[[], object]]:
    return [
        lambda: boxes.exec(["true"], provider="forgetful", network="none"),
        lambda: boxes.start(["true"], provider="forgetful", network="none"),
        lambda: boxes.start_session(provider="forgetful", network="none"),
        lambda: boxes.start_session(provider="forgetful", detached=True),
        lambda: boxes.start_session(provider="forgetful", network="none", detached=True),
    ]


def async_entries(boxes: AsyncSandboxes) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: boxes.exec(["true"], provider="forgetful", network="none"),
        lambda: boxes.start(["true"], provider="forgetful", network="none"),
        lambda: boxes.start_session(provider="forgetful", network="none"),
        lambda: boxes.start_session(provider="forgetful", detached=True),
        lambda: boxes.start_session(provider="forgetful", network="none", detached=True),
    ]


def test_sync_service_refuses(project: Path, started: list[Policy]) -> None:
    with Sandboxes(project) as boxes:
        for entry in sync_entries(boxes):
            with pytest.raises(PolicyRefused, match="forgetful can't enforce"):
                entry()
        assert boxes.list_sessions() == []
    assert started == []


def test_async_service_refuses(project: Path, started: list[Policy]) -> None:
    async def work() -> None:
        async with AsyncSandboxes(project) as boxes:
            for entry in async_entries(boxes):
                with pytest.raises(PolicyRefused, match="forgetful can't enforce"):
                    await entry()
            assert await boxes.list_sessions() == []

    anyio.run(work)
    assert started == []


def test_selection_refuses(project: Path, started: list[Policy]) -> None:
    with Sandboxes(project, settings=Settings(network="none")) as boxes:
        for name in ("auto", "forgetful"):
            with pytest.raises(ProviderUnavailable, match="forgetful can't enforce network none"):
                boxes.probe(name)
        with pytest.raises(ProviderUnavailable, match="forgetful can't enforce network none"):
            boxes.exec(["true"])
    assert started == []


def test_provision_script_does_not_start(project: Path, started: list[Policy]) -> None:
    (project / "script").write_text("true")
    settings = Settings(provision="script")
    with Sandboxes(project, settings=settings) as boxes, pytest.raises(PolicyRefused, match="mounts"):
        boxes.exec(["true"], provider="forgetful")
    assert started == []


def test_tools_of_a_workspace_refuse(project: Path, started: list[Policy]) -> None:
    with (
        BoxedEnvironment(project, Capabilities.load("sandbox"), provider="forgetful", settings=LIMITED) as tools,
        pytest.raises(PolicyRefused, match="forgetful can't enforce"),
    ):
        tools.run_command("true")
    assert started == []


def test_verifier_refuses(project: Path, started: list[Policy]) -> None:
    with Sandboxes(project) as boxes, pytest.raises(PolicyRefused, match="forgetful can't enforce"):
        check(boxes, Verify(commands=("true",)), Redactor(), provider="forgetful", policy={"access": "ro"})
    assert started == []


def test_command_line_refuses(project: Path, started: list[Policy], capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ["--project", str(project), "--provider", "forgetful", "--network", "none", "--json"]
    for command in (["exec", *words, "--", "true"], ["session", "start", *words]):
        assert main(command) != 0
        assert json.loads(capfdbinary.readouterr().out)["error"]["code"] == "SANDBOX_POLICY_REFUSED"
    assert started == []


def test_conformance_suite_sees_every_refusal(started: list[Policy]) -> None:
    report = run_conformance("forgetful", only=["policy.refusals"])
    [result] = report.results
    # The suite also asks for a reason, and this provider gives none. Nothing may be started.
    assert (result.outcome, "no reason is given" in result.detail) == ("failed", True)
    assert started == []


def test_only_one_function_makes_a_spec_that_a_provider_accepts() -> None:
    """A provider takes a `CheckedSpec`, which mypy checks; one that is made elsewhere would bypass the refusal."""
    makers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if b"CheckedSpec(" in path.read_bytes()
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CheckedSpec"
    }
    assert makers == {"sandbox/enforcement.py"}


def test_refusal_names_the_providers_that_can_enforce_the_policy(project: Path) -> None:
    with Sandboxes(project_root=project) as boxes, pytest.raises(PolicyRefused) as refused:
        boxes.exec(["true"], provider="off", network="none")
    *named, last = refused.value.fix_hints
    assert "use a provider that can enforce it: --provider bubblewrap" in named
    assert all(hint.startswith("use a provider that can enforce it: --provider ") for hint in named)
    assert not any(hint.endswith((" off", " apple-vm")) for hint in named)
    assert last == "omit the request"


@pytest.mark.parametrize(
    ("options", "refusal"),
    [({"access": "overlay"}, PolicyRefused), ({}, ProviderUnavailable)],
    ids=["policy", "engine"],
)
def test_default_image_is_not_built_for_a_box_that_can_not_start(
    options: dict[str, Any], refusal: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    monkeypatch.setattr(images, "resolve_default_image", lambda: Image("small", "amd64", source="build"))
    monkeypatch.setattr(build, "build_image", lambda name, **_: built.append(name))
    with Sandboxes(tmp_path) as boxes, pytest.raises(refusal):
        boxes.exec(["true"], provider="docker", **options)
    assert built == []
