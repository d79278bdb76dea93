"""What is proofbox's own, and must be kept from boxes whose project or mounts contain it."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from proofbox.core.dirs import cache_dir, config_dir, state_dir

_VARIABLES = ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


def hidden_within(host: Path, guest: str) -> list[str]:
    """Evidence, sessions and settings are never visible to what they are about: the places inside to cover."""
    return _inside(_directories(*map(os.environ.get, _VARIABLES)), host, guest)


def frozen_within(host: Path, guest: str) -> list[tuple[Path, str]]:
    """A project may hold the very installation that runs this: who could change it would run on the host next.

    Host path and place inside of what must be read-only there.
    """
    return [(own, place) for own in _code() for place in _inside((own,), host, guest)]


def _inside(paths: tuple[Path, ...], host: Path, guest: str) -> list[str]:
    return [str(Path(guest) / path.relative_to(host)) for path in paths if path.is_relative_to(host)]


@functools.lru_cache(maxsize=8)
def _directories(*_environment: str | None) -> tuple[Path, ...]:
    """They are made if need be: one that came into being later would be seen by boxes that run already."""
    return tuple(directory().resolve() for directory in (state_dir, cache_dir, config_dir))


@functools.cache
def _code() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parents[2]
    environment = (Path(sys.prefix).resolve(),) if sys.prefix != sys.base_prefix else ()
    return (package, *environment)
