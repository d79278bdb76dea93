"""Options of the SDK: an unknown name is a TypeError, and limits have the same names and syntax everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from proofbox import AsyncSandboxes, Sandboxes
from proofbox.cli import main
from proofbox.cli.flags import BoxFlags
from proofbox.config.settings import PROJECT_FILE, Settings, load
from proofbox.core.size import megabytes
from proofbox.errors import PolicyRefused, ProviderUnavailable, RequestInvalid, UsageError
from proofbox.sandbox import selection
from proofbox.sandbox.contract import Policy
from proofbox.sandbox.options import BOX_OPTIONS, COMMAND_OPTIONS, make_policy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def boxes(project: Path) -> Sandboxes:
    return Sandboxes(project)


Call = Callable[[Sandboxes, dict[str, Any]], object]
calls: dict[str, Call] = {
    "exec": lambda boxes, options: boxes.exec(["touch", "ran"], provider="off", **options),
    "start_session": lambda boxes, options: boxes.start_session(provider="off", **options),
    "detached": lambda boxes, options: boxes.start_session(provider="off", detached=True, **options),
    "start": lambda boxes, options: boxes.start(["touch", "ran"], provider="off", **options),
}
misspelt = {
    "acces": "did you mean access?",
    "memory_mb": "did you mean memory?",
    "disk_mb": "did you mean disk?",
    "netwrok": "did you mean network?",
    "provder": "did you mean provider?",
    "mount": "did you mean mounts?",
    "xyzzy": "known: access, ",
}


@pytest.mark.parametrize("call", calls.values(), ids=calls)
@pytest.mark.parametrize(("name", "suggestion"), misspelt.items())
def test_misspelt_option_is_a_type_error_with_a_suggestion(
    boxes: Sandboxes, project: Path, call: Call, name: str, suggestion: str
) -> None:
    with boxes, pytest.raises(TypeError, match=f"unexpected option '{name}'") as caught:
        call(boxes, {name: "ro"})
    assert suggestion in str(caught.value)
    assert not (project / "ran").exists()


@pytest.mark.parametrize("name", sorted(BOX_OPTIONS))
def test_command_in_a_session_does_not_accept_box_options(boxes: Sandboxes, name: str) -> None:
    options: dict[str, Any] = {name: None}
    with boxes, boxes.start_session(provider="off") as session:
        for call in (session.exec, lambda argv, **more: boxes.exec_in_session(session.id, argv, **more)):
            with pytest.raises(TypeError, match=f"unexpected option '{name}' .this is an option of the box"):
                call(["true"], **options)


@pytest.mark.parametrize("name", sorted(COMMAND_OPTIONS))
def test_session_does_not_accept_command_options(boxes: Sandboxes, name: str) -> None:
    options: dict[str, Any] = {name: None}
    with boxes, pytest.raises(TypeError, match=f"unexpected option '{name}' .this is an option of a command"):
        boxes.start_session(provider="off", **options)


def test_misspelt_async_option_is_a_type_error(project: Path) -> None:
    async def work() -> None:
        wrong: dict[str, Any] = {"acces": "ro"}
        late: dict[str, Any] = {"timeot": 3}
        async with AsyncSandboxes(project) as boxes:
            for call in (boxes.exec(["touch", "ran"], provider="off", **wrong), boxes.start_session(**wrong)):
                with pytest.raises(TypeError, match="did you mean access"):
                    await call
            with pytest.raises(TypeError, match="did you mean access"):
                await boxes.start(["touch", "ran"], provider="off", **wrong)
            async with await boxes.start_session(provider="off") as session:
                with pytest.raises(TypeError, match="did you mean access"):
                    await session.exec(["true"], **wrong)
                with pytest.raises(TypeError, match="did you mean timeout"):
                    await boxes.exec_in_session(session.id, ["true"], **late)

    anyio.run(work)
    assert not (project / "ran").exists()


def test_limits_have_the_same_names_in_flags_settings_and_options() -> None:
    names = {"network", "access", "memory", "cpus", "pids", "disk", "image", "runtime"}
    assert names <= BOX_OPTIONS
    assert names <= set(Settings.__struct_fields__)
    assert names <= set(BoxFlags.__struct_fields__)


@pytest.mark.parametrize(
    ("size", "wanted"), [(512, 512), ("512m", 512), ("512M", 512), ("2g", 2048), ("2G", 2048), ("1t", 1 << 20)]
)
def test_size_is_in_megabytes_or_has_a_unit(size: int | str, wanted: int, project: Path) -> None:
    assert megabytes(size, "memory") == wanted
    policy = make_policy(project, {"memory": size, "disk": size, "access": "overlay"}, Settings())
    assert (policy.memory_mb, policy.disk_mb) == (wanted, wanted)
    assert make_policy(project, {}, Settings(memory=size)).memory_mb == wanted


@pytest.mark.parametrize("size", ["", "512", "g", "1.5g", "-1g", "1 g", "1gb", "1k", "１g", True, 1.5, [1]])
def test_invalid_size_is_refused_with_an_example(size: Any, project: Path) -> None:
    with pytest.raises(RequestInvalid, match="is not a valid size") as caught:
        make_policy(project, {"memory": size}, Settings())
    assert "'512m'" in caught.value.fix_hints[0]


def test_project_and_user_sizes_are_compared_in_one_unit(project: Path) -> None:
    (project / PROJECT_FILE).parent.mkdir()
    (project / PROJECT_FILE).write_text('memory = "1g"\n')
    assert load(project).memory == "1g"
    assert Settings(memory="1g").widening(Settings(memory=512)) == ['memory = "1g"']
    assert Settings(memory="1g").widening(Settings(memory="1024m")) == []
    assert Settings(memory=900).widening(Settings(memory="1g")) == []
    (project / PROJECT_FILE).write_text('memory = "much"\n')
    with pytest.raises(UsageError, match=r"config\.toml: memory 'much' is not a valid size"):
        load(project)


# An invalid value is the caller's mistake, not the machine's


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    real = selection.diagnose

    def counted(provider: Any, policy: Policy) -> Any:
        found.append(provider.name)
        return real(provider, policy)

    monkeypatch.setattr(selection, "diagnose", counted)
    return found


@pytest.mark.parametrize(
    "options",
    [{"memory": 1}, {"memory": "1m"}, {"pids": 1}, {"cpus": 0}, {"cpus": True}, {"disk": 5}, {"access": "readonly"}],
    ids=str,
)
def test_invalid_value_is_refused_before_any_provider_is_tried(
    boxes: Sandboxes, tried: list[str], options: Any
) -> None:
    for call in (
        lambda: boxes.exec(["true"], **options),
        lambda: boxes.start_session(**options),
        lambda: boxes._opener.chosen(None, options),
        lambda: boxes._opener.chosen("docker", options),
        lambda: Sandboxes(boxes._opener.project_root, settings=Settings(**options)).probe(),
    ):
        with pytest.raises(RequestInvalid):
            call()
    assert tried == []


def test_invalid_limit_on_the_command_line_is_a_usage_error(
    project: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ["session", "start", "--project", str(project), "--json", "--memory"]
    for value, message in (("1", "invalid memory limit: 1 MB"), ("lots", "memory 'lots' is not a valid size")):
        assert main([*words, value]) == 2
        error = json.loads(capfdbinary.readouterr().out)["error"]
        assert error["code"] == "SANDBOX_REQUEST_INVALID"
        assert error["message"].startswith(message)


@pytest.mark.needs("bubblewrap", "limits")
def test_size_with_a_unit_on_the_command_line(project: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    words = ["exec", "--project", str(project), "--provider", "bubblewrap", "--access", "overlay", "--json"]
    assert main([*words, "--memory", "1g", "--disk", "64", "--", "true"]) == 0
    policy = json.loads(capfdbinary.readouterr().out)["policy"]
    assert (policy["memory_mb"], policy["disk_mb"]) == (1024, 64)


def test_no_hint_suggests_running_without_a_sandbox(
    boxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for call in (lambda: boxes.exec(["true"]), lambda: boxes.probe("bubblewrap"), lambda: boxes.probe()):
        with pytest.raises((ProviderUnavailable, PolicyRefused)) as caught:
            call()
        assert caught.value.fix_hints
        assert not [hint for hint in caught.value.fix_hints if "off" in hint.split() or "isolation" in hint]
