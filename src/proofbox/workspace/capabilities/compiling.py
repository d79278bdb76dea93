"""Capabilities as a box keeps them: what to mount, what to cover, whom to reach.

What a command can do is decided by the kernel, by rules over directories that exist. Not every set of globs can be said
so. Reading can, for whatever is there when the box starts: what may not be read is covered. Writing can where it is
allowed for whole directories (`src/**`) or single files, less what exists under an exact name. Deleting and executing
can't be told from writing and reading. What can't be said is refused here, by name, before a command runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from proofbox.core.allowlist import WEB_PORTS, HostRule
from proofbox.core.text import printable
from proofbox.errors import CapabilitiesRefused
from proofbox.sandbox.box_handle import PolicyOptions
from proofbox.sandbox.contract import Access, Mount
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.rules import HostRules, PathRules, matches_above

MOST_COVERS = 2000


class BoxRules(NamedTuple):
    """What of the capabilities is the box's to keep."""

    network: str
    access: Access
    writable: tuple[str, ...]
    """Parts of a read-only workspace that can be written."""
    hidden: tuple[str, ...]
    frozen: tuple[str, ...]

    def identities(self, root: str) -> tuple[tuple[int, int] | None, ...]:
        """Which files these are. A mount is on a file, not on its name: one that is replaced is without its cover."""
        paths = [path for each in (*self.writable, *self.hidden, *self.frozen) for path in _and_above(each)]
        return tuple(_identity(os.path.join(root, path)) for path in paths)

    def options(self, root: str) -> PolicyOptions:
        places = [os.path.join(root, path) for path in self.writable]
        return {
            "network": self.network,
            "access": self.access,
            "mounts": [Mount(Path(place), place, writable=True) for place in places],
            "hidden": self.hidden,
            "frozen": self.frozen,
        }


def compile_rules(capabilities: Capabilities, root: str) -> BoxRules:
    """For the workspace as it is now. Raises CapabilitiesRefused for what no box can keep."""
    refuse_execute(capabilities)
    hidden = tuple(sorted(_hidden(capabilities.read, root)))
    if len(hidden) > MOST_COVERS:
        raise refusal(f"{len(hidden)} paths would have to be covered, and {MOST_COVERS} can be", "fs.read")
    areas = _areas(capabilities.write, root, hidden)
    for area in areas:
        _refuse_delete(capabilities, area)
    access: Access = "rw" if areas == [""] else "ro"
    return BoxRules(
        network=network_of(capabilities.network),
        access=access,
        writable=tuple(areas) if access == "ro" else (),
        hidden=hidden,
        frozen=tuple(_frozen(capabilities.write, root, areas, hidden)),
    )


def uncovered(capabilities: Capabilities, root: str, rules: BoxRules) -> bool:
    """Whether something is there now that is denied by its exact name and not hidden: found without a walk."""
    exact = (glob.subtree if glob.subtree is not None else glob.literal for _, glob in capabilities.read.deny)
    return any(path and _kind(root, path) is not None and not _within(path, rules.hidden) for path in exact)


def needs_walk(capabilities: Capabilities) -> bool:
    """Whether compiling looks at more than a few paths: a deny with wildcards may match anywhere."""
    exact = all(glob.literal is not None or glob.subtree is not None for _, glob in capabilities.read.deny)
    return not exact or not capabilities.read.covers("")


def refusal(reason: str, kind: str) -> CapabilitiesRefused:
    return CapabilitiesRefused(
        f"no box can keep these capabilities: {reason}",
        op="run_command",
        fix_hints=["change the rules as it says", "or allow no commands: the other tools check every rule themselves"],
        details={"kind": kind, "reason": reason},
    )


def _hidden(read: PathRules, root: str) -> Iterator[str]:
    waiting = [""]
    while waiting:
        path = waiting.pop()
        if read.covers(path):
            continue
        for entry in _entries(root, path):
            below = f"{path}/{entry.name}" if path else entry.name
            if entry.is_symlink():
                continue  # it shows nothing that is not also where it leads
            directory = entry.is_dir(follow_symlinks=False)
            if not (read.reaches(below) if directory else read.of(below).allowed):
                yield below
            elif directory:
                waiting.append(below)


