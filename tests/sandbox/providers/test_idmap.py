"""Support for idmapped mounts is probed once per mount, not once per box."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proofbox import Sandboxes
from proofbox.sandbox.providers import bubblewrap


@pytest.mark.needs("bubblewrap", "root")
def test_idmap_support_is_probed_once_per_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []
    plain = subprocess.run

    def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        if "--idmap" in argv:
            probed.append(argv[argv.index("--idmap") + 1])
        return plain(argv, **options)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(bubblewrap, "_idmappable", {})
    for number in range(3):
        project = tmp_path / str(number)
        project.mkdir()
        with Sandboxes(project) as boxes:
            assert boxes.exec(["touch", "made"], provider="bubblewrap").exit_code == 0
        assert (project / "made").stat().st_uid == 0
    assert probed == [str(tmp_path / "0")]
    bubblewrap._can_idmap("/proc")  # does not support idmapped mounts
    assert probed == [str(tmp_path / "0"), "/proc"]
    assert list(bubblewrap._idmappable.values()) == [True, False]


IN_NAMESPACE = """
import sys
from proofbox import Sandboxes
from proofbox.errors import IdmapUnsupported
for project in sys.argv[1:]:
    try:
        with Sandboxes(project) as boxes:
            print(boxes.exec(["id", "-u"], provider="bubblewrap").stdout.strip())
    except IdmapUnsupported as error:
        print(error.code)
"""


@pytest.mark.needs("bubblewrap", "root")
@pytest.mark.parametrize("order", [("plain", "with a mount"), ("with a mount", "plain")])
def test_nested_mount_affects_only_its_own_project(tmp_path: Path, order: tuple[str, str]) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "with a mount/sub").mkdir(parents=True)
    mounting = 'mount -t ramfs ramfs "$1" && shift && exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", mounting, "sh", str(tmp_path / "with a mount/sub")]
    argv += [sys.executable, "-c", IN_NAMESPACE, *(str(tmp_path / name) for name in order)]
    ids = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(order, ids, strict=True)) == {"plain": "1000", "with a mount": "SANDBOX_IDMAP_UNSUPPORTED"}
