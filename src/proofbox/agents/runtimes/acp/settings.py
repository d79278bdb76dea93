"""The settings of agents that speak ACP, in `[runtimes.acp]` and `[runtimes.acp.NAME]`."""

from __future__ import annotations

from typing import Literal

import msgspec

from proofbox.agents.gateway.endpoint import Recorded

AgentName = Literal["opencode", "gemini", "codex", "claude"]
ApiName = Literal["anthropic", "openai", "openai-compatible", "gemini"]


class AcpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agent: AgentName = "opencode"
    """A known agent. Ignored if `command` is set."""
    command: tuple[str, ...] = ()
    """Any other agent: its program and arguments, as seen in the box. `{base_url}` stands for the gateway's address,
    `{home}` for a directory that outlives the box, for the agent's threads."""
    env: dict[str, str] = {}
    """Additional variables for the agent, with the same placeholders."""
    mounts: tuple[str, ...] = ()
    """Additional mounts that the program needs: HOST:GUEST[:ro|rw]."""
    on_host: bool = True
    """The program of `command` is installed on this machine. False: it is part of the box's image."""
    binary: str | None = None
    """The path of a known agent's program. Default: the one on the PATH, or in this Python's environment."""
    model: str | None = None
    """The model. OpenCode needs it; other agents have a default."""
    api: ApiName | None = None
    """The API that OpenCode uses. Default: `anthropic`."""
    base_url: str | None = None
    """The endpoint of the model. Default: the API's own. With `command` and without `base_url`, the agent reaches no
    model through the gateway."""
    api_key_env: str | None = None
    """The variable that holds the key. It is read outside the box and never passed in. If it is not set and `base_url`
    is, no key is sent."""
    record: Recorded = "usage"
    """`bodies`: also keep the bodies of all requests to the model and of its responses as evidence, redacted."""
    authenticate: str | None = None
    """The id of an authentication method that the agent requires. Default: the known agent's own."""
    checkpoints: bool = True
    """Let the agent copy the conversation before each further turn, so that it can be forked at earlier turns. An
    attempt has one turn, so it makes no copy."""
    undecided: Literal["accept", "decline"] = "accept"
    """The answer to permission requests that no approval rule decides. The box always restricts the agent."""

    def __post_init__(self) -> None:
        if self.record == "bodies" and self.command and self.base_url is None:
            raise ValueError('record = "bodies" needs base_url, because only the gateway sees the bodies')
