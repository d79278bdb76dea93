"""The agents that proofbox knows: how each is started, configured without a key, and authenticated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from proofbox.agents.gateway.endpoint import ModelAccess, ModelEndpoint
from proofbox.agents.runtimes.acp.settings import AcpSettings
from proofbox.errors import StrategyUnavailable, UsageError

PLACEHOLDER = "held-by-the-gateway"
"""Sent instead of a key. The gateway replaces it; without any key, most agents refuse to start."""
BASE_URL = "{base_url}"
HOME = "{home}"
MODEL_FACTS = {"limit": {"context": 200_000, "output": 32_000}}

APIS: Mapping[str, tuple[str, str]] = {
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "gemini": ("https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
}
"""The endpoint of each API, and the variable that usually holds its key."""

Environment = Callable[[AcpSettings, str, str, bool], dict[str, str]]
"""Returns an agent's variables for the settings, its home, the gateway's address, and whether to ask before calls."""


class AcpProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A known agent. It keeps its threads in its home."""

    program: str
    arguments: tuple[str, ...]
    api: str
    install: tuple[str, ...]
    environment: Environment
    native_package: str = ""
    """The beginning of the names of npm packages that hold the program for one platform."""
    node: int = 20
    """The oldest supported Node.js, for agents that are not native programs."""
    authenticate: str = ""
    mode: str = ""
    """The agent's mode without approval rules: one that does not sandbox commands again, because the box does."""
    needs_model: bool = False
    versioned: bool = True
    """The agent expects the version of an API, such as `/v1`, in its base URL. Otherwise it adds it to every path."""
    states_failures: bool = False
    """The agent reports every command that failed as failed, so the exit code of a completed one is 0."""
    exits: bool = True
    """The agent exits when its stdin is closed. Otherwise it is killed without waiting for that."""
    conceals_failures: bool = False
    """The agent ends a turn as usual even if the model has failed, so the gateway's view decides."""


def _opencode(settings: AcpSettings, home: str, address: str, ask: bool) -> dict[str, str]:
    api = settings.api or "anthropic"
    if api == "gemini":
        raise UsageError("opencode can't use the API gemini through the gateway", op="settings")
    options = {"baseURL": address, "apiKey": PLACEHOLDER}
    provider = {"npm": f"@ai-sdk/{api}", "options": options, "models": {str(settings.model): MODEL_FACTS}}
    model = f"proofbox/{settings.model}"
    config: dict[str, Any] = {
        "provider": {"proofbox": provider},
        "enabled_providers": ["proofbox"],
        "model": model,
        "small_model": model,
        "permission": {"*": "ask" if ask else "allow"},
        "agent": {"title": {"disable": True}},  # otherwise every thread costs a further request
        "experimental": {"continue_loop_on_deny": True},  # otherwise a declined call ends the turn
        "snapshot": False,  # proofbox takes the snapshots
        "share": "disabled",
        "autoupdate": False,
    }
    return {
        **{f"XDG_{kind}_HOME": f"{home}/{kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA", "STATE")},
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_PURE": "1",  # no plugins, which it would install from the network
    }


def _gemini(settings: AcpSettings, home: str, address: str, ask: bool) -> dict[str, str]:
    del ask  # it asks before every call that changes something
    return {
        "GEMINI_CLI_HOME": home,
        "GEMINI_API_KEY": PLACEHOLDER,
        "GOOGLE_GEMINI_BASE_URL": address,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        **({"GEMINI_MODEL": settings.model} if settings.model else {}),
    }


def _codex(settings: AcpSettings, home: str, address: str, ask: bool) -> dict[str, str]:
    provider = {"name": "proofbox", "base_url": address, "wire_api": "responses"}
    config: dict[str, Any] = {
        "model_provider": "proofbox",
        "model_providers": {"proofbox": provider},
        "approval_policy": "untrusted" if ask else "never",
        "sandbox_mode": "danger-full-access",  # the box restricts it
        **({"model": settings.model} if settings.model else {}),
    }
    return {"CODEX_HOME": home, "CODEX_CONFIG": json.dumps(config), "OPENAI_API_KEY": PLACEHOLDER}


def _claude(settings: AcpSettings, home: str, address: str, ask: bool) -> dict[str, str]:
    del ask  # it asks before every call that changes something
    return {
        "CLAUDE_CONFIG_DIR": home,
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": PLACEHOLDER,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
        **({"ANTHROPIC_MODEL": settings.model} if settings.model else {}),
    }


PROFILES: Mapping[str, AcpProfile] = {
    "opencode": AcpProfile(
        program="opencode",
        arguments=("acp",),
        api="anthropic",
        install=("npm install -g opencode-ai",),
        environment=_opencode,
        native_package="opencode",
        needs_model=True,
    ),
    "gemini": AcpProfile(
        program="gemini",
        arguments=("--acp",),
        api="gemini",
        install=("npm install -g @google/gemini-cli",),
        environment=_gemini,
        authenticate="gemini-api-key",
    ),
    "codex": AcpProfile(
        program="codex-acp",
        arguments=(),
        api="openai",
        install=("npm install -g @agentclientprotocol/codex-acp",),
        environment=_codex,
        mode="agent-full-access",
        exits=False,
        conceals_failures=True,
    ),
    "claude": AcpProfile(
        program="claude-agent-acp",
        arguments=(),
        api="anthropic",
        install=("npm install -g @agentclientprotocol/claude-agent-acp",),
        environment=_claude,
        node=22,
        versioned=False,
        states_failures=True,
    ),
}


def profile_of(settings: AcpSettings) -> AcpProfile | None:
    """Return the known agent that the settings name; None with a command."""
    return None if settings.command else PROFILES[settings.agent]


def endpoint_of(settings: AcpSettings, env: Mapping[str, str] | None = None) -> ModelEndpoint | None:
    """Return the model's endpoint with its key; None for a command without `base_url`.

    Raises `AuthFailed` if a required key is missing, `StrategyUnavailable` if a required model is.
    """
    profile = profile_of(settings)
    if profile is not None and profile.needs_model and not settings.model:
        raise StrategyUnavailable(
            f"no model is set for {profile.program}",
            op="start",
            fix_hints=["set model in [runtimes.acp] of config.toml", "or: --model NAME"],
        )
    access = access_of(settings)
    return ModelEndpoint.of(access, env, record=settings.record) if access is not None else None


def access_of(settings: AcpSettings) -> ModelAccess | None:
    """Return the address of the model, and the variable of its key; None for a command without `base_url`."""
    profile = profile_of(settings)
    url, key = settings.base_url, settings.api_key_env
    if profile is not None and url is None:
        url, usual = APIS.get(settings.api or profile.api, (None, None))
        key = key or usual
        if url is None:
            raise UsageError(f"the API {settings.api} needs base_url", op="settings")
    if url is None:
        return None
    if profile is not None and not profile.versioned:
        url = url.rstrip("/").removesuffix("/v1")
    return ModelAccess(url, key)
