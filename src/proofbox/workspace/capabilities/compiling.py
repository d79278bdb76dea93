"""Translate capabilities into a box's mounts, covered paths and network access.

The kernel controls what a command can do, with rules for existing directories. Not every set of globs can be expressed
that way. Read rules can, for files that exist when the box starts: unreadable paths are covered. Write rules can, if
they allow whole directories (`src/**`) or single files, minus existing files with exact names. Deleting and executing
cannot be separated from writing and reading. Rules that cannot be expressed are refused by name, before a command runs.
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
from proofbox.sandbox.contract import Access, Mount
from proofbox.sandbox.options import PolicyOptions
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.rules import HostRules, PathRules, matches_above

MAX_COVERS = 2000


class BoxRules(NamedTuple):
    """The part of the capabilities that the box enforces."""

    network: str
    access: Access
    writable: tuple[str, ...]
    """Writable parts of a read-only workspace."""
    hidden: tuple[str, ...]
    frozen: tuple[str, ...]

    def identities(self, root: str) -> tuple[tuple[int, int] | None, ...]:
        """Return the inodes of these paths. A mount covers an inode, so a file that replaces it is not covered."""
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
    """Compile the rules for the current files. Raises CapabilitiesRefused for rules that no box can enforce."""
    refuse_execute(capabilities)
    hidden = tuple(sorted(_hidden(capabilities.read, root)))
    if len(hidden) > MAX_COVERS:
        raise refusal(f"{len(hidden)} paths would have to be covered (maximum: {MAX_COVERS})", "fs.read")
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
    """Return whether a path that is denied by its exact name exists and is not hidden. Does not walk the tree."""
    exact = (glob.subtree if glob.subtree is not None else glob.literal for _, glob in capabilities.read.deny)
    return any(path and _kind(root, path) is not None and not _within(path, rules.hidden) for path in exact)


def needs_walk(capabilities: Capabilities) -> bool:
    """Return whether compiling has to walk the tree: a deny rule with wildcards may match anywhere."""
    exact = all(glob.literal is not None or glob.subtree is not None for _, glob in capabilities.read.deny)
    return not exact or not capabilities.read.covers("")


def refusal(reason: str, kind: str) -> CapabilitiesRefused:
    return CapabilitiesRefused(
        f"no box can enforce these capabilities: {reason}",
        op="run_command",
        fix_hints=["change the rules as described", "or allow no commands: the other tools check every rule"],
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
                continue  # its target is checked under its own path
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
        return []  # deleted in the meantime
    except OSError as error:
        raise refusal(f"can't list {printable(path[:200])}: {error.strerror}", "fs.read") from None


def _areas(write: PathRules, root: str, hidden: Sequence[str]) -> list[str]:
    """Return the writable directories and files, none inside another; [""] if everything is writable."""
    found: list[str] = []
    for text, glob in write.allow:
        area = glob.subtree if glob.subtree is not None else glob.literal
        if area is None:
            raise refusal(
                f"{text!r} allows writing by a wildcard; a box can only allow directories (`src/**`) and single files",
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
                f"{text!r} denies writing by a wildcard, but a command could create a matching file at any time",
                "fs.write",
            )
        if _within(path, hidden):
            continue
        if _kind(root, path) is None:
            raise refusal(
                f"{text!r} denies writing to a path that does not exist yet, so a command could create it:"
                " create it first",
                "fs.write",
            )
        yield path


def _refuse_delete(capabilities: Capabilities, area: str) -> None:
    delete, write = capabilities.delete, capabilities.write
    allowed = any(glob.covers(area) or glob.literal == area for _, glob in delete.allow)
    if not allowed or not {g.pattern for _, g in delete.deny} <= {g.pattern for _, g in write.deny}:
        raise refusal(
            f"{printable(area) or 'everything'} may be written but not deleted, which a box can't distinguish:"
            " give delete the same rules as write",
            "fs.delete",
        )


def refuse_execute(capabilities: Capabilities) -> None:
    """Raise CapabilitiesRefused for execute rules that no box can enforce, for any set of files."""
    execute, read = capabilities.execute, capabilities.read
    allowed = {glob.pattern for _, glob in execute.allow}
    enough = any(glob.covers("") for _, glob in execute.allow) or {g.pattern for _, g in read.allow} <= allowed
    if not enough or not {g.pattern for _, g in execute.deny} <= {g.pattern for _, g in read.deny}:
        raise refusal(
            "some files may be read but not executed, which a box can't enforce because interpreters only read files:"
            ' give execute the same rules as read, or "**"',
            "fs.execute",
        )


def network_of(rules: HostRules) -> str:
    """Return the box's network policy for these rules. Raises CapabilitiesRefused."""
    if not rules.allow:
        return "none"
    denied = [rule for _, rule in rules.deny]
    if None in denied:
        return "none"
    if any(rule is None for _, rule in rules.allow):
        if denied:
            raise refusal("a box can't allow all hosts except some: list the allowed hosts", "network")
        return "full"
    kept = []
    for text, rule in rules.allow:
        assert rule is not None  # noqa: S101 (everything is handled above)
        against = [each for each in denied if each is not None and _overlap(rule, each)]
        if not against:
            kept.append(str(rule))
        elif not any(_contains(each, rule) for each in against):
            raise refusal(f"{text!r} is allowed but part of it is denied: list the allowed hosts", "network")
    return "allow:" + ",".join(kept) if kept else "none"


def _overlap(allowed: HostRule, denied: HostRule) -> bool:
    """Return whether some host and port matches both rules."""
    if denied.port is not None and denied.port not in ((allowed.port,) if allowed.port else WEB_PORTS):
        return False
    if allowed.host == denied.host:
        return allowed.subdomains == denied.subdomains
    below = allowed.subdomains and denied.host.endswith(f".{allowed.host}")
    return below or (denied.subdomains and allowed.host.endswith(f".{denied.host}"))


def _contains(denied: HostRule, allowed: HostRule) -> bool:
    """Return whether `denied` covers all of `allowed`, given that they overlap."""
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
    """Return the file type at a path that contains no symbolic links, or None if the path does not exist."""
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
