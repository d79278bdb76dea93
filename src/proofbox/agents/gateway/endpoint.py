"""The endpoint of a model: its base URL and its key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from proofbox.agents.gateway.apis import api_of
from proofbox.core.loopback import is_loopback
from proofbox.core.redaction.key_files import SUFFIX, with_key_files
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import AuthFailed, UsageError

KEY_HEADERS = ("x-api-key", "x-goog-api-key")
"""The only headers in which the APIs of Anthropic and Google accept an API key."""
_OWN_HEADERS = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}
_OWN_HOSTS = ("api.anthropic.com", "generativelanguage.googleapis.com")
_TOKENS = ("sk-ant-oat", "ya29.")
"""The prefixes of OAuth tokens of Anthropic and Google, which are accepted only as bearer tokens."""

KeyHeader = Literal["x-api-key", "x-goog-api-key", "authorization"]

Recorded = Literal["usage", "bodies"]
"""What the gateway records of each exchange: its figures, or also the bodies of request and response."""


class ModelAccess(NamedTuple):
    """Where a runtime finds its model, and the variable that holds the key."""

    base_url: str
    api_key_env: str | None = None

    @property
    def credential(self) -> str:
        """What rate and usage limits apply to. Not all agents write the version of an API in its address."""
        return f"{self.base_url.rstrip('/').removesuffix('/v1')} {self.api_key_env or ''}"


class ModelEndpoint:
    """The address of the model, its key, and what is recorded. The key never appears in the repr or in an error."""

    def __init__(
        self, base_url: str, key: str | None = None, record: Recorded = "usage", key_header: KeyHeader | None = None
    ) -> None:
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.fragment:
            raise UsageError(
                f"base_url {base_url[:200]!r} is not a valid endpoint",
                op="gateway",
                fix_hints=["write https://HOST[:PORT]/PATH, such as https://api.openai.com/v1"],
            )
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                "base_url contains user information",
                op="gateway",
                fix_hints=["store the key in a variable and name the variable in api_key_env"],
            )
        local = is_loopback(parts.hostname)
        if key is not None and parts.scheme == "http" and not local:
            raise UsageError(
                f"the key would be sent to {parts.hostname} unencrypted", op="gateway", fix_hints=["use https"]
            )
        if key is not None and (not key.strip() or not key.isascii() or any(ord(c) < 33 for c in key)):
            raise AuthFailed(
                "the model's key is empty or contains invalid characters",
                op="gateway",
                fix_hints=["set the variable again, without spaces or newlines"],
            )
        self.base_url = base_url.rstrip("/")
        self.local = local
        self.record = record
        self._key = key
        self._key_header = key_header
        self._is_own = parts.hostname in _OWN_HOSTS

    @classmethod
    def of(
        cls,
        access: ModelAccess,
        env: Mapping[str, str] | None = None,
        *,
        record: Recorded = "usage",
        key_header: KeyHeader | None = None,
    ) -> ModelEndpoint:
        """Read the key from a variable of this process, or from its file. Raises `AuthFailed` without a key."""
        base_url, name = access
        if not name:
            return cls(base_url, None, record, key_header)
        source = os.environ if env is None else env
        key = with_key_files(source, [name]).get(name)
        if not key:
            what = f"the variable {name} is not set"
            if source.get(name + SUFFIX):
                what = f"the file that {name}{SUFFIX} names has no readable key"
            raise AuthFailed(
                f"{what}, so there is no key for the model",
                op="start",
                fix_hints=[
                    f"export {name}=…, or {name}{SUFFIX}=PATH",
                    "or set api_key_env to another variable; its value stays outside the box",
                ],
                details={"api_key_env": name},
            )
        return cls(base_url, key, record, key_header)

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def key_header(self, path: str, used: str) -> str:
        """Return the header for the key: the one that the endpoint needs.

        If it accepts several, or for paths of no known API, `used` decides, the header of `KEY_HEADERS` that the client
        used.
        """
        if self._key_header is not None:
            return self._key_header
        api = api_of(path)
        if not api:
            return used or "authorization"
        own = _OWN_HEADERS.get(api, "authorization")
        is_token = (self._key or "").startswith(_TOKENS) if self._is_own else not used
        return "authorization" if is_token else own

    def authorization(self, header: str = "") -> dict[str, str]:
        """Return the header with the key: one of `KEY_HEADERS`, or else `authorization`."""
        if self._key is None:
            return {}
        return {header: self._key} if header in KEY_HEADERS else {"authorization": f"Bearer {self._key}"}

    def redactor(self) -> Redactor:
        return Redactor([self._key] if self._key is not None else [], patterns=())

    def __repr__(self) -> str:
        return f"<Endpoint {self.base_url} {'with' if self.has_key else 'without'} a key>"
