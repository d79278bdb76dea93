"""A workspace's tools under capabilities: guarded access to files, and commands in a box that enforces the rules.

The box is started with the first command, for the current capabilities and files. Before each command the rules are
compiled again. If the mounts would differ (a file that must be hidden was created or replaced), the box and the
processes left in it are killed, and a new box is started. No command runs in the meantime, so none can move files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import msgspec

from proofbox.config.settings import Settings, load
from proofbox.core.clock import Clock, SystemClock
from proofbox.sandbox.contract import ExecResult, OnEvent
from proofbox.sandbox.options import ExecOptions
from proofbox.sandbox.paths import resolve_project
from proofbox.sandbox.service import Sandboxes, Session
from proofbox.workspace.capabilities.capabilities import Capabilities, CapabilityGuard, require
from proofbox.workspace.capabilities.compiling import BoxRules, compile_rules, needs_walk, uncovered
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search.engines import SearchEngine
from proofbox.workspace.tools.environments.commands import CommandTools
from proofbox.workspace.tools.environments.handles import DirectoryTree

_CHEAP = 0.05  # maximum seconds for a walk over all files before every command
_SHARE = 10  # a slower walk may take up to 1/_SHARE of the time


class BoxedEnvironment(CommandTools):
    """Close it to stop the box. `settings` are the settings of `Sandboxes`; forwarded variables are filtered."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        capabilities: Capabilities,
        *,
        provider: str | None = None,
        ignore: Ignore | None = None,
        engine: SearchEngine | None = None,
        settings: Settings | None = None,
        on_event: OnEvent | None = None,
        clock: Clock | None = None,
    ) -> None:
        project = resolve_project(root)
        given = load(project) if settings is None else settings
        forwarded = tuple(name for name in given.env if capabilities.env_read.of(name).allowed)
        self.capabilities = capabilities
        self._provider = provider
        self._clock: Clock = clock or SystemClock()
        self._boxes = Sandboxes(project, settings=msgspec.structs.replace(given, env=forwarded), on_event=on_event)
        self._files = DirectoryTree(project, CapabilityGuard(capabilities))
        super().__init__(self._files, ignore=ignore, engine=engine)
        self._turn = threading.Condition()
        self._running = 0
        self._session: Session | None = None
        self._rules: BoxRules | None = None
        self._identities: tuple[tuple[int, int] | None, ...] = ()
        self._walk_took = self._walked_at = 0.0

    def close(self) -> None:
        self._boxes.close()
        super().close()
        self._files.close()

    def _exec(self, argv: Sequence[str], options: ExecOptions) -> ExecResult:
        require(self.capabilities.command(argv))
        for name in options.get("env") or {}:
            require(self.capabilities.env_write.of(name))
        with self._box() as session:
            return session.exec(argv, **options)

    @contextmanager
    def _box(self) -> Iterator[Session]:
        with self._turn:
            while self._session is None or not self._still_enforces(self._session):
                if self._running == 0:
                    self._session = self._start_box()
                    break
                self._turn.wait()
            session = self._session
            self._running += 1
        try:
            yield session
        finally:
            with self._turn:
                self._running -= 1
                self._turn.notify_all()

    def _start_box(self) -> Session:
        """Start a box for the current files. No command is running that could change them in the meantime."""
        if self._session is not None:
            self._session.stop()
            self._session = None
        root = self._files.host
        self._rules = compile_rules(self.capabilities, root)
        self._identities = self._rules.identities(root)
        return self._boxes.start_session(provider=self._provider, **self._rules.options(root))

    def _still_enforces(self, session: Session) -> bool:
        """Return whether the running box still enforces the rules for the current files."""
        root, rules = self._files.host, self._rules
        if rules is None or session.info.state != "running" or rules.identities(root) != self._identities:
            return False
        now = self._clock.monotonic()
        costly = self._walk_took > _CHEAP and needs_walk(self.capabilities)
        if costly and now < self._walked_at + self._walk_took * _SHARE:
            return not uncovered(self.capabilities, root, rules)
        compiled = compile_rules(self.capabilities, root)
        self._walked_at = self._clock.monotonic()
        self._walk_took = self._walked_at - now
        return compiled == rules

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
