"""Stores the result of a provision script in bubblewrap, as the home directory of later boxes."""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
from pathlib import Path

import msgspec

from proofbox.core.dirs import cache_dir
from proofbox.core.files.removal import remove_tree
from proofbox.errors import PolicyRefused
from proofbox.sandbox.contract import Box, BoxSpec
from proofbox.sandbox.images.pull import runnable_image
from proofbox.sandbox.providers.bubblewrap import Bubblewrap


class PreparedHomes:
    def __init__(self) -> None:
        self._making: Path | None = None

    def basis(self, spec: BoxSpec) -> str:
        if not Bubblewrap().enforcement().access_overlay:
            raise PolicyRefused(
                "a prepared home needs a throw-away overlay, and this kernel has no overlayfs",
                op="provision",
                fix_hints=["use docker, or remove `provision` from the settings"],
            )
        if spec.policy.image is not None:
            return f"{runnable_image(spec.policy.image, spec.project).reference} uid {os.geteuid()}"
        return f"{platform.machine()} {_system()} uid {os.geteuid()}"

    def find(self, key: str, spec: BoxSpec) -> BoxSpec | None:
        home = _home(key)
        return msgspec.structs.replace(spec, home=home) if home.is_dir() else None

    def begin(self, key: str, spec: BoxSpec) -> BoxSpec:
        for left in _home(key).parent.glob(f"{key}.making-*"):  # of a killed process: we hold the lock
            remove_tree(left)
        self._making = Path(f"{_home(key)}.making-{secrets.token_hex(4)}")
        self._making.mkdir(mode=0o700)
        return msgspec.structs.replace(spec, home=self._making)

    def keep(self, key: str, box: Box) -> None:
        box.destroy()  # the script's processes must no longer write
        if self._making is not None:
            self._making.rename(_home(key))

    def discard(self) -> None:
        if self._making is not None:
            remove_tree(self._making)


def _home(key: str) -> Path:
    return cache_dir() / "provisioned" / key


def _system() -> str:
    """Identify the host's release: its programs run in the box, so with another release the script runs again."""
    with contextlib.suppress(OSError):
        found = platform.freedesktop_os_release()
        return f"{found.get('ID', '')} {found.get('VERSION_ID', '')}"
    return ""
