"""Which names a repository can hold, which are better left out, and which make an archive unsafe."""

from __future__ import annotations

import re

MAX_PATH = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_GIT = re.compile(r"\.git|git~[0-9]+", re.IGNORECASE)
# What HFS+ leaves out when it compares names: ".g\u200cit" is ".git" there.
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(?:\..*)?", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:")

_EXAMPLE = re.compile(r"\.env(?:\.[a-z0-9_-]+)*\.?(?:example|sample|template|dist|defaults?|schema)", re.IGNORECASE)
_SECRET = re.compile(
    r"\.env(?:[._-].*)?|.*\.env|.*\.(?:pem|key|p12|pfx|ppk|jks|keystore|kdbx)|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
    r"|[._]netrc|\.pgpass|\.git-credentials|\.htpasswd",
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(rb"\s*-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")


def problem(path: str) -> str:
    """Why no repository can hold this path, or nothing. A path that names `.git` is for `is_git`."""
    parts = path.split("/")
    if not path or len(path.encode("utf-8", "surrogateescape")) > MAX_PATH:
        return "it is empty, or too long"
    if any(part in ("", ".", "..") for part in parts):
        return "it is absolute, leads out of the tree, or is not in its plain form"
    if _CONTROL.search(path):
        return "it holds a control character or a backslash"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    return ""


def archive_problem(path: str) -> str:
    """What more is wrong with a path that someone else may unpack, on any system."""
    for part in path.split("/"):
        if _DEVICE.fullmatch(part.rstrip(". ")):
            return "it is the name of a device"
        if part[-1:] in (".", " ") or ":" in part:
            return "some systems take it for another name"
    return "it names a drive" if _DRIVE.match(path) else ""


def is_git(path: str) -> bool:
    """Whether a part of it is git's own directory, by any of the names that some file system takes for it."""
    return any(_GIT.fullmatch(_IGNORED_BY_HFS.sub("", part).rstrip(". ")) for part in path.split("/"))


def looks_secret(path: str) -> bool:
    """Whether the name is one that secrets are kept under: `.env` but no example of it, keys, key stores."""
    name = path.rpartition("/")[2]
    return bool(_SECRET.fullmatch(name)) and not _EXAMPLE.fullmatch(name)


def begins_private_key(head: bytes) -> bool:
    return _PRIVATE_KEY.match(head) is not None


def leads_out(path: str, target: str) -> bool:
    """Whether a symbolic link at `path` leads out of the tree, or nowhere a repository has; or could, by another link.

    A target may go up first and then down, and never up again: what is above a name is not known where the name may be
    a link. So links that pass lead nowhere together that none of them leads alone, whatever is added to the tree.
    """
    if not target or target.startswith("/") or _CONTROL.search(target) or _DRIVE.match(target):
        return True
    parts = [part for part in target.split("/") if part not in ("", ".")]
    down = [part for part in parts if part != ".."]
    up = len(parts) - len(down)
    above = path.split("/")[:-1]
    return parts[up:] != down or up > len(above) or is_git("/".join([*above[: len(above) - up], *down]))
