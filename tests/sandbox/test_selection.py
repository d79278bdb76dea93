"""`auto` tries each provider, explains its choice, caches only successes, and never falls back to no isolation."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proofbox import Sandboxes
from proofbox.cli.commands.run import exec, probe
from proofbox.core.dirs import cache_dir
from proofbox.errors import ImageUnavailable, ProviderUnavailable
from proofbox.sandbox import selection
from proofbox.sandbox.contract import Diagnostic, Event, Isolation, Policy, ProviderSelection
from proofbox.sandbox.providers import AUTO_ORDER, provider_named
from proofbox.sandbox.providers.off import Off


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_dir() / "trials.json"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which providers were really tried."""
    tried: list[str] = []
    real = selection._run_trial

    def counted(provider: Any, policy: Policy) -> None:
        tried.append(provider.name)
        real(provider, policy)

    monkeypatch.setattr(selection, "_run_trial", counted)
    return tried


@pytest.fixture
def boxes(tmp_path: Path) -> Sandboxes:
    (tmp_path / "project").mkdir()
    return Sandboxes(project_root=tmp_path / "project")


def test_working_machines_tell_how_they_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine(Off):
        name = "vm"
        isolation = Isolation.VM

    slow = "acceleration: tcg (emulated)"
    monkeypatch.setattr(selection, "_run_trial", lambda *_: None)
    monkeypatch.setattr("proofbox.sandbox.machines.acceleration.describe_acceleration", lambda: slow)
    found = selection.diagnose(Machine(), Policy(network="full", access="rw"))
    assert (found.available, found.reason) == (True, slow)
    shown = probe._text(ProviderSelection("vm", Isolation.VM, False, None, {"vm": found}))
    assert slow in shown


