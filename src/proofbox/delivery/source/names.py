"""Check path names: invalid in a repository, likely secrets, or unsafe in an archive."""

from __future__ import annotations

import re

MAX_PATH = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_GIT = re.compile(r"\.git|git~[0-9]+", re.IGNORECASE)
# Characters that HFS+ ignores when it compares names: ".g\u200cit" is ".git" there.
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
    """Return why a repository cannot contain this path, or an empty string. `is_git` checks for `.git`."""
    parts = path.split("/")
    if not path or len(path.encode("utf-8", "surrogateescape")) > MAX_PATH:
        return "it is empty or too long"
    if any(part in ("", ".", "..") for part in parts):
        return "it is absolute, points outside the tree, or is not normalized"
    if _CONTROL.search(path):
        return "it contains a control character or a backslash"
    try:
        path.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    return ""


def archive_problem(path: str) -> str:
    """Return why this path is unsafe to unpack on some operating system, or an empty string."""
    for part in path.split("/"):
        if _DEVICE.fullmatch(part.rstrip(". ")):
            return "it is a device name"
        if part[-1:] in (".", " ") or ":" in part:
            return "some systems treat it as another name"
    return "it contains a drive letter" if _DRIVE.match(path) else ""


def is_git(path: str) -> bool:
    """Return whether a part of the path is `.git`, under any name that some file system treats as `.git`."""
    # NTFS ignores dots and spaces at the end, and opens `.git:x` and `.git::$INDEX_ALLOCATION` as streams of `.git`.
    names = (_IGNORED_BY_HFS.sub("", part).partition(":")[0].rstrip(". ") for part in path.split("/"))
    return any(map(_GIT.fullmatch, names))


def looks_secret(path: str) -> bool:
    """Return whether the file name suggests a secret: `.env` (but not an example), keys, key stores."""
    name = path.rpartition("/")[2]
    return bool(_SECRET.fullmatch(name)) and not _EXAMPLE.fullmatch(name)


def begins_private_key(head: bytes) -> bool:
    return _PRIVATE_KEY.match(head) is not None


def leads_out(path: str, target: str) -> bool:
    """Return whether a symbolic link at `path` points outside the tree or into `.git`, or could through other links.

    A target may go up and then down, but not up again, because `name/..` is unpredictable if `name` is a link. So
    combining accepted links never leaves the tree, regardless of the files that are added to it.
    """
    if not target or target.startswith("/") or _CONTROL.search(target) or _DRIVE.match(target):
        return True
    parts = [part for part in target.split("/") if part not in ("", ".")]
    down = [part for part in parts if part != ".."]
    up = len(parts) - len(down)
    above = path.split("/")[:-1]
    return parts[up:] != down or up > len(above) or is_git("/".join([*above[: len(above) - up], *down]))
