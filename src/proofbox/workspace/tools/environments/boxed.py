"""A workspace's tools under capabilities: files by guarded handles, commands in a box that was made to keep the rules.

The box is started with the first command, from the capabilities and the files as they are. Before each command the
rules are compiled again; when that gives other mounts (a file that must be hidden has appeared, or was replaced by
another), the box is ended, with what was left running in it, and another started. No command runs meanwhile, so that
none can move things about.
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
from proofbox.sandbox.box_handle import ExecOptions
from proofbox.sandbox.contract import ExecResult, OnEvent
from proofbox.sandbox.paths import resolve_project
from proofbox.sandbox.service import Sandboxes, Session
from proofbox.workspace.capabilities.capabilities import Capabilities, CapabilityGuard, require
from proofbox.workspace.capabilities.compiling import BoxRules, compile_rules, needs_walk, uncovered
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search import SearchEngine
from proofbox.workspace.tools.environments.commands import CommandTools
from proofbox.workspace.tools.environments.handles import DirectoryTree

_CHEAP = 0.05  # seconds that a walk over all files may take before each command
_SHARE = 10  # one that takes longer may take this part of the time


class BoxedEnvironment(CommandTools):
    """Close it: it holds the box. `settings` are as for `Sandboxes`; what they forward of variables is filtered."""

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
            while self._session is None or not self._holds(self._session):
                if self._running == 0:
                    self._session = self._started()
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

    def _started(self) -> Session:
        """A box for the files as they are: nothing runs now that could change them meanwhile."""
        if self._session is not None:
            self._session.stop()
            self._session = None
        root = self._files.host
        self._rules = compile_rules(self.capabilities, root)
        self._identities = self._rules.identities(root)
        return self._boxes.start_session(provider=self._provider, **self._rules.options(root))

    def _holds(self, session: Session) -> bool:
        """Whether the box that runs still keeps the rules, for the files as they are now."""
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
