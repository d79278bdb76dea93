"""Keeping secrets out of everything that is written down or shown.

Two layers. Exact values come first: the secrets this process knows, in the spellings they travel in (as they are,
URL-quoted, JSON-escaped, inside base64 at any alignment). Then patterns: what looks like a key, though nobody told us.
Exact values become `[redacted]`, patterns `[redacted:kind]`.

Clean text is the common case and stays cheap: each value and each pattern has a literal that must occur before a
regular expression runs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, AnyStr, Self
from urllib.parse import quote, quote_plus

from proofbox.core.canonical import MAX_DEPTH
from proofbox.core.secret_patterns import DEFAULT_PATTERNS, SECRET_MEMBER, SECRET_VARIABLE, Pattern

MIN_SECRET = 6  # shorter values occur by chance, and redacting them would shred the text
_MIN_BASE64 = 8
_COUNT = re.compile(r"[0-9]{1,9}")  # MAX_TOKENS=100000 is a setting, not a secret

_Compiled = tuple[tuple[str, ...], re.Pattern[str], str]


def _compile(pattern: Pattern) -> _Compiled:
    kept = r"\g<keep>" if "(?P<keep>" in pattern.regex else ""
    return pattern.literals, re.compile(pattern.regex, re.ASCII), f"{kept}[redacted:{pattern.kind}]"


class _Layers:
    """Both layers over str. `forms` are the exact spellings, longest first.

    Bytes pass through here as Latin-1, one character a byte: searching str is twice as fast as searching bytes.
    """

    def __init__(self, forms: list[str], patterns: list[_Compiled]) -> None:
        self.forms = forms
        self.patterns = patterns

    def has_exact(self, text: str) -> bool:
        return any(form in text for form in self.forms)

    def redact(self, text: str) -> str:
        if exact := self.exact_spans(text):
            text = _replaced(text, [(start, end, "[redacted]") for start, end in exact])
        folded = text.lower()
        for literals, regex, replacement in self.patterns:
            for literal in literals:
                if literal in folded:
                    text = regex.sub(replacement, text)
                    break
        return text

    def exact_spans(self, text: str) -> list[tuple[int, int]]:
        """Where secrets stand, overlapping ones merged: replacing one must not leave the rest of another.

        One substring search a form beats one regular expression of them all, which would try each form at each byte.
        """
        found = []
        for form in self.forms:
            if form in text:
                at = text.find(form)
                while at >= 0:
                    found.append((at, at + len(form)))
                    at = text.find(form, at + 1)
        merged: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if merged and start < merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return merged

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where either layer would act, in order of their starts; they may overlap."""
        found = self.exact_spans(text)
        # Patterns meet text without the exact secrets. A bracket is to every pattern what "[redacted]" is.
        text = _replaced(text, [(start, end, "[" * (end - start)) for start, end in found])
        folded = text.lower()
        for literals, regex, _ in self.patterns:
            if any(literal in folded for literal in literals):
                found += [match.span() for match in regex.finditer(text)]
        return sorted(found)


def _replaced(text: str, replacements: list[tuple[int, int, str]]) -> str:
    pieces, done = [], 0
    for start, end, replacement in replacements:
        pieces += [text[done:start], replacement]
        done = end
    return "".join([*pieces, text[done:]])


