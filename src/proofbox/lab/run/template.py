"""The template of a mission: its files, imported into a workspace once and forked for each attempt."""

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
from proofbox.core.files.atomic import create_only
from proofbox.core.files.nofollow import opened
from proofbox.core.files.overlaying import Identity, OverlayWriter
from proofbox.core.files.removal import remove_tree
from proofbox.errors import SuiteInvalid, WorkspaceError
from proofbox.lab.attempt.final_tree import SharedBase
from proofbox.lab.run.fork_modes import OVERLAY, ForkModes
from proofbox.sandbox.providers.bubblewrap import COMMAND_ID
from proofbox.workspace.workspace import Workspace

GIVEN = "given"
"""The mission's files as they were when the run was planned."""
LAYERS = "layers"
"""What an attempt writes, next to the place where its files are mounted."""
LOWER = ".lower"
"""The suffix of a file next to a template over which attempts are mounted. It holds the id of the template's tree."""
FORKS_OF_A_STORE = 25
FORKS_BY_MOUNT = 500
"""Here the template has many files, and making another one costs more than a long history."""
MAX_IDLE = 8
"""The maximum number of unused templates that a worker keeps open: each holds two descriptors."""


class TemplateSource(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a template, each copied over the ones before it."""

    image: tuple[str, str] | None = None
    """An image, and a directory in it."""
    workspace: int | None = None
    """A descriptor of a directory or an archive."""
    name: str = ""
    """The name of the workspace in error messages."""
    files: tuple[tuple[str, int | str], ...] = ()
    """Paths in the template and their content: a descriptor, or the target of a link."""
    skip: tuple[Identity, ...] = ()
    """Directories to leave out at any depth: the output of the run itself."""


class Templates:
    """The templates of one worker. The time to open a store grows with its history, so each store serves one worker and
    a limited number of attempts."""

    def __init__(
        self,
        place: Path,
        owner: str,
        clock: Clock,
        fork_modes: ForkModes | None = None,
        share: Callable[[Workspace, str], SharedBase | None] = lambda *_: None,
    ) -> None:
        """Without `fork_modes`, every attempt gets a copy. `share` stores the manifest of a template over which
        attempts are mounted, given by its snapshot, in the run's bundle.
        """
        self._place = place
        self._fork_modes = fork_modes
        self._share = share
        self._bases: dict[Path, SharedBase | None] = {}
        self._modes: dict[str, str] = {}
        self._owner = owner
        self._clock = clock
        self._lock = threading.Lock()
        self._made: Counter[str] = Counter()
        self._forks: Counter[str] = Counter()
        self._current: dict[str, tuple[Path, str]] = {}
        self._idle: list[tuple[Path, Workspace]] = []
        """Open templates not in use, most recently used last: opening costs as much as forking."""

    def fork(self, mission: str, dest: Path) -> Workspace:
        """Fork a new workspace with the mission's files, with change tracking. Only this process can use it."""
        template, snapshot = self._template(mission)
        with self._opened(template) as origin:
            if self.mode(mission) == OVERLAY:
                return origin.fork_over(snapshot, dest, dest.with_name(LAYERS), temporary=True)
            return origin.fork(snapshot, dest, track=True, temporary=True)

    def base(self, template: Path) -> SharedBase | None:
        """Return the manifest of a template over which attempts are mounted, if the run's bundle has it."""
        return self._bases[template]

    def _known_base(self, made: SharedBase | None) -> SharedBase | None:
        """Return an equal base that is in memory already. The templates of a mission usually have the same files."""
        for each in self._bases.values():
            if each and made and (each.snapshot, each.tree.sha256) == (made.snapshot, made.tree.sha256):
                return each
        return made

    def mode(self, mission: str) -> str:
        """Return how the attempts at a mission get its files: `overlay`, or `copy` with the reason."""
        if mission not in self._modes:
            given, modes = self._place / mission / GIVEN, self._fork_modes
            self._modes[mission] = "copy: not requested" if modes is None else modes.mode(mission, given)
        return self._modes[mission]

    @contextlib.contextmanager
    def _opened(self, template: Path) -> Iterator[Workspace]:
        """Open a template for one thread at a time."""
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
            oldest = self._idle.pop(0) if len(self._idle) > MAX_IDLE else None
        if oldest is not None:
            with contextlib.suppress(OSError, WorkspaceError):  # an unrelated template: this fork is complete
                oldest[1].close()

    def _template(self, mission: str) -> tuple[Path, str]:
        with self._lock:
            overlay = self.mode(mission) == OVERLAY
            if mission not in self._current or self._forks[mission] >= (
                FORKS_BY_MOUNT if overlay else FORKS_OF_A_STORE
            ):
                self._current.pop(mission, None)
                given = self._place / mission / GIVEN
                template = self._place / mission / f"{self._owner}.{self._made[mission]}"
                self._made[mission] += 1  # even after a failure, so that the next template gets a new path
                snapshot = make_template(given, template, to_mount=overlay)
                if overlay:
                    with Workspace.open(template, track=False, clock=self._clock) as workspace:
                        self._bases[template] = self._known_base(self._share(workspace, snapshot))
                self._current[mission] = template, snapshot
                self._forks[mission] = 0
            self._forks[mission] += 1
            return self._current[mission]


def make_template(source: Path, dest: Path, *, to_mount: bool = False) -> str:
    """Create a workspace at `dest`, which must not exist, with the files of `source`; return its first snapshot.

    `to_mount`: forks are mounted over it. Its files then belong to the user of a box's commands, as no overlay mount
    can map their owner.
    """
    with opened(source) as given:
        fill(TemplateSource(workspace=given), dest)
    if to_mount:
        os.chown(dest, COMMAND_ID, COMMAND_ID)
        for _, folders, files, fd in os.fwalk(dest):
            for name in (*folders, *files):
                os.chown(name, COMMAND_ID, COMMAND_ID, dir_fd=fd, follow_symlinks=False)
    with Workspace.init(dest, track=False) as workspace:
        made = workspace.snapshot("as given")
        if to_mount:
            workspace.settle()
            create_only(dest.with_name(dest.name + LOWER), made.id.encode())
        return made.id


def altered_missions(place: Path) -> set[str]:
    """Return the missions whose attempts were mounted over files that have changed since. Reads every file."""
    return {lower.parent.name for lower in place.glob(f"*/*{LOWER}") if not _is_as_given(lower)}


def _is_as_given(lower: Path) -> bool:
    try:
        with Workspace.open(lower.with_name(lower.name.removesuffix(LOWER)), track=False) as workspace:
            found = workspace.snapshot("before the commit", sealed=True)
    except (OSError, WorkspaceError):
        return False
    return found.id == lower.read_text() and not found.skipped and not found.unstable


def fill(source: TemplateSource, dest: Path) -> None:
    """Create `dest` with the files of a source, or empty. It appears complete or not at all."""
    making = dest.with_name(f".{dest.name}.new")
    remove_tree(making)
    making.parent.mkdir(parents=True, exist_ok=True)
    if source.image is not None:
        from proofbox.sandbox.containers.image_files import copy_from_image  # few missions start from an image

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
        OverlayWriter(dest).copy_tree(source.workspace, skip=source.skip, name=source.name)
        return
    try:
        unpack(Path(f"/dev/fd/{source.workspace}"), dest)
    except ArchiveRefused as error:
        raise SuiteInvalid(
            f"{source.name} cannot be unpacked: {error}",
            op="suite",
            fix_hints=["use a directory, or a tar or zip archive"],
        ) from error
