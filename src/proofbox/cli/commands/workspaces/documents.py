"""The documents that `workspace effects`, `workspace tools` and `workspace call` print with `--json`."""

from __future__ import annotations

from typing import Any

import msgspec

from proofbox.cli.output import Document
from proofbox.workspace.capabilities.grants import Grants
from proofbox.workspace.timeline.effects import Effect


class EffectsDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.effects/1"
    workspace: str
    effects: tuple[Effect, ...]
    """Oldest first, as selected by `--since` and `--limit`."""


class ToolFacts(msgspec.Struct, frozen=True):
    name: str
    """The name to call it by."""
    description: str
    """The description for the model."""
    parameters: dict[str, Any]
    """The JSON Schema of its arguments."""
    read_only: bool
    """Whether it never changes anything."""
    available: bool
    """Whether the capabilities allow at least one use of it."""
    reason: str = ""
    """Why it is not available."""


class ToolsDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_tools/1"
    workspace: str
    tools: tuple[ToolFacts, ...]
    """All tools, including unavailable ones."""
    capabilities: Grants
    advisory: tuple[str, ...] = ("command", "clock", "random")
    """Capabilities that no box enforces: they are only checked when a tool is called."""


class CallDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.tool_result/1"
    tool: str
    result: dict[str, Any]
    """The tool's result; its members depend on the tool."""
    text: str
    """The text that a model sees."""