class Redactor:
    """Replaces secrets in text, bytes and JSON values. Immutable, safe to share, and silent about what it knows."""

    def __init__(self, secrets: Iterable[str | bytes] = (), patterns: Iterable[Pattern] = DEFAULT_PATTERNS) -> None:
        forms: set[bytes] = set()
        for secret in secrets:
            forms |= _forms(secret.encode("utf-8", "surrogateescape") if isinstance(secret, str) else bytes(secret))
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        compiled = [_compile(pattern) for pattern in patterns]
        self._raw = _Layers([form.decode("latin-1") for form in ordered], compiled)
        self._text = _Layers([form.decode("utf-8", "surrogateescape") for form in ordered], compiled)

    @classmethod
    def from_environment(
        cls,
        env: Mapping[str, str],
        names: Iterable[str] = (),
        *,
        name_pattern: re.Pattern[str] = SECRET_VARIABLE,
        patterns: Iterable[Pattern] = DEFAULT_PATTERNS,
    ) -> Self:
        """Know the values of the variables in `names`, and of those whose names look secret."""
        wanted = set(names)
        secrets = [
            value
            for name, value in env.items()
            if name in wanted or (name_pattern.search(name) and not _COUNT.fullmatch(value))
        ]
        return cls(secrets, patterns)

    def redact(self, text: AnyStr) -> AnyStr:
        """`text` (str or bytes) without secrets."""
        if isinstance(text, str):
            return self._text.redact(text)
        return self._raw.redact(text.decode("latin-1")).encode("latin-1")

    def redact_json(self, value: Any) -> Any:
        """A copy of a JSON value without secrets, in member names too.

        The string value of a member whose name says it is a secret (`password`, `Authorization`) goes whole.
        """
        return self._redact_json(value, MAX_DEPTH)

    def _redact_json(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        if isinstance(value, bytes):
            return self.redact(value)
        if not isinstance(value, dict | list | tuple):
            return value
        if depth == 0:
            return "[redacted:too_deep]"
        if not isinstance(value, dict):
            return [self._redact_json(item, depth - 1) for item in value]
        result: dict[Any, Any] = {}
        for name, item in value.items():
            clean = name
            if isinstance(name, str):
                clean = self.redact(name)
                if clean != name:
                    clean = _unused(clean, value, result)
                if isinstance(item, str) and len(item) >= MIN_SECRET and SECRET_MEMBER.search(name):
                    result[clean] = "[redacted:assignment]"
                    continue
            result[clean] = self._redact_json(item, depth - 1)
        return result

    @property
    def longest_secret(self) -> int:
        """The length of the longest spelling: how much the pieces of a scanned stream must overlap. 0: no secrets."""
        return len(self._raw.forms[0]) if self._raw.forms else 0

    def contains_secret(self, data: bytes) -> bool:
        """Whether an exact secret, in any of its spellings, is in `data`. Patterns don't count: they may be wrong."""
        return self._raw.has_exact(data.decode("latin-1"))

    def __repr__(self) -> str:
        return f"<Redactor: {len(self._raw.forms)} spellings, {len(self._raw.patterns)} patterns>"

    def __reduce__(self) -> Any:
        raise TypeError("a Redactor holds secrets and is not serialised")


class StreamRedactor:
    """Redacts bytes that arrive in chunks, as if they had come at once: a secret split between chunks is found.

    Output is given out line by line (LF or CR), since no pattern but a private key block, and no secret without a line
    break of its own, crosses lines; where one may, its lines are held back until it is decided. At most HOLD_BACK bytes
    (or four times the longest secret, if that is more) are held. A longer line is given out in parts: exact secrets are
    still found across the parts, and patterns as long as they are shorter than the hold-back.
    """

    HOLD_BACK = 1 << 16
    _TAIL = 1 << 12  # longer than what any pattern needs to show itself

    def __init__(self, redactor: Redactor) -> None:
        layers = self._layers = redactor._raw
        self._held = bytearray()
        self._multiline = [form for form in layers.forms if "\n" in form or "\r" in form]
        self._tail = max(self._TAIL, len(layers.forms[0]) if layers.forms else 0)
        self._limit = max(self.HOLD_BACK, 4 * self._tail)

    def feed(self, chunk: bytes) -> bytes:
        """Take the next chunk, and return what can be given out now: redacted, and possibly empty."""
        self._held += chunk
        if len(self._held) <= self._limit and b"\n" not in chunk and b"\r" not in chunk:
            return b""
        held = self._held.decode("latin-1")
        cut = self._safe_cut(held)
        del self._held[:cut]
        return self._layers.redact(held[:cut]).encode("latin-1")

    def finish(self) -> bytes:
        """The rest, when the stream has ended."""
        rest = self._layers.redact(self._held.decode("latin-1")).encode("latin-1")
        self._held.clear()
        return rest

    def _safe_cut(self, held: str) -> int:
        """The furthest position that no secret reaches across, now or with bytes to come."""
        spans = self._layers.spans(held)
        cut = _line_start(held, min(len(held), self._partial_start(held)))
        for start, end in reversed(spans):
            if start < cut and (end > cut or end == len(held)):
                cut = _line_start(held, start)
        if len(held) - cut <= self._limit:
            return cut
        cut = _before_spans(len(held) - self._tail, spans)
        if len(held) - cut <= self._limit:
            return cut
        # Even a secret that repeats itself without end must not be held without end.
        cut = _before_spans(len(held) - self._tail, self._layers.exact_spans(held))
        return max(cut, len(held) - self._limit)

    def _partial_start(self, held: str) -> int:
        """Where the earliest beginning of a secret with line breaks stands at the end of `held`."""
        earliest = len(held)
        for form in self._multiline:
            at = held.find(form[:1], max(0, len(held) - len(form) + 1))
            while 0 <= at < earliest:
                if form.startswith(held[at:]):
                    earliest = at
                at = held.find(form[:1], at + 1)
        return earliest


def _line_start(data: str, position: int) -> int:
    return max(data.rfind("\n", 0, position), data.rfind("\r", 0, position)) + 1


def _before_spans(cut: int, spans: list[tuple[int, int]]) -> int:
    for start, end in reversed(spans):
        if start < cut < end:
            cut = start
    return cut


def _unused(name: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> str:
    """Two member names that become one text stay two members."""
    candidate, number = name, 1
    while candidate in before or candidate in after:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def _forms(secret: bytes) -> set[bytes]:
    """The spellings of one secret; none for a value too short to be told from chance."""
    secret = secret.strip(b" \t\r\n")  # as read from a file
    if len(secret) < MIN_SECRET:
        return set()
    forms = {secret}
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        forms.add(quoted.encode())
        forms.add(re.sub("%..", lambda escape: escape[0].lower(), quoted).encode())
    text = secret.decode("utf-8", "surrogateescape")
    for ascii_only in (True, False):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        twice = json.dumps(once, ensure_ascii=ascii_only)[1:-1]  # a tool call's arguments are JSON inside JSON
        for escaped in (once, twice):
            forms.add(escaped.encode("utf-8", "surrogateescape"))
    for alphabet in (b"+/", b"-_"):
        forms.add(base64.b64encode(secret, alphabet).rstrip(b"="))
        forms |= {form for lead in range(3) if len(form := _inside_base64(secret, lead, alphabet)) >= _MIN_BASE64}
    return forms


def _inside_base64(secret: bytes, lead: int, alphabet: bytes) -> bytes:
    """The base64 digits that depend on the secret alone when `lead` bytes (mod 3) were encoded before it."""
    digits = base64.b64encode(bytes(lead) + secret, alphabet)
    return digits[-(-lead * 8 // 6) : (lead + len(secret)) * 8 // 6]
