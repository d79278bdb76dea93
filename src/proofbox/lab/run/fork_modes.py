"""How the attempts at a mission get its files: as a copy of the template, or mounted over it.

A mount takes the same time for any number of files. It exists only in the worker's own mount namespace, so the worker
itself must start every box of the attempt: `docker` would see an empty directory. The first attempt at a mission
decides for all of them, because a program can notice the difference.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from proofbox.config.settings import Settings
from proofbox.core.files.atomic import create_only
from proofbox.core.files.nofollow import opened_directory
from proofbox.core.files.removal import remove_tree
from proofbox.errors import ProofboxError, SetupFailed
from proofbox.lab.suite.reading import Suite
from proofbox.lab.suite.spec import Mission
from proofbox.sandbox.providers.bubblewrap import COMMAND_ID
from proofbox.workspace.scanning.stack import Stack, has_private_mounts
from proofbox.workspace.scanning.writeback import protects_on_writeback

OVERLAY = "overlay"
FEW = 2000
"""Fewer files than this are copied, which takes less than a tenth of a second."""
MODE = "mode"
"""The file next to a mission's templates that holds its mode."""


class ForkModes:
    """Decides for the missions of a run how their attempts get their files."""

    def __init__(
        self, suite: Suite, settings: Settings, provider: str | None, *, shared: bool = False, on_node: bool = False
    ) -> None:
        self._suite = suite
        self._settings = settings
        self._provider = provider
        self._shared = shared
        self._on_node = on_node

    def mode(self, mission: str, given: Path) -> str:
        """Return `overlay`, or `copy` with the reason, for a mission with these files."""
        if self._on_node:
            obstacle = "the attempt ran on a node of a cluster"
        else:
            found = self._suite.mission(mission)
            obstacle = overlay_obstacle(found, given, self._settings, self._provider, shared=self._shared)
        return recorded_mode(given.parent, obstacle)


def overlay_obstacle(
    mission: Mission, given: Path, settings: Settings, provider: str | None, *, shared: bool = False
) -> str:
    """Return why attempts at a mission can't be mounted over its files; empty if they can."""
    # A template that exists has its mode.
    from proofbox.lab.attempt.mission_box import PROVIDER, requested_options
    from proofbox.sandbox.opening import BoxOpener

    if not has_private_mounts():
        return "only root can give a worker a private mount namespace"
    if shared:
        return "a shared session starts before the files of its later attempts are mounted"
    try:
        chosen = BoxOpener(given, settings=settings).chosen(provider or mission.provider, requested_options(mission))
    except ProofboxError as error:
        return error.message
    if chosen != PROVIDER:
        return f"{chosen} does not see what a worker mounts"
    with opened_directory(str(given), None) as fd:
        if not protects_on_writeback(fd):
            return "the times of files do not show every write on this file system"
    if not _has_many(given):
        return f"there are fewer than {FEW} files"
    return _mount_obstacle(given)


def recorded_mode(place: Path, obstacle: str) -> str:
    """Return the mode of a mission: `overlay`, or `copy` with the reason. Decided once, and recorded under `place`.

    Raises `SetupFailed` if earlier attempts used an overlay, and this worker can't.
    """
    mine = f"copy: {obstacle}" if obstacle else OVERLAY
    with contextlib.suppress(FileExistsError):
        create_only(place / MODE, mine.encode())
    mode = (place / MODE).read_text()
    if mode == OVERLAY and obstacle:
        raise SetupFailed(
            f"earlier attempts at this mission used an overlay, which is not possible here: {obstacle}",
            op="attempt",
            fix_hints=["resume the run in the same way as it was started, or start a new run"],
        )
    return mode


def _has_many(given: Path) -> bool:
    count = 0
    for _, folders, files in os.walk(given):
        count += len(folders) + len(files)
        if count >= FEW:
            return True
    return False


def _mount_obstacle(given: Path) -> str:
    """Try what attempts need: another owner, a mount, and renaming a directory of the lower layer."""
    trial = given.with_name(f".trial-{os.getpid()}")
    lower, at = trial / "lower", trial / "at"
    try:
        (lower / "directory").mkdir(parents=True)
        at.mkdir()
        os.chown(lower, COMMAND_ID, COMMAND_ID)
        with Stack(lower, at, trial / "layers"):
            (at / "directory").rename(at / "renamed")
    except OSError as error:
        return f"an overlay is not possible: {error.strerror or error}"
    finally:
        remove_tree(trial)
    return ""
