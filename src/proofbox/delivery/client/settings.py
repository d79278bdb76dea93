"""The backend's URL and key, read from the environment or a project's `.env` and checked before use.

MOZAIKS_BACKEND_URL   default: http://localhost:3000
INTERNAL_API_KEY      sent as X-Internal-Api-Key, never shown

The environment takes precedence. Anyone who works on a project can write its `.env`, so that file cannot redirect a key
that it does not contain itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec

from proofbox.core.files.plain import read_inside
from proofbox.core.loopback import is_loopback
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import SettingsInvalid

URL_VARIABLE = "MOZAIKS_BACKEND_URL"
KEY_VARIABLE = "INTERNAL_API_KEY"
DEFAULT_URL = "http://localhost:3000"

_NEW_KEY = f"export {KEY_VARIABLE}=$(python3 -I -c 'import secrets; print(secrets.token_urlsafe(32))')"
_DOTENV_LIMIT = 1 << 16
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_MIN_KEY = 8
# Typical placeholders in examples, such as "your-secret-key".
_PLACEHOLDER = re.compile(
    r"(?:your|my|the|some|an?|change|replace|insert|put|enter|add)?[-_ .]*(?:your|this|the|with|me|in)?[-_ .]*"
    r"(?:secret|internal|api|real|here|key|token|value|password|change[-_ ]?me|changeme|placeholder|example|test|dummy"
    r"|todo|fixme|xxx+|\.\.\.+|[-_ .])+",
    re.IGNORECASE,
)


class ApiKey:
    """The key to the backend. It cannot be printed: only `header_value` returns it, for its header."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        value = value.strip()
        problem = _problem(value)
        if problem:
            raise SettingsInvalid(
                f"{KEY_VARIABLE} {problem}",
                op="deliver settings",
                fix_hints=[
                    f"set {KEY_VARIABLE} to the key that the backend expects",
                    f"for your own backend: {_NEW_KEY}",
                ],
            )
        self._value = value

    def header_value(self) -> bytes:
        return self._value.encode("ascii")

    def matches(self, other: str) -> bool:
        """Compare `other` with the key in constant time."""
        # Compare digests, because compare_digest returns early for different lengths.
        given = hashlib.sha256(other.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(hashlib.sha256(self._value.encode()).digest(), given)

    def redactor(self) -> Redactor:
        """Return a redactor for this key and everything that looks like a secret."""
        return Redactor([self._value])

    def __repr__(self) -> str:
        return "<ApiKey>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key cannot be serialised")


def _problem(value: str) -> str:
    if not value:
        return "is not set"
    if not value.isascii() or not value.isprintable() or " " in value:
        return "contains characters that a header cannot: spaces, control characters or non-ASCII characters"
    if _PLACEHOLDER.fullmatch(value) or (value[0], value[-1]) in (("<", ">"), ("$", "}")) or len(set(value)) < 4:
        return "is a placeholder"
    return f"is shorter than {_MIN_KEY} characters" if len(value) < _MIN_KEY else ""


class Timeouts(msgspec.Struct, frozen=True):
    """Timeouts in seconds. `total` covers an operation with all its attempts and the delays between them."""

    connect: float = 5.0
    read: float = 30.0
    total: float = 300.0


