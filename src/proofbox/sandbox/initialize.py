"""`initialize`: write a project's settings and trust them. Implements `proofbox init`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from proofbox.config import settings as config
from proofbox.config.settings import PROJECT_FILE, Settings
from proofbox.errors import UsageError
from proofbox.sandbox.options import make_policy
from proofbox.sandbox.paths import resolve_project
from proofbox.sandbox.providers import AUTO, provider_named


class Initialized(msgspec.Struct, frozen=True):
    """A project's settings after `initialize`."""

    path: Path
    settings: Settings
    written: bool
    """False if an existing file was trusted without changes."""


def initialize(
    project_root: str | os.PathLike[str] = ".",
    settings: Settings | None = None,
    *,
    force: bool = False,
    trust: bool = False,
) -> Initialized:
    """Write `.proofbox/config.toml` and trust it, since the caller knows its content.

    For example:

        proofbox.initialize(".", proofbox.Settings(network="none"))

    An existing file is not changed, unless `force` replaces it. With `trust` nothing is written: the current version of
    the existing file is trusted.
    """
    project = resolve_project(project_root)
    path = project / PROJECT_FILE
    if trust:
        config.trust(project)
        return Initialized(path, config.load(project), written=False)
    if path.exists() and not force:
        raise UsageError(
            f"{path} already exists", op="init", fix_hints=["replace it: --force", "or trust it as it is: --trust"]
        )
    wanted = settings or Settings()
    if wanted.provider not in (None, AUTO):
        provider_named(str(wanted.provider))
    make_policy(project, {}, msgspec.structs.replace(wanted, mounts=()))  # mounts may be for another machine
    config.write(project, wanted)
    return Initialized(path, wanted, written=True)
