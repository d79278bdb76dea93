"""The fake model's OpenAI Responses API: conversations, events, errors and rate limits in that format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proofbox.agents.fakemodel.script import DEFAULT_USAGE, ScriptedResponse, ScriptEntry


def conversation(body: Mapping[str, Any]) -> list[ScriptEntry]:
    """Return what a request contains: prompts, messages of the model, and tool results."""
    found: list[ScriptEntry] = []
    for item in body.get("input") or []:
        if not isinstance(item, dict):
            continue
        if item.get("role") in ("user", "assistant"):
            found.append(ScriptEntry(item["role"], text_of(item.get("content"))))
        elif str(item.get("type", "")).endswith("_output"):
            found.append(ScriptEntry("outcome", text_of(item.get("output"))))
    return found


def text_of(content: Any) -> str:
    """Return the text of a message's content, for both of its forms."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict))


def shell_of(body: Mapping[str, Any]) -> str:
    """Return the name of the tool that runs commands."""
    del body
    return "exec_command"


def events(answers: Sequence[ScriptedResponse], number: int, shell: str) -> list[dict[str, Any]]:
    response = {"id": f"resp_{number}"}
    found: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    for at, answer in enumerate(answers):
        found += _item_events(answer, f"{number}_{at}" if at else f"{number}", shell)
    return [*found, {"type": "response.completed", "response": {**response, "usage": _usage(answers[0].usage)}}]


def _item_events(answer: ScriptedResponse, id: str, shell: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if answer.think:
        summary = [{"type": "summary_text", "text": answer.think}]
        item = {"type": "reasoning", "id": f"rs_{id}", "summary": summary, "content": None, "encrypted_content": None}
        delta = {"item_id": item["id"], "summary_index": 0, "delta": answer.think}
        found.append({"type": "response.output_item.added", "item": {**item, "summary": []}})
        found.append({"type": "response.reasoning_summary_text.delta", **delta})
        found.append({"type": "response.output_item.done", "item": item})
    if answer.kind == "say":
        item = {"type": "message", "role": "assistant", "id": f"msg_{id}", "content": []}
        found.append({"type": "response.output_item.added", "item": item})
        found += [
            {"type": "response.output_text.delta", "item_id": item["id"], "delta": each} for each in answer.pieces()
        ]
        whole = [{"type": "output_text", "text": answer.text, "annotations": []}]
        return [*found, {"type": "response.output_item.done", "item": {**item, "content": whole}}]
    if answer.kind == "patch":
        call = {"type": "custom_tool_call", "id": f"ctc_{id}", "call_id": f"call_{id}"}
        call |= {"name": "apply_patch", "input": answer.text, "status": "completed"}
        return [*found, {"type": "response.output_item.done", "item": call}]
    arguments = answer.text or "{}"
    if answer.kind == "run":
        arguments = msgspec.json.encode({"cmd": answer.text}).decode()
    call = {"type": "function_call", "id": f"fc_{id}", "call_id": f"call_{id}"}
    namespace, _, name = (answer.tool or shell).rpartition(".")
    call |= {"name": name, **({"namespace": namespace} if namespace else {})}
    return [*found, {"type": "response.output_item.done", "item": {**call, "arguments": arguments}}]


def failure_event(start: Mapping[str, Any], code: str, message: str) -> dict[str, Any]:
    """Return the event that ends a stream with a failure."""
    error = {"code": code, "message": message}
    return {
        "type": "response.failed",
        "response": {"id": start["response"]["id"], "status": "failed", "error": error},
    }


def error(kind: str, message: str, more: Mapping[str, Any], status: int = 400) -> bytes:
    del status
    return msgspec.json.encode({"error": {"type": kind, "code": kind, "message": message, "param": None, **more}})


def fault_headers(reset: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an error. Here, the body states when a limit resets."""
    del reset
    return {}


def limit_headers(limits: Mapping[str, float], now: float) -> dict[str, str]:
    resets = str(int(now + limits.get("resets", 3600)))
    headers: dict[str, str] = {}
    for name, minutes in (("primary", 300), ("secondary", 10080)):
        if name in limits:
            headers |= {
                f"x-codex-{name}-used-percent": f"{limits[name]:g}",
                f"x-codex-{name}-window-minutes": str(minutes),
                f"x-codex-{name}-reset-at": resets,
            }
    return headers


def _usage(given: Mapping[str, int]) -> dict[str, Any]:
    counts = {**DEFAULT_USAGE, **given}
    return {
        "input_tokens": counts["input"],
        "input_tokens_details": {"cached_tokens": counts["cached"]},
        "output_tokens": counts["output"],
        "output_tokens_details": {"reasoning_tokens": counts["reasoning"]},
        "total_tokens": counts["input"] + counts["output"],
    }