class Retries(msgspec.Struct, frozen=True):
    """The number of attempts, and the backoff between them (exponential with jitter) unless the backend sets a
    delay.
    """

    attempts: int = 5
    wait_initial: float = 0.2
    wait_max: float = 10.0
    wait_jitter: float = 0.5


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's URL and key, and how long to try.

    For example:

        settings = proofbox.BackendSettings.from_environment(project=Path())
    """

    url: str
    """The backend's URL."""
    key: ApiKey
    """The API key."""
    timeouts: Timeouts = Timeouts()
    """The timeouts of requests."""
    retries: Retries = Retries()
    """The retry settings."""

    @classmethod
    def of(
        cls,
        key: ApiKey | str,
        url: str = DEFAULT_URL,
        *,
        allow_http: bool = False,
        timeouts: Timeouts = Timeouts(),  # noqa: B008 (frozen)
        retries: Retries = Retries(),  # noqa: B008
    ) -> BackendSettings:
        """Return checked settings: an http(s) URL without credentials, and https to other hosts unless `allow_http`."""
        held = key if isinstance(key, ApiKey) else ApiKey(key)
        return cls(url=checked_url(url, allow_http=allow_http), key=held, timeouts=timeouts, retries=retries)

    @classmethod
    def from_environment(
        cls,
        env: Mapping[str, str] | None = None,
        *,
        project: Path | None = None,
        url: str | None = None,
        allow_http: bool = False,
    ) -> BackendSettings:
        """Read the settings from the environment, and missing ones from `.env` in `project`.

        Raises SettingsInvalid if a key from the environment would be sent to a URL from the file.
        """
        given = os.environ if env is None else env
        file = _dotenv(project)
        key = _key(given, file)
        address = url or given.get(URL_VARIABLE)
        if not address:
            address = file.get(URL_VARIABLE) or DEFAULT_URL
            if given.get(KEY_VARIABLE) and address.rstrip("/") != DEFAULT_URL:
                raise _refusal(
                    f"is from .env but {KEY_VARIABLE} is not: a project's file must not decide where your key is sent",
                    f"if you trust that URL, set it yourself: export {URL_VARIABLE}=…, or --backend-url",
                    f"or put the key for it in the same .env, and unset {KEY_VARIABLE}",
                )
        return cls.of(key, address, allow_http=allow_http)


def known_secrets(key: ApiKey | None, env: Mapping[str, str] | None = None) -> Redactor:
    """Return a redactor for all secrets of this process: the key, and variables with secret names."""
    given = dict(os.environ if env is None else env)
    if key is not None:
        given[KEY_VARIABLE] = key.header_value().decode()
    return Redactor.from_environment(given, [KEY_VARIABLE])


def key_from_environment(env: Mapping[str, str] | None = None, *, project: Path | None = None) -> ApiKey:
    return _key(os.environ if env is None else env, _dotenv(project))


def _key(given: Mapping[str, str], file: Mapping[str, str]) -> ApiKey:
    return ApiKey(given.get(KEY_VARIABLE) or file.get(KEY_VARIABLE, ""))


def _dotenv(project: Path | None) -> dict[str, str]:
    """Return the two variables from the project's `.env`, if present. Values are not expanded."""
    if project is None:
        return {}
    path = project / ".env"
    try:
        text = read_inside(project, Path(path.name), _DOTENV_LIMIT).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except OSError as error:
        raise SettingsInvalid(
            f"cannot read {path}: {error.strerror}",
            op="deliver settings",
            fix_hints=["replace it with a regular file, or remove it: proofbox reads a project's .env"],
        ) from None
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and match[1] in (URL_VARIABLE, KEY_VARIABLE):
            value = match[2]
            if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
                found[match[1]] = value[1:-1]
            else:
                found[match[1]] = value.split(" #")[0].rstrip()
    return found


def checked_url(url: str, *, allow_http: bool = False) -> str:
    """Return the URL without a trailing slash. Raises SettingsInvalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _refusal("is malformed", f"set {URL_VARIABLE}, for example to {DEFAULT_URL}") from None
    if parts.username is not None or parts.password is not None:
        # The URL is not shown: the part before the @ may be a secret.
        raise _refusal("contains a user name or password", "remove it: the key is sent in a header")
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise _refusal("is not an http or https URL", f"set {URL_VARIABLE}, for example to {DEFAULT_URL}")
    if parts.scheme == "http" and not is_loopback(host) and not allow_http:
        raise _refusal(
            f"is http to another machine ({host}): the key would be sent unencrypted",
            "use https, or allow it explicitly: --allow-http",
        )
    return url.rstrip("/")


def _refusal(reason: str, *hints: str) -> SettingsInvalid:
    return SettingsInvalid(f"the backend's URL {reason}", op="deliver settings", fix_hints=hints)
