"""Globs over paths, with bounded matching time: for capabilities and for choosing files to search.

A pattern is matched against a path from the root, name by name. Within a name `*` matches any number of characters and
`?` exactly one; neither matches a slash, and a leading dot is not special. `**` as a whole name matches any number of
names, including none. `{a,b}` matches either alternative. A backslash makes the next character literal. Matching is
case-sensitive and compares code points without normalization.

The time is bounded by the product of the two lengths, so a hostile pattern costs no more than a long one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_MAX_LENGTH = 1000
_MAX_ALTERNATIVES = 64

ANY = object()
"""`*` within a name."""
ONE = object()
"""`?` within a name."""
DEEP = None
"""`**` as a whole name."""

_Token = object  # a character, ANY or ONE
_Name = tuple[_Token, ...] | None


class Glob:
    """A compiled pattern. Raises ValueError with a reason if the pattern is invalid."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        if not pattern or len(pattern) > _MAX_LENGTH or "\0" in pattern:
            raise ValueError("it is empty, too long or contains a NUL byte")
        self._alternatives = [_names(each) for each in expanded(pattern)]

    def matches(self, path: str) -> bool:
        """Match a path from the root, without `.`, `..` or empty names. The root itself is ''."""
        names = path.split("/") if path else []
        return any(_match(pattern, names) for pattern in self._alternatives)

    def may_match_below(self, path: str) -> bool:
        """Return whether anything below the directory `path` could match. If not, a walk may skip it."""
        names = path.split("/") if path else []
        return any(_match_prefix(pattern, names) for pattern in self._alternatives)

    def covers(self, path: str) -> bool:
        """Return whether it matches `path` and, with a final `**`, every existing or future path below it."""
        names = path.split("/") if path else []
        return any(pattern[-1:] == [DEEP] and _match(pattern, names) for pattern in self._alternatives)

    @property
    def literal(self) -> str | None:
        """The only path it matches, if it has no wildcards."""
        return _spelled(self._alternatives[0]) if len(self._alternatives) == 1 else None

    @property
    def subtree(self) -> str | None:
        """DIR for `DIR/**` with a literal DIR ('' for `**`): the directory and everything below it."""
        if len(self._alternatives) != 1 or self._alternatives[0][-1:] != [DEEP]:
            return None
        return _spelled(self._alternatives[0][:-1])

    def __repr__(self) -> str:
        return f"Glob({self.pattern!r})"


class Word:
    """A pattern for one word that may contain slashes: an argument or a variable name. `*` matches anything."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._tokens = tuple(_tokens(pattern))

    def matches(self, word: str) -> bool:
        return _fits(self._tokens, word)


def _spelled(names: Sequence[_Name]) -> str | None:
    """Return the path if it contains no wildcard, else None."""
    found = []
    for name in names:
        if name is None or any(not isinstance(token, str) for token in name):
            return None
        found.append("".join(str(token) for token in name))
    return "/".join(found)


def expanded(pattern: str) -> list[str]:
    """Return the pattern with its braces expanded. Braces do not nest."""
    done = [""]
    rest = pattern
    while rest:
        head, brace, tail = _until(rest, "{")
        done = [each + head for each in done]
        if not brace:
            break
        inside, closed, rest = _until(tail, "}")
        if not closed or "{" in _unescaped(inside):
            raise ValueError("missing }, or nested braces")
        choices = list(_choices(inside))
        done = [each + choice for each in done for choice in choices]
        if len(done) > _MAX_ALTERNATIVES:
            raise ValueError(f"its braces expand to more than {_MAX_ALTERNATIVES} patterns")
    if any("}" in _unescaped(each) for each in done):
        raise ValueError("unmatched }")
    return done


def _until(text: str, sign: str) -> tuple[str, bool, str]:
    """Return the text before the first unescaped `sign`, whether it was found, and the text after it."""
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == sign:
            return text[:at], True, text[at + 1 :]
        else:
            at += 1
    return text, False, ""


def _unescaped(text: str) -> str:
    """Return the unescaped characters."""
    found = []
    at = 0
    while at < len(text):
        if text[at] == "\\":
            at += 2
        else:
            found.append(text[at])
            at += 1
    return "".join(found)


def _choices(text: str) -> Iterator[str]:
    more = True
    while more:
        choice, more, text = _until(text, ",")
        yield choice


def _names(pattern: str) -> list[_Name]:
    names: list[_Name] = []
    for text in pattern.split("/"):
        if text == "**":
            if names[-1:] != [DEEP]:
                names.append(DEEP)
            continue
        tokens = tuple(_tokens(text))
        spelled = "".join(token if isinstance(token, str) else "*" for token in tokens)
        if not tokens or spelled in (".", ".."):
            raise ValueError("it contains an empty name, . or ..")
        names.append(tokens)
    return names


def _tokens(text: str) -> Iterator[_Token]:
    signs = iter(text)
    before: _Token = ""
    for sign in signs:
        token: _Token = sign
        if sign == "\\":
            token = next(signs, "")
            if not token:
                raise ValueError("it has a backslash at the end of a name")
        elif sign == "*":
            token = ANY
            if before is ANY:
                raise ValueError("** must be a whole name between slashes")
        elif sign == "?":
            token = ONE
        elif sign == "[":
            raise ValueError("[ is not supported; write \\[ for the character")
        before = token
        yield token


def _match(pattern: Sequence[_Name], names: Sequence[str]) -> bool:
    # The pattern positions that are still possible: one pass over the names, like an automaton.
    possible = _closed(pattern, {0})
    for name in names:
        after = {
            at if pattern[at] is DEEP else at + 1 for at in possible if at < len(pattern) and _fits(pattern[at], name)
        }
        if not after:
            return False
        possible = _closed(pattern, after)
    return len(pattern) in possible


def _match_prefix(pattern: Sequence[_Name], names: Sequence[str]) -> bool:
    possible = _closed(pattern, {0})
    for name in names:
        possible = _closed(
            pattern,
            {
                at if pattern[at] is DEEP else at + 1
                for at in possible
                if at < len(pattern) and _fits(pattern[at], name)
            },
        )
    return any(at < len(pattern) for at in possible)


def _closed(pattern: Sequence[_Name], positions: set[int]) -> set[int]:
    """Add the positions after each `**`, which may match nothing."""
    for at in sorted(positions):
        if at < len(pattern) and pattern[at] is DEEP:
            positions.add(at + 1)
    return positions


def _fits(tokens: _Name, name: str) -> bool:
    if tokens is None:
        return True
    at = place = 0
    star = -1
    resume = 0
    while place < len(name):
        if at < len(tokens) and tokens[at] is ANY:
            star, resume = at, place
            at += 1
        elif at < len(tokens) and (tokens[at] is ONE or tokens[at] == name[place]):
            at += 1
            place += 1
        elif star >= 0:
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return all(token is ANY for token in tokens[at:])
