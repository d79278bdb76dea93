"""Where virtual machines can't run, an error says so before anything is downloaded for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox import Sandboxes
from proofbox.config.settings import Settings
from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.machines import kernel, qemu


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        pytest.param("architecture", lambda: "aarch64", "only on x86_64, and this machine is aarch64", id="processor"),
        pytest.param("find_program", lambda _: None, "QEMU is not installed", id="QEMU"),
        pytest.param("_VIRTIOFSD", (), "virtiofsd is not installed", id="virtiofsd"),
    ],
)
@pytest.mark.needs("vm")
def test_machine_that_cannot_run_is_refused_before_its_kernel_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, value: object, reason: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kernel, "_found", [])
    monkeypatch.setattr(kernel, "build_kernel", lambda _: pytest.fail("a kernel was prepared"))
    monkeypatch.setattr(qemu, part, value)
    (tmp_path / "project").mkdir()
    with Sandboxes(tmp_path / "project", settings=Settings()) as boxes:
        with pytest.raises(ProviderUnavailable, match=reason) as raised:
            boxes.exec(["true"], provider="vm")
        assert raised.value.fix_hints
        with pytest.raises(ProviderUnavailable):
            boxes.probe("vm")
