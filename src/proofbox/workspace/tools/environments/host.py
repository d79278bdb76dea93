"""Environments for a directory of this machine, with commands in a box or, on explicit request, without one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from proofbox.errors import CapabilityDenied, PolicyRefused
from proofbox.sandbox.contract import ExecResult
from proofbox.sandbox.options import ExecOptions
from proofbox.sandbox.service import Sandboxes, Session
from proofbox.workspace.scanning.ignore import Ignore
from proofbox.workspace.search.engines import SearchEngine
from proofbox.workspace.tools.environments.commands import CommandTools
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.tree import Access, AllowAll, Guard


class SandboxEnvironment(CommandTools):
    """Commands in a session of any provider; files through directory descriptors on the host side of its mount.

    The caller stops the session. A session with a temporary overlay is refused, because its files differ from those in
    the directory. If the box has read-only access, so do the tools.
    """

    def __init__(
        self,
        session: Session,
        *,
        guard: Guard | None = None,
        ignore: Ignore | None = None,
        engine: SearchEngine | None = None,
    ) -> None:
        info = session.info
        if info.policy.access == "overlay":
            raise PolicyRefused(
                "the box has a temporary overlay, so its files differ from those in its directory",
                op="tools",
                fix_hints=["start the session with access rw, and fork the workspace to be able to discard changes"],
            )
        guard = guard or AllowAll()
        self._files = DirectoryTree(info.project, ReadOnly(guard) if info.policy.access == "ro" else guard)
        super().__init__(self._files, ignore=ignore, engine=engine)
        self._session = session

    def close(self) -> None:
        super().close()
        self._files.close()

    def _exec(self, argv: Sequence[str], options: ExecOptions) -> ExecResult:
        return self._session.exec(argv, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HostEnvironment(SandboxEnvironment):
    """A directory of the host, with commands on the host without isolation. Must be chosen explicitly."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        guard: Guard | None = None,
        ignore: Ignore | None = None,
        engine: SearchEngine | None = None,
    ) -> None:
        self._boxes = Sandboxes(root)
        session = self._boxes.start_session(provider="off")
        try:
            super().__init__(session, guard=guard, ignore=ignore, engine=engine)
        except BaseException:
            self._boxes.close()
            raise

    def close(self) -> None:
        self._boxes.close()
        super().close()


class ReadOnly:
    """A guard that also denies all changes, like the box's read-only mount."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def check(self, access: Access, path: str) -> None:
        if access in ("write", "delete"):
            raise CapabilityDenied(
                "the box has read-only access to its directory, and so do the tools",
                op="tools",
                fix_hints=["start the session with access rw"],
                details={"kind": f"fs.{access}", "rule": "access ro"},
            )
        self._guard.check(access, path)

    def visible(self, path: str) -> bool:
        return self._guard.visible(path)
