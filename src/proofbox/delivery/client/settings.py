"""Where the backend is and with what key: read from the environment or a project's `.env`, and checked before use.

MOZAIKS_BACKEND_URL   http://localhost:3000 unless set
INTERNAL_API_KEY      sent as X-Internal-Api-Key, and shown to nobody

Each is taken from the environment first. A project's file can be written by whoever works on the project, so it never
decides where a key goes that it does not hold itself.
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

from proofbox.core.files.plain import read_plain
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
# What people leave in an example: the seed's own "your-secret-key", and its kin.
_PLACEHOLDER = re.compile(
    r"(?:your|my|the|some|an?|change|replace|insert|put|enter|add)?[-_ .]*(?:your|this|the|with|me|in)?[-_ .]*"
    r"(?:secret|internal|api|real|here|key|token|value|password|change[-_ ]?me|changeme|placeholder|example|test|dummy"
    r"|todo|fixme|xxx+|\.\.\.+|[-_ .])+",
    re.IGNORECASE,
)


class ApiKey:
    """The key to the backend. It has no text: only `header_value` gives it out, for the one header it goes into."""

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
                    f"for a backend of your own: {_NEW_KEY}",
                ],
            )
        self._value = value

    def header_value(self) -> bytes:
        return self._value.encode("ascii")

    def matches(self, other: str) -> bool:
        """Whether `other` is the key, in a time that says nothing about either."""
        # Digests, because comparing ends early where lengths differ.
        given = hashlib.sha256(other.encode("utf-8", "surrogateescape")).digest()
        return hmac.compare_digest(hashlib.sha256(self._value.encode()).digest(), given)

    def redactor(self) -> Redactor:
        """One that knows this key, besides all that looks like a secret."""
        return Redactor([self._value])

    def __repr__(self) -> str:
        return "<ApiKey>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not serialised")


def _problem(value: str) -> str:
    if not value:
        return "is not set"
    if not value.isascii() or not value.isprintable() or " " in value:
        return "holds what no header can: spaces, control characters or letters beyond ASCII"
    if _PLACEHOLDER.fullmatch(value) or (value[0], value[-1]) in (("<", ">"), ("$", "}")) or len(set(value)) < 4:
        return "is a placeholder"
    return f"is shorter than {_MIN_KEY} characters" if len(value) < _MIN_KEY else ""


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds. `total` is for an operation with all its attempts and the waiting between them."""

    connect: float = 5.0
    read: float = 30.0
    total: float = 300.0


class Retries(msgspec.Struct, frozen=True):
    """How often to try, and how long to wait in between unless the backend says: growing, with jitter."""

    attempts: int = 5
    wait_initial: float = 0.2
    wait_max: float = 10.0
    wait_jitter: float = 0.5


class BackendSettings(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    """Where the backend is."""
    key: ApiKey
    """What it knows us by."""
    timeouts: Timeouts = Timeouts()
    """How long to wait for it."""
    retries: Retries = Retries()
    """How often to try again, and when."""

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
        """Settings that hold: an http(s) address without credentials, and TLS off this machine unless `allow_http`."""
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
        """From the environment; what it lacks, from `.env` of `project`.

        A key of the environment's never goes to an address of the file's: that is refused as SettingsInvalid.
        """
        given = os.environ if env is None else env
        file = _dotenv(project)
        key = _key(given, file)
        address = url or given.get(URL_VARIABLE)
        if not address:
            address = file.get(URL_VARIABLE) or DEFAULT_URL
            if given.get(KEY_VARIABLE) and address.rstrip("/") != DEFAULT_URL:
                raise _refusal(
                    f"is from .env, and {KEY_VARIABLE} is not: a project's file does not decide where your key goes",
                    f"if you know that address, name it yourself: export {URL_VARIABLE}=…, or --backend-url",
                    f"or keep the key that goes there in the same .env, and unset {KEY_VARIABLE}",
                )
        return cls.of(key, address, allow_http=allow_http)


def known_secrets(key: ApiKey | None, env: Mapping[str, str] | None = None) -> Redactor:
    """One that knows every secret this process does: the key, and what the environment holds under secret names."""
    given = dict(os.environ if env is None else env)
    if key is not None:
        given[KEY_VARIABLE] = key.header_value().decode()
    return Redactor.from_environment(given, [KEY_VARIABLE])


def key_from_environment(env: Mapping[str, str] | None = None, *, project: Path | None = None) -> ApiKey:
    return _key(os.environ if env is None else env, _dotenv(project))


def _key(given: Mapping[str, str], file: Mapping[str, str]) -> ApiKey:
    return ApiKey(given.get(KEY_VARIABLE) or file.get(KEY_VARIABLE, ""))


def _dotenv(project: Path | None) -> dict[str, str]:
    """The two variables, if the project's file has them. No expansion: a value is what is written there."""
    if project is None:
        return {}
    path = project / ".env"
    try:
        text = read_plain(path, _DOTENV_LIMIT).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except OSError as error:
        raise SettingsInvalid(
            f"{path} can't be read: {error.strerror}",
            op="deliver settings",
            fix_hints=["remove it, or make it a file", "see who put it there: proofbox reads a project's .env"],
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
    """The address without a slash at its end, or SettingsInvalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _refusal("is not an address", f"set {URL_VARIABLE}, for example to {DEFAULT_URL}") from None
    if parts.username is not None or parts.password is not None:
        # Not shown: what is before the @ may be a secret.
        raise _refusal("holds a user name or password", "remove it: the key goes into a header of its own")
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise _refusal("is not an http or https address", f"set {URL_VARIABLE}, for example to {DEFAULT_URL}")
    if parts.scheme == "http" and not is_loopback(host) and not allow_http:
        raise _refusal(
            f"is http to another machine ({host}): the key would travel in the open",
            "use https, or allow it knowingly: --allow-http",
        )
    return url.rstrip("/")


def _refusal(reason: str, *hints: str) -> SettingsInvalid:
    return SettingsInvalid(f"the backend's address {reason}", op="deliver settings", fix_hints=hints)
