"""A shell script in the place of QEMU."""

from __future__ import annotations

from pathlib import Path

import pytest

from proofbox.sandbox.machines import qemu, trial_boot
from proofbox.sandbox.providers.host_root import host_parts


def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Create the script, in a directory that QEMU's confinement shows. `$fd` is the descriptor of the console port."""
    shown = tmp_path / "programs"
    shown.mkdir(mode=0o755)
    found = shown / "qemu"
    port = "for word; do case $word in socket,id=port,fd=*) fd=${word##*=};; esac; done"
    found.write_text(f"#!/bin/bash\n{port}\n{script}\n")
    found.chmod(0o755)

    def parts(network: str) -> list[str]:
        return [*host_parts(network), "--ro-bind", str(shown), "/programs"]

    monkeypatch.setattr(trial_boot, "host_parts", parts)
    monkeypatch.setattr(qemu, "find_qemu", lambda: "/programs/qemu")
    return found