def _entries(root: str, path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(os.path.join(root, path)) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []  # gone again
    except OSError as error:
        raise refusal(f"{printable(path[:200])} can't be looked into: {error.strerror}", "fs.read") from None


def _areas(write: PathRules, root: str, hidden: Sequence[str]) -> list[str]:
    """Directories and files that can be written, none within another; [""] for everything."""
    found: list[str] = []
    for text, glob in write.allow:
        area = glob.subtree if glob.subtree is not None else glob.literal
        if area is None:
            raise refusal(
                f"{text!r} allows writing by a wildcard; a box can allow directories (`src/**`) and single files",
                "fs.write",
            )
        kind = _kind(root, area)
        whole = glob.subtree is not None
        if kind is None or _within(area, hidden) or write.denies(area):
            continue
        if area == "" or (kind == stat.S_IFDIR) == whole:
            found.append(area)
    return [each for each in dict.fromkeys(found) if not any(o != each and _within(each, [o]) for o in found)]


def _frozen(write: PathRules, root: str, areas: Sequence[str], hidden: Sequence[str]) -> Iterator[str]:
    for text, glob in write.deny:
        touched = [area for area in areas if glob.may_match_below(area) or matches_above(glob, area)]
        if not touched:
            continue
        path = glob.literal if glob.literal is not None else glob.subtree
        if not path:
            raise refusal(
                f"{text!r} denies writing by a wildcard, and such a file could be made at any time", "fs.write"
            )
        if _within(path, hidden):
            continue
        if _kind(root, path) is None:
            raise refusal(
                f"{text!r} denies writing what is not there yet, and could be made: make it first", "fs.write"
            )
        yield path


def _refuse_delete(capabilities: Capabilities, area: str) -> None:
    delete, write = capabilities.delete, capabilities.write
    allowed = any(glob.covers(area) or glob.literal == area for _, glob in delete.allow)
    if not allowed or not {g.pattern for _, g in delete.deny} <= {g.pattern for _, g in write.deny}:
        raise refusal(
            f"{printable(area) or 'everything'} may be written and not deleted, which a box can't tell apart:"
            " give delete the rules of write",
            "fs.delete",
        )


def refuse_execute(capabilities: Capabilities) -> None:
    """Raises CapabilitiesRefused for rules that no box can keep, whatever files there are."""
    execute, read = capabilities.execute, capabilities.read
    allowed = {glob.pattern for _, glob in execute.allow}
    enough = any(glob.covers("") for _, glob in execute.allow) or {g.pattern for _, g in read.allow} <= allowed
    if not enough or not {g.pattern for _, g in execute.deny} <= {g.pattern for _, g in read.deny}:
        raise refusal(
            "what may be read and not executed can't be told apart in a box, where an interpreter reads:"
            ' give execute the rules of read, or "**"',
            "fs.execute",
        )


def network_of(rules: HostRules) -> str:
    """The network of a box under these rules, as its policy says it. Raises CapabilitiesRefused."""
    if not rules.allow:
        return "none"
    denied = [rule for _, rule in rules.deny]
    if None in denied:
        return "none"
    if any(rule is None for _, rule in rules.allow):
        if denied:
            raise refusal("everything but some hosts can't be reached: list the hosts that can", "network")
        return "full"
    kept = []
    for text, rule in rules.allow:
        assert rule is not None  # noqa: S101 (everything is handled above)
        against = [each for each in denied if each is not None and _overlap(rule, each)]
        if not against:
            kept.append(str(rule))
        elif not any(_contains(each, rule) for each in against):
            raise refusal(f"{text!r} is allowed but for a part of it: list what can be reached", "network")
    return "allow:" + ",".join(kept) if kept else "none"


def _overlap(allowed: HostRule, denied: HostRule) -> bool:
    """Whether something could be meant by both."""
    if denied.port is not None and denied.port not in ((allowed.port,) if allowed.port else WEB_PORTS):
        return False
    if allowed.host == denied.host:
        return allowed.subdomains == denied.subdomains
    below = allowed.subdomains and denied.host.endswith(f".{allowed.host}")
    return below or (denied.subdomains and allowed.host.endswith(f".{denied.host}"))


def _contains(denied: HostRule, allowed: HostRule) -> bool:
    """Whether everything that is allowed is denied: where they overlap."""
    if denied.port is not None and denied.port != allowed.port:
        return False
    return denied.host == allowed.host or (denied.subdomains and allowed.host.endswith(f".{denied.host}"))


def _and_above(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[: count + 1]) for count in range(len(names))]


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _kind(root: str, path: str) -> int | None:
    """The kind of what is there, reached without any symbolic link; None if there is nothing."""
    here = root
    mode = stat.S_IFDIR
    for name in path.split("/") if path else []:
        here = os.path.join(here, name)
        try:
            mode = stat.S_IFMT(os.lstat(here).st_mode)
        except OSError:
            return None
        if mode == stat.S_IFLNK:
            return None
    return mode


def _within(path: str, places: Sequence[str]) -> bool:
    return any(path == place or place == "" or path.startswith(f"{place}/") for place in places)
