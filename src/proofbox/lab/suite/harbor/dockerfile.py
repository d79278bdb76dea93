"""Reads from a Dockerfile what it does to a task's files, where that is possible without building it.

Only the last stage counts. Commands are not run and variables are not expanded; instructions that depend on them are
listed in `unread`.
"""

from __future__ import annotations

import json
import posixpath
import re

import msgspec

_HEREDOC = re.compile(r"<<-?\s*([\"']?)([A-Za-z_][A-Za-z0-9_]*)\1")
_ROOT = "/"
MAX_INSTRUCTIONS = 1000
"""The maximum number of instructions that are read; no one writes more by hand."""


class Copy(msgspec.Struct, frozen=True):
    """`COPY` or `ADD`: paths in the build context, and the absolute destination, with a trailing `/` if it had one."""

    sources: tuple[str, ...]
    dest: str


class Dockerfile(msgspec.Struct, frozen=True, kw_only=True):
    workdir: str = _ROOT
    copies: tuple[Copy, ...] = ()
    env: dict[str, str] = {}
    entrypoint: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    """Instructions that change the image and were not followed."""


def read_dockerfile(text: str) -> Dockerfile:
    found = Dockerfile()
    instructions = _instructions(text)
    for word, rest in instructions[:MAX_INSTRUCTIONS]:
        if word == "FROM":
            found = Dockerfile()
        elif word in ("RUN", "USER", "VOLUME"):
            found = _not_followed(found, word, rest)
        elif word == "ENTRYPOINT":
            found = msgspec.structs.replace(found, entrypoint=tuple(_words(rest)))
        elif word in ("WORKDIR", "COPY", "ADD", "ENV"):
            found = _not_followed(found, word, rest) if "$" in rest or "<<" in rest else _follow(found, word, rest)
    if len(instructions) > MAX_INSTRUCTIONS:
        found = _not_followed(found, "", f"everything after instruction {MAX_INSTRUCTIONS}")
    return found


def _follow(found: Dockerfile, word: str, rest: str) -> Dockerfile:
    if word == "WORKDIR":
        place = posixpath.normpath(posixpath.join(found.workdir, rest.strip("\"'")))
        return msgspec.structs.replace(found, workdir="/" + place.lstrip("/"))
    words = _words(rest)
    if word == "ENV":
        pairs = [each.partition("=") for each in words]
        if not all(equals for _, equals, _ in pairs):
            pairs = [(words[0], "=", " ".join(words[1:]))] if words else []
        return msgspec.structs.replace(found, env=found.env | {name: value.strip("\"'") for name, _, value in pairs})
    flags = [each for each in words if each.startswith("--")]
    paths = [each for each in words if not each.startswith("--")]
    remote = any("://" in each or each.startswith("git@") for each in paths)
    if len(paths) < 2 or remote or any(flag.startswith("--from") for flag in flags):
        return _not_followed(found, word, rest)
    dest = posixpath.normpath(posixpath.join(found.workdir, paths[-1]))
    into = len(paths) > 2 or paths[-1].endswith(("/", "/.")) or paths[-1] == "."
    copy = Copy(tuple(paths[:-1]), dest.rstrip("/") + "/" if into else dest)
    return msgspec.structs.replace(found, copies=(*found.copies, copy))


def _not_followed(found: Dockerfile, word: str, rest: str) -> Dockerfile:
    line = f"{word} {' '.join(rest.split())}".lstrip()
    return msgspec.structs.replace(found, unread=(*found.unread, line[:200]))


def _words(rest: str) -> list[str]:
    flags = re.match(r"(?:--\S+\s+)*", rest)
    start = flags.end() if flags else 0
    if rest[start:].lstrip().startswith("["):
        try:
            listed = json.loads(rest[start:])
        except (ValueError, RecursionError):
            return []
        return [*rest[:start].split(), *(each for each in listed if isinstance(each, str))]
    return rest.split()


def _instructions(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    lines = iter(text.splitlines())
    for line in lines:
        whole = line.strip()
        if not whole or whole.startswith("#"):
            continue
        pieces = [whole]
        while pieces[-1].endswith("\\"):
            more = next(lines, "").strip()
            if not more.startswith("#"):
                pieces[-1] = pieces[-1][:-1]
                pieces.append(more)
        whole = " ".join(pieces)
        for _, end in _HEREDOC.findall(whole):
            while (inside := next(lines, None)) is not None and inside.strip() != end:
                pass
        word, _, rest = whole.partition(" ")
        found.append((word.upper(), rest.strip()))
    return found
