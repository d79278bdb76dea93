"""The fake model's Anthropic Messages API: conversations, events, errors and rate limits in that format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proofbox.agents.fakemodel.responses import text_of
from proofbox.agents.fakemodel.script import DEFAULT_USAGE, ScriptedResponse, ScriptEntry
from proofbox.errors import UsageError

MODEL = "claude-fake"
_OWN_ERRORS = {
    "context_length_exceeded": ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
    "insufficient_quota": ("billing_error", "there is a problem with the billing of this account"),
    "credit_too_low": ("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
    "spend_limit": (
        "invalid_request_error",
        "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.",
    ),
    "request_too_large": ("request_too_large", "Request exceeds the maximum size"),
}
"""How this API states errors that have their own code elsewhere."""


def conversation(body: Mapping[str, Any]) -> list[ScriptEntry]:
    """Return what a request contains: prompts, messages of the model, and tool results."""
    found: list[ScriptEntry] = []
    for message in body.get("messages") or []:
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
            continue
        content = message.get("content")
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content or []:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text":
                found.append(ScriptEntry(message["role"], str(part.get("text", ""))))
            elif kind == "tool_result":
                found.append(ScriptEntry("outcome", text_of(part.get("content"))))
    return found


def shell_of(body: Mapping[str, Any]) -> str:
    """Return the name of the tool that runs commands: the one that the request offers."""
    offered = [tool.get("name") for tool in body.get("tools") or [] if isinstance(tool, dict)]
    return next((name for name in offered if isinstance(name, str) and name.lower() == "bash"), "Bash")


def events(answers: Sequence[ScriptedResponse], number: int, shell: str) -> list[dict[str, Any]]:
    counts = {**DEFAULT_USAGE, **answers[0].usage}
    used = {
        "input_tokens": counts["input"] - counts["cached"],
        "cache_read_input_tokens": counts["cached"],
        "cache_creation_input_tokens": 0,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
    }
    message |= {"stop_reason": None, "stop_sequence": None, "usage": used}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    index = 0
    for at, answer in enumerate(answers):
        for block, deltas in _blocks(answer, f"{number}_{at}", shell):
            found.append({"type": "content_block_start", "index": index, "content_block": block})
            found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            found.append({"type": "content_block_stop", "index": index})
            index += 1
    stop = {"stop_reason": "end_turn" if answers[-1].kind == "say" else "tool_use", "stop_sequence": None}
    found.append({"type": "message_delta", "delta": stop, "usage": {"output_tokens": counts["output"]}})
    return [*found, {"type": "message_stop"}]


def _blocks(answer: ScriptedResponse, id: str, shell: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return the content blocks of an answer: each as it starts, and its deltas."""
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if answer.think:
        deltas = [
            {"type": "thinking_delta", "thinking": answer.think},
            {"type": "signature_delta", "signature": "c2ln"},
        ]
        found.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if answer.kind == "say":
        texts = [{"type": "text_delta", "text": each} for each in answer.pieces()]
        return [*found, ({"type": "text", "text": ""}, texts)]
    if answer.kind == "patch":
        raise UsageError("[[patch]] is not supported by the Messages API", op="fakemodel")
    arguments = answer.text or "{}"
    if answer.kind == "run":
        arguments = msgspec.json.encode({"command": answer.text, "description": "a command"}).decode()
    block = {"type": "tool_use", "id": f"toolu_{id}", "name": answer.tool or shell, "input": {}}
    return [*found, (block, [{"type": "input_json_delta", "partial_json": arguments}])]


def failure_event(start: Mapping[str, Any], code: str, message: str) -> dict[str, Any]:
    """Return the event that ends a stream with a failure."""
    del start
    kind, message = _OWN_ERRORS.get(code, (code, message))
    return {"type": "error", "error": {"type": kind, "message": message}}


def error(kind: str, message: str, more: Mapping[str, Any], status: int = 400) -> bytes:
    del more
    kind, message = _OWN_ERRORS.get("request_too_large" if status == 413 else kind, (kind, message))
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})


def fault_headers(reset: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an error: for a limit that resets, those of a used-up subscription."""
    prefix = "anthropic-ratelimit-unified"
    return {f"{prefix}-status": "rejected", f"{prefix}-reset": str(reset["resets_at"])} if reset else {}


def limit_headers(limits: Mapping[str, float], now: float) -> dict[str, str]:
    """Return the headers of a subscription, whose windows are five hours and seven days."""
    resets = str(int(now + limits.get("resets", 3600)))
    headers: dict[str, str] = {}
    for name, window in (("primary", "5h"), ("secondary", "7d")):
        if name in limits:
            prefix = f"anthropic-ratelimit-unified-{window}"
            headers |= {f"{prefix}-utilization": f"{limits[name] / 100:g}", f"{prefix}-reset": resets}
    return headers
