"""What every attempt at a mission begins with: the mission's files, made a workspace once, and forked for each."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from proofbox.core.archives.unpack import ArchiveRefused, unpack
from proofbox.core.clock import Clock
from proofbox.core.files.nofollow import opened
from proofbox.core.files.overlaying import Identity, OverlayWriter
from proofbox.core.files.removal import remove_tree
from proofbox.errors import SuiteInvalid, WorkspaceError
from proofbox.sandbox.containers.image_files import copy_from_image
from proofbox.workspace import registry
from proofbox.workspace.workspace import Workspace

GIVEN = "given"
"""The mission's files as they were when the run was planned."""
FORKS_OF_A_STORE = 25
MOST_IDLE = 8
"""Templates that a worker keeps open though nobody forks them: each holds two descriptors."""


class TemplateSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a template is made of, each over the one before it."""

    image: tuple[str, str] | None = None
    """An image, and the directory of it."""
    workspace: int | None = None
    """A descriptor of a directory or an archive."""
    name: str = ""
    """The name of the workspace in errors."""
    files: tuple[tuple[str, int | str], ...] = ()
    """Places in it, and what goes there: a descriptor, or the target of a link."""
    skip: tuple[Identity, ...] = ()
    """Directories that are left out, wherever they are: the output of the run itself."""


class Templates:
    """The templates of one worker. A store opens in a time that grows with what happened in it, so that each holds the
    attempts of one worker, and not too many of them."""

    def __init__(self, place: Path, owner: str, clock: Clock) -> None:
        self._place = place
        self._owner = owner
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Counter[str] = Counter()
        self._forks: Counter[str] = Counter()
        self._current: dict[str, tuple[Path, str]] = {}
        self._idle: list[tuple[Path, Workspace]] = []
        """Open ones that nobody uses at the moment, the last used one last: opening costs as much as forking."""

    def fork(self, mission: str, dest: Path) -> Workspace:
        """A new workspace with the mission's files, its changes tracked."""
        template, snapshot = self._template(mission)
        with self._opened(template) as origin:
            return origin.fork(snapshot, dest, track=True)

    @contextlib.contextmanager
    def _opened(self, template: Path) -> Iterator[Workspace]:
        """For one thread at a time."""
        with self._lock:
            idle = next((each for each in reversed(self._idle) if each[0] == template), None)
            if idle is not None:
                self._idle.remove(idle)
        with contextlib.ExitStack() as closing:
            origin = idle[1] if idle else Workspace.open(template, track=False, clock=self._clock)
            closing.enter_context(origin)
            yield origin
            closing.pop_all()
        with self._lock:
            self._idle.append((template, origin))
            oldest = self._idle.pop(0) if len(self._idle) > MOST_IDLE else None
        if oldest is not None:
            with contextlib.suppress(OSError, WorkspaceError):  # another mission's: this one's fork is made
                oldest[1].close()

    def _template(self, mission: str) -> tuple[Path, str]:
        with self._lock:
            if mission not in self._current or self._forks[mission] >= FORKS_OF_A_STORE:
                self._current.pop(mission, None)
                given = self._place / mission / GIVEN
                template = self._place / mission / f"{self._owner}.{self._made[mission]}"
                self._made[mission] += 1  # also where it fails: what is left of one is in nobody's way
                self._current[mission] = template, make_template(given, template)
                self._forks[mission] = 0
            self._forks[mission] += 1
            return self._current[mission]


def make_template(source: Path, dest: Path) -> str:
    """A workspace at `dest`, which is not there, with the files of `source`; the snapshot that forks start from."""
    with opened(source) as given:
        fill(TemplateSource(workspace=given), dest)
    with Workspace.init(dest, track=False) as workspace:
        return workspace.snapshot("as given").id


def forget_workspaces(work: Path, note: Callable[[set[str]], None]) -> None:
    """Templates, and what killed attempts had, are no workspaces any more. Their stores hold what attempts left, and
    stay: `note` is told of them before nothing else leads there."""
    below = registry.registered_below(work)
    if below:
        note({each.store for each in below})
    for each in below:
        registry.forget(each)
    registry.sweep()


def fill(source: TemplateSource, dest: Path) -> None:
    """The files of a source, or none, in a directory that appears whole or not at all."""
    making = dest.with_name(f".{dest.name}.new")
    remove_tree(making)
    making.parent.mkdir(parents=True, exist_ok=True)
    if source.image is not None:
        copy_from_image(*source.image, making)
    _fill(source, making)
    over = OverlayWriter(making)
    for place, content in source.files:
        if isinstance(content, str):
            over.link(place, content)
        else:
            over.put(place, content, source.skip, name=place)
    os.rename(making, dest)


def _fill(source: TemplateSource, dest: Path) -> None:
    dest.mkdir(exist_ok=True)
    if source.workspace is None:
        return
    if stat.S_ISDIR(os.fstat(source.workspace).st_mode):
        OverlayWriter(dest).lay(source.workspace, skip=source.skip, name=source.name)
        return
    try:
        unpack(Path(f"/dev/fd/{source.workspace}"), dest)
    except ArchiveRefused as error:
        raise SuiteInvalid(
            f"{source.name} can't be unpacked: {error}",
            op="suite",
            fix_hints=["name a directory, or a tar or zip archive"],
        ) from error
