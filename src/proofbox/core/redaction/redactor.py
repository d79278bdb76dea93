"""Remove secrets from everything that is stored or displayed.

There are two layers. The first replaces exact values with `[redacted]`: the secrets known to this process, in their
usual encodings (plain, URL-quoted, JSON-escaped, hex, base64 at any alignment). The second replaces unknown values that
look like a key with `[redacted:kind]`.

Clean text is the common case and stays cheap: a regular expression runs only if one of its literals occurs in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, AnyStr, Self

from proofbox.core.canonical import MAX_DEPTH
from proofbox.core.redaction.key_files import with_key_files
from proofbox.core.redaction.patterns import DEFAULT_PATTERNS, SECRET_MEMBER, SECRET_VARIABLE, SecretPattern
from proofbox.core.redaction.spellings import MIN_SECRET, spellings
from proofbox.core.text import GAP, preview, preview_end

_SHORTEST_LIKELY = 8
_COUNT = re.compile(r"[0-9]{1,9}")  # MAX_TOKENS=100000 is a setting, not a secret

# Longer than any pattern needs to match, and longer than the key blocks in use.
_TAIL = 1 << 14
# Truncated texts are never shorter than this. In a shorter text, the beginning of a secret (for example of one that is
# a path) is not treated as a part of it.
_SHORTEST_CUT = 200
_MAX_GAPS = 20  # proofbox inserts one; an agent can print any number
_LONGEST_NAME, _MAX_NAMES = 64, 1024  # bounds on the cache of member names, since agents can invent names
_LONGEST_CACHED, _MAX_CACHED = 128, 2048  # bounds on the cache of redacted texts

_MARKS = ("\\u", "%")  # that introduce escapes
_WITHOUT_TEXT = frozenset((int, float, bool, type(None)))

_Compiled = tuple[tuple[str, ...], re.Pattern[str], str]


def _compile(pattern: SecretPattern) -> _Compiled:
    kept = r"\g<keep>" if "(?P<keep>" in pattern.regex else ""
    return pattern.literals, re.compile(pattern.regex, re.ASCII), f"{kept}[redacted:{pattern.kind}]"


class _Layers:
    """Both layers, for str. `forms` are the exact encodings of the secrets, longest first.

    Bytes are processed as Latin-1, one character per byte: searching str is twice as fast as searching bytes.
    """

    def __init__(self, forms: list[str], patterns: list[_Compiled]) -> None:
        self.forms = forms
        # Most texts have no escapes: one search per kind of escape avoids the search for most forms.
        self._by_mark = [(mark, [form for form in forms if _mark(form) == mark]) for mark in ("", *_MARKS)]
        self.patterns = patterns
        self.tail = max(_TAIL, len(forms[0]) if forms else 0)
        self._redact_cached = lru_cache(_MAX_CACHED)(self._redact)
        """Evidence repeats short texts, such as the ids of threads and turns in every event."""

    def has_exact(self, text: str) -> bool:
        return any(form in text for form in self._likely(text))

    def _likely(self, text: str) -> Iterator[str]:
        for mark, forms in self._by_mark:
            if mark in text:
                yield from forms

    def redact(self, text: str, *, cut: bool = False) -> str:
        """Redact `text`. With `cut` it may be part of a longer text, and its ends may be parts of secrets."""
        if len(text) <= _LONGEST_CACHED:
            return self._redact_cached(text)
        return self._redact(text, cut=cut and len(text) >= _SHORTEST_CUT)

    def _redact(self, text: str, *, cut: bool = False) -> str:
        exact = self.exact_spans(text)
        if cut:
            exact = _merged(exact + self._parts_at_ends(text))
        if exact:
            text = _replaced(text, [(start, end, "[redacted]") for start, end in exact])
        folded = text.lower()
        for literals, regex, replacement in self.patterns:
            for literal in literals:
                if literal in folded:
                    text = regex.sub(replacement, text)
                    break
        return text

    def exact_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of exact secrets. Overlapping spans are merged, so that no part of a secret remains.

        One substring search per form is faster than one regular expression, which would try each form at each byte.
        """
        found = []
        for form in self._likely(text):
            if form in text:
                at = text.find(form)
                while at >= 0:
                    found.append((at, at + len(form)))
                    at = text.find(form, at + 1)
        return _merged(found) if found else found

    def beginning(self, text: str) -> str:
        """Redact the beginning of a longer text, without its end, which may be part of an incomplete secret."""
        spans, most = self.spans(text), len(text) - self.tail
        cut = before_spans(most, spans)
        return self.redact(text[:cut]) + ("[redacted]" if cut < most else "")

    def end(self, text: str) -> str:
        """Redact the end of a longer text, without its beginning, which may be part of an incomplete secret."""
        cut = self.tail
        for start, end in self.spans(text):
            if start <= cut < end:
                cut = end
        return ("[redacted]" if cut > self.tail else "") + self.redact(text[cut:])

    def _parts_at_ends(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of partial secrets at cuts: ends of secrets after a cut, beginnings before one."""
        found = []
        gaps = [match.span() for match in islice(re.finditer(GAP, text), _MAX_GAPS)]
        for form in self.forms:
            for first in (0, *(end for _, end in gaps)):
                at = text.rfind(form[-MIN_SECRET:], first, first + len(form) - 1)
                while at >= 0 and not form.endswith(text[first : at + MIN_SECRET]):
                    at = text.rfind(form[-MIN_SECRET:], first, at + MIN_SECRET - 1)
                if at >= 0:
                    found.append((first, at + MIN_SECRET))
            for last in (len(text), *(start for start, _ in gaps)):
                at = text.find(form[:MIN_SECRET], max(0, last - len(form) + 1), last)
                while at >= 0 and not form.startswith(text[at:last]):
                    at = text.find(form[:MIN_SECRET], at + 1, last)
                if at >= 0:
                    found.append((at, last))
        return found

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans that either layer would replace, sorted by start; they may overlap."""
        found = self.exact_spans(text)
        # Patterns run after exact secrets are replaced. To every pattern a bracket is equivalent to "[redacted]".
        text = _replaced(text, [(start, end, "[" * (end - start)) for start, end in found])
        folded = text.lower()
        for literals, regex, _ in self.patterns:
            if any(literal in folded for literal in literals):
                found += [match.span() for match in regex.finditer(text)]
        return sorted(found)


def _mark(form: str) -> str:
    return next((mark for mark in _MARKS if mark in form), "")


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _replaced(text: str, replacements: list[tuple[int, int, str]]) -> str:
    pieces, done = [], 0
    for start, end, replacement in replacements:
        pieces += [text[done:start], replacement]
        done = end
    return "".join([*pieces, text[done:]])


class Redactor:
    """Replaces secrets in text, bytes and JSON values. Immutable and thread-safe; its `repr` shows no secrets.

    For example:

        proofbox.Redactor(["hunter2"]).redact("the password is hunter2")
    """

    def __init__(
        self, secrets: Iterable[str | bytes] = (), patterns: Iterable[SecretPattern] = DEFAULT_PATTERNS
    ) -> None:
        forms: set[bytes] = set()
        for secret in secrets:
            forms |= spellings(secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else bytes(secret))
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        compiled = [_compile(pattern) for pattern in patterns]
        self._raw = _Layers([form.decode("latin-1") for form in ordered], compiled)
        self._text = _Layers([form.decode("utf-8", "surrogateescape") for form in ordered], compiled)
        self._plain: set[str] = set()
        """Cache of member names that neither are nor denote secrets: documents repeat the same names."""

    @classmethod
    def from_environment(
        cls,
        env: Mapping[str, str],
        names: Iterable[str] = (),
        *,
        name_pattern: re.Pattern[str] = SECRET_VARIABLE,
        patterns: Iterable[SecretPattern] = DEFAULT_PATTERNS,
    ) -> Self:
        """Create a redactor for the values of the variables in `names` and of variables whose names look secret."""
        wanted = set(names)
        secrets = [
            value
            for name, value in env.items()
            if name in wanted or (name_pattern.search(name) and not _COUNT.fullmatch(value))
        ]
        return cls(secrets, patterns)

    @classmethod
    def for_evidence(cls, env: Mapping[str, str], names: Iterable[str] = ()) -> Self:
        """Create a redactor for evidence, which is refused if it contains a secret: only long values are secrets there.

        A short value of a variable that is not in `names` is likely a word, as in `SIGNING_KEY=release`. Values of
        `names` can be in files.
        """
        wanted = set(names)
        given = with_key_files(env, wanted)
        likely = {name: value for name, value in given.items() if name in wanted or len(value) >= _SHORTEST_LIKELY}
        return cls.from_environment(likely, wanted)

    def redact(self, text: AnyStr, *, cut: bool = False) -> AnyStr:
        """Return `text` (str or bytes) without secrets. With `cut` it may have been truncated in the middle of one."""
        if isinstance(text, str):
            return self._text.redact(text, cut=cut)
        return self._raw.redact(text.decode("latin-1"), cut=cut).encode("latin-1")

    def preview(self, data: bytes | str, limit: int) -> tuple[str, bool]:
        """Return the beginning of the redacted text in at most `limit` bytes of UTF-8, and whether it was truncated.

        The cost does not depend on the length of the text. Redaction comes before truncation: otherwise the beginning
        of a secret that crosses the limit would remain, and nothing would recognise it.
        """
        window = data[: limit + 2 * self._raw.tail]
        layers, text = self._in_layers(window)
        whole = len(window) == len(data)
        clean = layers.redact(text, cut=True) if whole else layers.beginning(text)
        shown, cut = preview(clean if isinstance(data, str) else clean.encode("latin-1"), limit)
        return shown, cut or not whole

    def preview_end(self, data: bytes | str, limit: int) -> tuple[str, bool]:
        """Return the end of the redacted text in at most `limit` bytes of UTF-8, and whether it was truncated."""
        window = data[-limit - 2 * self._raw.tail :]
        layers, text = self._in_layers(window)
        whole = len(window) == len(data)
        clean = layers.redact(text, cut=True) if whole else layers.end(text)
        shown, cut = preview_end(clean if isinstance(data, str) else clean.encode("latin-1"), limit)
        return shown, cut or not whole

    def _in_layers(self, data: bytes | str) -> tuple[_Layers, str]:
        return (self._text, data) if isinstance(data, str) else (self._raw, data.decode("latin-1"))

    def redact_json(self, value: Any) -> Any:
        """Return a copy of a JSON value without secrets, even in member names. Its strings may be truncated texts.

        The string value of a member with a secret's name (`password`, `Authorization`) is replaced entirely.
        """
        return self._redact_json(value, MAX_DEPTH)

    def _redact_json(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text.redact(value, cut=True)
        if isinstance(value, bytes):
            return self.redact(value, cut=True)
        if not isinstance(value, dict | list | tuple):
            return value
        if depth == 0:
            return "[redacted:too_deep]"
        if not isinstance(value, dict):
            return [self._redact_json(item, depth - 1) for item in value]
        result: dict[Any, Any] = {}
        for name, item in value.items():
            if name in self._plain:
                result[name] = item if type(item) in _WITHOUT_TEXT else self._redact_json(item, depth - 1)
                continue
            clean = name
            if isinstance(name, str):
                clean = self.redact(name)
                secret = SECRET_MEMBER.search(name) is not None
                if clean != name:
                    clean = _unused(clean, value, result)
                elif not secret and len(name) <= _LONGEST_NAME and len(self._plain) < _MAX_NAMES:
                    self._plain.add(name)
                if secret and isinstance(item, str) and len(item) >= MIN_SECRET:
                    result[clean] = "[redacted:assignment]"
                    continue
            result[clean] = self._redact_json(item, depth - 1)
        return result

    @property
    def longest_secret(self) -> int:
        """The length of the longest encoding: the required overlap of chunks in a scan; 0 without secrets."""
        return len(self._raw.forms[0]) if self._raw.forms else 0

    def contains_secret(self, data: bytes) -> bool:
        """Return whether `data` contains an exact secret in any encoding. Patterns don't count: they may be wrong."""
        return self._raw.has_exact(data.decode("latin-1"))

    def __repr__(self) -> str:
        return f"<Redactor: {len(self._raw.forms)} spellings, {len(self._raw.patterns)} patterns>"

    def __reduce__(self) -> Any:
        raise TypeError("a Redactor contains secrets and can't be serialised")


def before_spans(cut: int, spans: list[tuple[int, int]]) -> int:
    """Return the furthest position up to `cut` that is neither in a span nor at its end."""
    for start, end in reversed(spans):
        if start < cut <= end:  # `<=`, because a pattern may look ahead beyond its match
            cut = start
    return cut


def _unused(name: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Return a unique member name, so that two names that are redacted to the same text stay two members."""
    candidate, number = name, 1
    while candidate in before or candidate in after:
        number += 1
        candidate = f"{name} ({number})"
    return candidate
