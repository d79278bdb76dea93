"""Finds and digests the files of this machine that the settings of a flow's agent name: those that its box mounts."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from proofbox.agents.settings import with_absolute_paths
from proofbox.config.settings import load
from proofbox.core.digest import sha256_file, sha256_hex
from proofbox.core.files.overlaying import Identity
from proofbox.core.files.path_walk import resolved_path
from proofbox.errors import PathRefused
from proofbox.lab.campaign.reading import Campaign
from proofbox.lab.campaign.spec import Runner
from proofbox.lab.run.plan import box_settings
from proofbox.lab.run.running import merged_tables
from proofbox.lab.suite.harbor.task_tree import MAX_BYTES, MAX_ENTRIES, tree_sha256
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.paths import parse_mount

AGENT_FILE: Final = "agent://"
"""What the name of such a file or directory starts with among the inputs of a flow."""


def runtime_tables(campaign: Campaign, runner: Runner) -> dict[str, dict[str, Any]]:
    """Return what the campaign adds to the settings of runtimes in `config.toml`."""
    return with_absolute_paths({runner.type: runner.settings} if runner.settings else {}, campaign.path.parent)


def agent_mounts(campaign: Campaign, flow: str) -> list[Mount]:
    """Return the mounts that the settings of a flow's agent add to its box, from the campaign and `config.toml`."""
    return _parsed(_settings(campaign, flow).get("mounts", ()))


def box_mounts() -> list[Mount]:
    """Return the mounts of the user's defaults for boxes."""
    return _parsed(box_settings().mounts)


def skipped(out: Path) -> list[Identity]:
    """Return the output directory, which changes while the campaign runs, if it exists."""
    return [(found.st_dev, found.st_ino) for found in [os.stat(out)]] if out.is_dir() else []


def check_agent_files(campaign: Campaign, flow: str, out: Path) -> None:
    """Raise `PathRefused` if a flow's agent uses files that cannot be digested: too many, too large or unreadable."""
    for path in _paths(campaign, flow):
        _check(resolved_path(path, "mount"), skipped(out))


def digest_agent_files(campaign: Campaign, flow: str, out: Path) -> dict[str, str]:
    """Return the digest of each file or directory that a flow's agent uses, by its name among the inputs of the flow.

    Writable mounts are not included, because attempts change them. Raises `PathRefused`, as `check_agent_files` does.
    """
    found, skip = {}, skipped(out)
    for path in _paths(campaign, flow):
        real = resolved_path(path, "mount")
        _check(real, skip)
        inside = path.is_relative_to(campaign.path.parent)
        found[f"{AGENT_FILE}{path.relative_to(campaign.path.parent) if inside else path}"] = _digest(real, skip)
    return dict(sorted(found.items()))


def _settings(campaign: Campaign, flow: str) -> dict[str, Any]:
    runner = next(each.runner for each in campaign.document.flow if each.id == flow)
    return merged_tables(load(Path().resolve()), runtime_tables(campaign, runner)).get(runner.type, {})


def _parsed(mounts: Any) -> list[Mount]:
    if not isinstance(mounts, list | tuple):
        return []  # the runtime reports the error
    return [parse_mount(each, Path().resolve()) for each in mounts if isinstance(each, str)]


def _paths(campaign: Campaign, flow: str) -> Iterator[Path]:
    for mount in (*agent_mounts(campaign, flow), *box_mounts()):
        if not mount.writable:
            yield Path(os.path.normpath(mount.host))


def _check(path: Path, skip: Collection[Identity]) -> None:
    size = 0
    try:
        for number, (entry, info) in enumerate(_entries(path, skip)):
            size += info.st_size if stat.S_ISREG(info.st_mode) else 0
            if number >= MAX_ENTRIES or size > MAX_BYTES:
                much = f"more than {MAX_ENTRIES} files" if number >= MAX_ENTRIES else f"more than {MAX_BYTES >> 30} GiB"
                raise _refused(path, f"it has {much}", "mount only the part that the agent needs")
            if not stat.S_ISLNK(info.st_mode) and not os.access(entry, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), entry)
    except OSError as error:
        hint = "make it readable, or mount only the part that the agent needs"
        raise _refused(path, f"{error.filename}: {error.strerror}", hint) from None


def _entries(path: Path, skip: Collection[Identity]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield a file, or a directory and everything below it. Links are not followed."""
    waiting = [str(path)]
    while waiting:
        entry = waiting.pop()
        info = os.lstat(entry)
        if (info.st_dev, info.st_ino) in skip:
            continue
        yield entry, info
        if stat.S_ISDIR(info.st_mode):
            waiting += [each.path for each in os.scandir(entry)]


def _digest(path: Path, skip: Collection[Identity]) -> str:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return tree_sha256(path, trusted=True, skip=skip)
    return sha256_file(path)[0] if stat.S_ISREG(mode) else sha256_hex(f"{stat.S_IFMT(mode):o}".encode())


def _refused(path: Path, why: str, hint: str) -> PathRefused:
    return PathRefused(f"mount {path} cannot be registered: {why}", op="campaign", fix_hints=[hint])
