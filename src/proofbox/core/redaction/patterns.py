"""Patterns that recognise unknown secrets by their format, such as API keys and private keys.

Each pattern has literals that are searched for first, because nearly all text is clean and a substring search is much
cheaper than a regular expression. Backtracking is bounded: each unbounded repetition is over one character class and
starts where a run of it starts; all others are bounded. Every pattern except `private_key` matches within one line,
which the stream redactor relies on.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SECRET_VARIABLE = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(?<=[A-Z0-9]_)PWD|WEBHOOK(?:_UR[LI])?)S?"
    r"(?![A-Z0-9])(?!.*_(?:FILE|PATH|DIR)$)",
    re.IGNORECASE,
)
"""Environment variables whose values are secrets. Those ending in _FILE, _PATH or _DIR only hold a path."""


class SecretPattern(NamedTuple):
    """A pattern for one kind of secret.

    `literals` are lower-case; `regex` is tried only if one of them occurs in the lower-cased text. `regex` is ASCII and
    used for text and bytes; a group called `keep` preserves the part before the secret.
    """

    kind: str
    literals: tuple[str, ...]
    regex: str


_NAMES = (
    r"(?:password|passwd|api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?"
    r"|(?:access|auth|refresh|api)[_-]?token|[_-]token)"
)
_PEM_LABEL = r"[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_PEM_BODY = r"A-Za-z0-9+/=\s:,.\\()\[\]-"

DEFAULT_PATTERNS = (
    # An unfinished block, as in a truncated preview, matches up to the first character that can't be key material.
    SecretPattern(
        "private_key",
        ("private key",),
        rf"-----BEGIN {_PEM_LABEL}[{_PEM_BODY}]*?(?:-----END {_PEM_LABEL}|(?=[^{_PEM_BODY}])|\Z)",
    ),
    SecretPattern(
        "api_key",
        ("sk-",),
        r"(?<![A-Za-z0-9])sk-(?:(?:proj|ant|svcacct|admin|or)-[A-Za-z0-9_-]{12,}|[A-Za-z0-9_-]{20,})",
    ),
    SecretPattern(
        "github",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})",
    ),
    SecretPattern("aws", ("akia", "asia"), r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    SecretPattern("slack", ("xox",), r"(?<![A-Za-z0-9])xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    SecretPattern(
        "jwt",
        ("eyj",),
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){1,3}",
    ),
    SecretPattern(
        "authorization",
        ("authorization",),
        r"(?P<keep>(?i:authorization)[\\\"']{0,4}[ \t]{0,4}[:=][ \t]{0,4}[\\\"']{0,4})"
        r"(?!(?:[A-Za-z]{1,20}[ \t]{1,4})?\[redacted)"
        r"(?i:(?:basic|bearer|token|apikey|digest|negotiate)[ \t]{1,4})?[^\s\"'\\,;\[]{4,}",
    ),
    # "Bearer authentication" is prose: a token contains a digit.
    SecretPattern(
        "bearer",
        ("bearer",),
        r"(?P<keep>(?<![A-Za-z0-9])(?i:bearer)[ \t]{1,4})(?=[A-Za-z._~+/=-]{0,80}[0-9])[A-Za-z0-9._~+/=-]{12,}",
    ),
    # Not `password=get_password()`, `api_key=os.environ["X"]` or `token=$TOKEN`: code is not a secret.
    SecretPattern(
        "assignment",
        ("passw", "api_key", "apikey", "api-key", "secret", "token"),
        rf"(?P<keep>(?i:{_NAMES})[\\\"']{{0,4}}[ \t]{{0,4}}[:=][ \t]{{0,4}}[\\\"']{{0,4}})"
        r"(?!\$|[A-Za-z_][A-Za-z0-9_.]{0,80}[(\[])[^\s\"'\\,;&<>(){}\[\]]{6,}",
    ),
    SecretPattern(
        "userinfo",
        ("://",),
        r"(?P<keep>://)(?:[^\s/?#@:\"'<>\\\[]{0,128}:[^\s/?#\"'<>\\\[]{1,256}|[^\s/?#@:\"'<>\\\[]{16,256})(?=@)",
    ),
)

SECRET_MEMBER = re.compile(rf"(?:{_NAMES}|authorization)\Z", re.IGNORECASE)
"""Names of JSON members whose string values are secrets. Only the end of the name is matched."""
