r"""Unified diffs in the format of `git diff` and `diff -u`: parsed completely before any change, and applied exactly.

A hunk is applied at the line in its header if its old lines are there, otherwise at the only other position after the
previous hunks where they are. There is no fuzzy matching. Renames, new and deleted files and the executable bit are
supported; binary patches, symbolic links and submodules are refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from proofbox.core.text import printable
from proofbox.errors import PatchRefused

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODES = {"100644": False, "100755": True}
_NOTHING = "/dev/null"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "\\": "\\"}


class Hunk(NamedTuple):
    start: int
    """Number of the first old line, counted from 1."""
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    """Lines including their line endings, if any."""


class FilePatch(NamedTuple):
    old: str | None
    """None for a new file."""
    new: str | None
    """None for a deleted file."""
    hunks: tuple[Hunk, ...]
    executable: bool | None = None


def parse(text: str) -> list[FilePatch]:
    """Parse a patch. Raises PatchRefused if it is malformed or uses an unsupported feature."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise refusal("it contains characters that can't be encoded") from None
    lines = raw.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    files = _Reader(lines).files()
    if not files:
        raise refusal("it contains no file")
    names = [name for each in files for name in {each.old, each.new} if name is not None]
    if len(set(names)) != len(names):
        raise refusal("it names a file twice")
    return files


def apply_hunks(data: bytes, patch: FilePatch) -> bytes:
    """Return the new content. Raises PatchRefused if a hunk does not apply."""
    lines = data.split(b"\n")
    ended = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    made: list[bytes] = []
    at = 0
    for number, hunk in enumerate(patch.hunks, 1):
        place = _place(ended, hunk, at)
        if isinstance(place, str):
            name = printable(str(patch.new or patch.old)[:200])
            raise refusal(f"hunk {number} of {name} does not apply: {place}", file=name, hunk=number)
        made += ended[at:place]
        made += hunk.new
        at = place + len(hunk.old)
    made += ended[at:]
    if any(not line.endswith(b"\n") for line in made[:-1]):
        raise refusal("a line without a newline would be in the middle of the file")
    return b"".join(made)


def refusal(reason: str, **details: object) -> PatchRefused:
    return PatchRefused(
        f"the patch can't be applied: {reason}",
        op="apply_patch",
        details=details,
    )


def _place(lines: list[bytes], hunk: Hunk, least: int) -> int | str:
    if not hunk.old:  # only the line number says where: after that line
        return hunk.start if least <= hunk.start <= len(lines) else f"there is no line {hunk.start}"
    stated = hunk.start - 1
    count = len(hunk.old)
    if stated >= least and tuple(lines[stated : stated + count]) == hunk.old:
        return stated
    found = [at for at in range(least, len(lines) - count + 1) if tuple(lines[at : at + count]) == hunk.old]
    if len(found) == 1:
        return found[0]
    return "its old lines occur more than once, and not at its line number" if found else "its old lines were not found"


