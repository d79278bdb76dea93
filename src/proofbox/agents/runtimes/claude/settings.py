"""The settings of Claude Code in `[runtimes.claude_code]`, and the arguments and variables made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from proofbox.agents.gateway.endpoint import KeyHeader, ModelAccess, ModelEndpoint, Recorded
from proofbox.agents.runtimes.claude.binary import HOME_VARIABLE

DEFAULT_ENDPOINT = "https://api.anthropic.com"
DEFAULT_KEY = "ANTHROPIC_API_KEY"
PLACEHOLDER = "held-by-the-gateway"
"""Sent instead of a key. The gateway replaces it; without any key, the program would refuse to start."""


class ClaudeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    binary: str | None = None
    """The path of the program. Default: the one on the PATH, or of the npm or PyPI package."""
    model: str | None = None
    """The model. Default: chosen by Claude Code."""
    base_url: str | None = None
    """The endpoint of a Messages API, without `/v1`. Default: Anthropic's."""
    api_key_env: str | None = None
    """The variable that holds the key. It is read outside the box and never passed in. If it is not set and `base_url`
    is, no key is sent."""
    record: Recorded = "usage"
    """`bodies`: also keep the bodies of all requests to the model and of its responses as evidence, redacted."""
    authorization: Literal["x-api-key", "bearer"] = "x-api-key"
    """How the key is sent: API keys as `x-api-key`, OAuth tokens as `bearer`."""
    permission_mode: Literal["bypassPermissions", "acceptEdits", "default", "plan"] = "bypassPermissions"
    """When Claude Code asks for permission. In every mode, the box restricts it and approval rules apply."""
    max_retries: int = 4
    """Maximum number of retries by Claude Code for a request."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_retries <= 100:
            raise ValueError("max_retries must be between 0 and 100")

    def access(self) -> ModelAccess:
        """Return the address of the model, and the variable of its key."""
        key = self.api_key_env or (DEFAULT_KEY if self.base_url is None else None)
        return ModelAccess(self.base_url or DEFAULT_ENDPOINT, key)

    def endpoint(self, env: Mapping[str, str] | None = None) -> ModelEndpoint:
        """Return the model's endpoint with its key. Raises `AuthFailed` if a required key is missing."""
        header: KeyHeader = "x-api-key" if self.authorization == "x-api-key" else "authorization"
        return ModelEndpoint.of(self.access(), env, record=self.record, key_header=header)

    def arguments(self) -> list[str]:
        """Return the arguments that every process gets."""
        both = ["--input-format", "stream-json", "--output-format", "stream-json"]
        shown = ["--verbose", "--include-partial-messages", "--replay-user-messages"]
        asked = ["--permission-prompt-tool", "stdio", "--permission-mode", self.permission_mode]
        return ["-p", *both, *shown, *asked, *(["--model", self.model] if self.model is not None else ())]

    def environment(self, home: str, base_url: str) -> dict[str, str]:
        """Return the variables that every process gets: the gateway's address, no key, and no telemetry."""
        key = "ANTHROPIC_API_KEY" if self.authorization == "x-api-key" else "ANTHROPIC_AUTH_TOKEN"
        return {
            HOME_VARIABLE: home,
            "ANTHROPIC_BASE_URL": base_url,
            key: PLACEHOLDER,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": str(self.max_retries),
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",  # otherwise it refuses bypassPermissions as root, even in a box
        }