def test_exec_on_a_terminal_tells_how_its_machine_ran(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, boxes: Sandboxes
) -> None:
    diagnostics = {"vm": Diagnostic(True, Isolation.VM, "acceleration: tcg (emulated)")}
    result = boxes.exec(["true"], provider="off")
    result = msgspec.structs.replace(result, provider="vm", diagnostics=diagnostics)
    exec.finish(result, as_json=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    exec.finish(result, as_json=False)
    assert capsys.readouterr().err == "proofbox: vm: acceleration: tcg (emulated)\n"


def test_auto_never_considers_off() -> None:
    assert "off" not in AUTO_ORDER


@pytest.mark.needs("bubblewrap")
def test_auto_explains_itself(boxes: Sandboxes, cache: Path) -> None:
    events: list[Event] = []
    boxes._opener.on_event = events.append
    found = boxes.probe()
    assert found.provider == "bubblewrap"
    assert found.isolation is Isolation.NAMESPACE
    assert (found.was_fallback, found.fallback_from) == (False, None), "apple-vm is not available here"
    assert found.diagnostics["bubblewrap"].available
    rejected = found.diagnostics["apple-vm"]
    assert not rejected.available
    assert "macOS" in rejected.reason
    assert rejected.fix_hints
    assert rejected.isolation is Isolation.VM
    found_events = [(event.name, event.phase) for event in events]
    assert found_events[:2] == [("apple-vm", "rejected"), ("bubblewrap", "selected")]
    assert [name for name, _ in found_events[2:]] == ["docker"], "tried too, to report it"
    result = boxes.exec(["true"])
    assert result.provider == "bubblewrap"
    assert result.diagnostics["apple-vm"].reason == rejected.reason


def test_auto_without_bwrap_fails_closed_with_an_install_hint(
    boxes: Sandboxes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (lambda: boxes.probe(), lambda: boxes.exec(["true"]), lambda: boxes.start_session()):
        with pytest.raises(ProviderUnavailable) as caught:
            call()
        error = caught.value
        assert (error.code, error.exit_code) == ("SANDBOX_UNAVAILABLE", 3)
        assert any("apt-get install bubblewrap" in hint for hint in error.fix_hints)
        assert not any("off" in hint.split() for hint in error.fix_hints), "no hint suggests running without a sandbox"
        assert not any("on Linux" in hint for hint in error.fix_hints), "no hint suggests the provider that just failed"
        assert "off" not in error.details["diagnostics"]
        assert not any(found["available"] for found in error.details["diagnostics"].values())
        json.dumps(error.as_dict())
    assert not cache.exists()


def test_failing_bwrap_is_rejected_with_its_error_output(
    boxes: Sandboxes, cache: Path, tmp_path: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: it is raining' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match="it is raining"):
            boxes.probe("bubblewrap")
    assert trials == ["bubblewrap", "bubblewrap"], "a failure is never cached"
    assert not cache.exists()


def test_success_is_cached_per_boot_and_program(
    boxes: Sandboxes, cache: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        assert boxes.probe("off").provider == "off"
    assert trials == ["off"]
    assert stat.S_IMODE(cache.stat().st_mode) & 0o022 == 0
    monkeypatch.setattr(Off, "identity", lambda self: "another program")
    boxes.probe("off")
    boxes.probe("off")
    assert trials == ["off"] * 2
    monkeypatch.setattr(selection, "_boot_id", lambda: "another boot")
    boxes.probe("off")
    boxes.probe("off")
    assert trials == ["off"] * 3


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\x00garbage",
        b"[]",
        b'{"worked": 5}',
        b'{"worked": {"off": 5}}',
        b'{"worked": {"off": "an old identity"}}',
        b'{"worked": ' + b"[" * 200_000,
        b'{"other": ' + b'{"a":' * 200_000,
    ],
    ids=range(8),
)
def test_corrupt_cache_is_ignored_and_replaced(boxes: Sandboxes, cache: Path, trials: list[str], damage: bytes) -> None:
    cache.write_bytes(damage)
    assert boxes.probe("off").provider == "off"
    boxes.probe("off")
    assert trials == ["off"]
    assert json.loads(cache.read_bytes())["worked"]["off"]


def test_unwritable_cache_is_tolerated(boxes: Sandboxes, cache: Path, trials: list[str]) -> None:
    cache.mkdir()
    for _ in range(2):
        assert boxes.probe("off").provider == "off"
    assert trials == ["off", "off"]


def test_threads_can_select_concurrently(boxes: Sandboxes, cache: Path) -> None:
    start = threading.Barrier(8)

    def call(_: int) -> str:
        start.wait()
        return boxes.probe("off").provider

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(8))) == ["off"] * 8


def test_macos_is_an_alias_of_apple_vm(boxes: Sandboxes) -> None:
    assert provider_named("macos").name == "apple-vm"
    calls: list[Callable[[], object]] = [
        lambda: boxes.probe("macos"),
        lambda: boxes.exec(["true"], provider="macos"),
        lambda: boxes.start_session(provider="apple-vm"),
        lambda: boxes.start_session(provider="apple-vm", detached=True),
    ]
    for call in calls:
        with pytest.raises(ProviderUnavailable, match="apple-vm") as caught:
            call()
        assert caught.value.fix_hints
    assert boxes.list_sessions() == []


def test_trial_leaves_no_files(boxes: Sandboxes, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    boxes.probe("off")
    assert os.listdir(tmp_path / "tmp") == []


def test_request_that_no_provider_can_run_is_explained_per_provider(
    boxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(ProviderUnavailable) as refused:
        boxes.exec(["true"], runtime="runsc")
    first, *others = refused.value.message.splitlines()
    assert first == "no sandbox here can run this request:"
    assert [line.partition(":")[0] for line in others] == ["  bubblewrap", "  docker"]
    assert "apple-vm" in refused.value.details["diagnostics"]


def test_image_that_was_not_built_is_the_only_reason(boxes: Sandboxes, cache: Path) -> None:
    with pytest.raises(ImageUnavailable, match=r"^the image 'debian-12-python' has not been built") as refused:
        boxes.exec(["true"], image="debian-12-python")
    assert refused.value.fix_hints == ("proofbox images build debian-12-python",)