class _Reader:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._at = 0

    def files(self) -> list[FilePatch]:
        found = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith((b"diff --git ", b"--- ")):
                found.append(self._file())
            elif line.startswith((b"@@ ", b"GIT binary patch", b"+++ ")):
                raise refusal(f"line {self._at + 1} belongs to no file")
            else:
                self._at += 1  # text outside a patch: a commit message, an index line
        return found

    def _file(self) -> FilePatch:
        old = new = None
        named = False
        executable: bool | None = None
        header = self._next() if self._peek(b"diff --git ") else None
        created = deleted = False
        while header is not None and not self._peek(b"--- ", b"@@ ", b"diff --git ") and self._at < len(self._lines):
            words = self._next()
            word = words.decode("utf-8", "surrogateescape")
            if word.startswith(("new file mode ", "deleted file mode ", "new mode ", "old mode ")):
                what, _, mode = word.rpartition(" ")
                if mode not in _MODES:
                    raise refusal(f"unsupported file mode {mode[:10]}: only plain files can be patched")
                created, deleted = created or what == "new file mode", deleted or what == "deleted file mode"
                executable = _MODES[mode] if what.startswith("new") else executable
            elif word.startswith(("rename from ", "copy from ")):
                if word.startswith("copy"):
                    raise refusal("copies are not supported: add the copy as a new file")
                old, named = _unquoted(word.removeprefix("rename from ")), True
            elif word.startswith("rename to "):
                new, named = _unquoted(word.removeprefix("rename to ")), True
            elif word.startswith(("GIT binary patch", "Binary files ")):
                raise refusal("binary files are not supported")
            elif not word.startswith(("index ", "similarity index ", "dissimilarity index ")):
                self._at -= 1
                break
        if self._peek(b"--- "):
            before, after = self._names()
            if not named:
                old, new = before, after
            hunks = self._hunks()
            if not hunks and not named:
                raise refusal("it contains a file without changes")
        else:
            hunks = ()
            if not named:
                old = new = _from_header(header)
                old, new = (None if created else old), (None if deleted else new)
        if old is None and new is None:
            raise refusal("it contains a file without a name")
        return FilePatch(old, new, hunks, executable)

    def _names(self) -> tuple[str | None, str | None]:
        before = self._name(self._next(), "--- ")
        if not self._peek(b"+++ "):
            raise refusal(f"line {self._at + 1}: expected +++ after ---")
        after = self._name(self._next(), "+++ ")
        real = [name for name in (before, after) if name is not None]
        # Remove git's prefixes only if both names have them: `a/x` may also be a file in a directory called a.
        if (before is None or before.startswith("a/")) and (after is None or after.startswith("b/")) and real:
            before, after = (None if name is None else name[2:] for name in (before, after))
        return before, after

    def _name(self, line: bytes, sign: str) -> str | None:
        text = line.decode("utf-8", "surrogateescape").removeprefix(sign)
        text = text if text.startswith('"') else text.split("\t")[0].removesuffix("\r")
        name = _unquoted(text)
        return None if name == _NOTHING else name

    def _hunks(self) -> tuple[Hunk, ...]:
        hunks = []
        while self._peek(b"@@ "):
            header = _HUNK.match(self._next().decode("utf-8", "replace"))
            if header is None:
                raise refusal(f"line {self._at}: malformed hunk header")
            start, old_count, _, new_count = header.groups()
            hunks.append(self._hunk(int(start), int(old_count or "1"), int(new_count or "1")))
        return tuple(hunks)

    def _hunk(self, start: int, old_count: int, new_count: int) -> Hunk:
        old: list[bytes] = []
        new: list[bytes] = []
        while len(old) < old_count or len(new) < new_count:
            if self._at >= len(self._lines):
                raise refusal("it ends in the middle of a hunk")
            line = self._next()
            sign, body = line[:1] or b" ", line[1:] + b"\n"  # an editor may have removed the space of an empty line
            if sign not in (b" ", b"-", b"+"):
                raise refusal(f"line {self._at}: a line in a hunk must start with a space, - or +")
            sides = [side for side, signs in ((old, b" -"), (new, b" +")) if sign in signs]
            for side in sides:
                side.append(body)
            if self._peek(b"\\"):
                self._next()
                for side in sides:
                    side[-1] = side[-1].removesuffix(b"\n")
        if len(old) != old_count or len(new) != new_count:
            raise refusal(f"line {self._at}: the number of lines in the hunk does not match its header")
        return Hunk(start, tuple(old), tuple(new))

    def _peek(self, *signs: bytes) -> bool:
        return self._at < len(self._lines) and self._lines[self._at].startswith(signs)

    def _next(self) -> bytes:
        self._at += 1
        return self._lines[self._at - 1]


def _from_header(header: bytes | None) -> str:
    """Return the name in `diff --git a/NAME b/NAME`, where both names must be the same."""
    text = (header or b"").decode("utf-8", "surrogateescape").removeprefix("diff --git ")
    if text.startswith('"'):
        names = [_unquoted(each) for each in re.findall(r'"(?:[^"\\]|\\.)*"', text)]
    else:
        names = [text[: len(text) // 2], text[len(text) // 2 + 1 :]]
    if len(names) != 2 or not names[0].startswith("a/") or names[1] != f"b/{names[0][2:]}":
        raise refusal("the file names in a `diff --git` line are ambiguous")
    return names[0][2:]


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    if len(text) < 2 or not text.endswith('"'):
        raise refusal("a quoted name has no closing quote")

    def unescape(match: re.Match[str]) -> str:
        sign = match[1]
        if sign[0] in "01234567":
            return chr(int(sign, 8))
        if sign not in _ESCAPES:
            raise refusal(f"unsupported escape \\{sign} in a name")
        return _ESCAPES[sign]

    spelled = re.sub(r"\\([0-3][0-7]{2}|.)", unescape, text[1:-1].encode("utf-8", "surrogateescape").decode("latin-1"))
    return spelled.encode("latin-1").decode("utf-8", "surrogateescape")
