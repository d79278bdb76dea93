"""The settings of Codex in `[runtimes.codex_app_server]`, and the `config.toml` generated from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from proofbox.agents.gateway.endpoint import ModelAccess, ModelEndpoint, Recorded
from proofbox.errors import UsageError

DEFAULT_ENDPOINT = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"
PROVIDER = "proofbox"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# proofbox decides where Codex connects, and what Codex assumes about its sandbox.
_RESERVED = ("model", "model_provider", "model_providers", "approval_policy", "sandbox_mode", "openai_base_url")


class CodexSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    binary: str | None = None
    """The path of the program. Default: the one on the PATH, or of the npm or PyPI package."""
    model: str | None = None
    """The model. Default: chosen by Codex."""
    base_url: str | None = None
    """The endpoint of a Responses API. Default: OpenAI's."""
    api_key_env: str | None = None
    """The variable that holds the key. It is read outside the box and never passed in. If it is not set and `base_url`
    is, no key is sent."""
    record: Recorded = "usage"
    """`bodies`: also keep the bodies of all requests to the model and of its responses as evidence, redacted."""
    approval_policy: Literal["untrusted", "on-request", "never"] = "never"
    """When Codex asks for approval. The box always restricts Codex."""
    max_retries: int = 4
    """Maximum number of retries by Codex, for a request and for a stream."""
    stream_idle_seconds: float = 300.0
    """Seconds without data after which Codex abandons a stream from the model."""
    extra_config: dict[str, Any] = {}
    """Additional configuration of Codex, as in its `config.toml`."""

    def __post_init__(self) -> None:
        for name in self.extra_config:
            if name in _RESERVED:
                raise ValueError(f"extra_config.{name} is not allowed: proofbox sets it")
        if not 0 <= self.max_retries <= 100:
            raise ValueError("max_retries must be between 0 and 100")
        if not 0.1 <= self.stream_idle_seconds <= 86400:
            raise ValueError("stream_idle_seconds must be between 0.1 and 86400")
        _toml(self.extra_config)

    def access(self) -> ModelAccess:
        """Return the address of the model, and the variable of its key."""
        key = self.api_key_env or (DEFAULT_KEY if self.base_url is None else None)
        return ModelAccess(self.base_url or DEFAULT_ENDPOINT, key)

    def endpoint(self, env: Mapping[str, str] | None = None) -> ModelEndpoint:
        """Return the model's endpoint with its key. Raises `AuthFailed` if a required key is missing."""
        return ModelEndpoint.of(self.access(), env, record=self.record)


def config_toml(settings: CodexSettings, base_url: str) -> str:
    """Return the configuration of Codex for one attempt: the model's address, no key, and no telemetry.

    The approval policy is set for each thread, because not every version accepts every policy here. Codex's own sandbox
    is disabled: the box restricts Codex, and a sandbox within it would need privileges that a box does not have.
    """
    ours: dict[str, Any] = {
        "model_provider": PROVIDER,
        "sandbox_mode": "danger-full-access",
        "web_search": "disabled",
        "check_for_update_on_startup": False,
        "model_providers": {
            PROVIDER: {
                "name": PROVIDER,
                "base_url": base_url,
                "wire_api": "responses",
                "requires_openai_auth": False,
                "supports_websockets": False,
                "request_max_retries": settings.max_retries,
                "stream_max_retries": settings.max_retries,
                "stream_idle_timeout_ms": round(settings.stream_idle_seconds * 1000),
            }
        },
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        # Without the last of these, Codex retries a refused connection forever.
        "features": {"plugins": False, "apps": False, "unbounded_connection_retries": False},
    }
    if settings.model is not None:
        ours["model"] = settings.model
    return _toml(_merged(ours, settings.extra_config))


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for name, value in theirs.items():
        mine = merged.get(name)
        merged[name] = _merged(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged


def _toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Return TOML for plain values and tables. TOML basic strings are JSON strings, except for one character."""
    lines = [f"{_key(name)} = {_value(value)}" for name, value in table.items() if not isinstance(value, dict)]
    text = "".join(f"{line}\n" for line in lines)
    for name, value in table.items():
        if isinstance(value, dict):
            inner = (*path, name)
            text += f"\n[{'.'.join(map(_key, inner))}]\n" + _toml(value, inner)
    return text


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _string(name)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_value(inner)}" for name, inner in value.items()) + "}"
    raise UsageError(f"extra_config does not support values of type {type(value).__name__}", op="settings")


def _string(text: str) -> str:
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
