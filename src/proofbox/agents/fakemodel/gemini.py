"""The fake model's Gemini API: conversations, events, errors and rate limits in that format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proofbox.agents.fakemodel.script import DEFAULT_USAGE, ScriptedResponse, ScriptEntry
from proofbox.errors import UsageError

SHELL = "run_shell_command"
_OVERFLOW = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
_OWN_ERRORS = {
    "context_length_exceeded": ("INVALID_ARGUMENT", _OVERFLOW),
    "invalid_api_key": ("INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    "unsupported_location": ("FAILED_PRECONDITION", "User location is not supported for the API use."),
}
"""How this API states errors that have their own code elsewhere."""
_REASONS = {"invalid_api_key": "API_KEY_INVALID"}
BLOCKED = ("SAFETY", "PROHIBITED_CONTENT")
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def conversation(body: Mapping[str, Any]) -> list[ScriptEntry]:
    """Return what a request contains: prompts, messages of the model, and tool results."""
    found: list[ScriptEntry] = []
    for message in body.get("contents") or []:
        parts = message.get("parts") if isinstance(message, dict) else None
        for part in parts if isinstance(parts, list) else []:
            if not isinstance(part, dict) or part.get("thought"):
                continue
            if "functionResponse" in part:
                found.append(ScriptEntry("outcome", msgspec.json.encode(part["functionResponse"]).decode()))
            elif isinstance(part.get("text"), str):
                found.append(ScriptEntry("assistant" if message.get("role") == "model" else "user", part["text"]))
    return found


def shell_of(body: Mapping[str, Any]) -> str:
    """Return the name of the tool that runs commands."""
    del body
    return SHELL


def events(answers: Sequence[ScriptedResponse], number: int, shell: str) -> list[dict[str, Any]]:
    counts = {**DEFAULT_USAGE, **answers[0].usage}
    used = {
        "promptTokenCount": counts["input"],
        "cachedContentTokenCount": counts["cached"],
        "candidatesTokenCount": counts["output"] - counts["reasoning"],
        "thoughtsTokenCount": counts["reasoning"],
        "totalTokenCount": counts["input"] + counts["output"],
    }
    facts = {"modelVersion": "gemini-fake", "responseId": f"resp-{number}"}
    start = {"usageMetadata": {"promptTokenCount": counts["input"], "totalTokenCount": counts["input"]}, **facts}
    parts = [part for answer in answers for part in _parts(answer, shell)]
    found: list[dict[str, Any]] = [start, *({"candidates": [_candidate([part])], **facts} for part in parts)]
    last = {"candidates": [{**_candidate([{"text": ""}]), "finishReason": "STOP"}], "usageMetadata": used, **facts}
    return [*found, last]


def body_of(events: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the response to a request that does not ask for a stream."""
    candidates = [event["candidates"][0] for event in events if "candidates" in event]
    parts = [part for each in candidates for part in each["content"]["parts"]]
    return msgspec.json.encode({**events[-1], "candidates": [{**_candidate(parts), "finishReason": "STOP"}]})


def _candidate(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"content": {"role": "model", "parts": list(parts)}, "index": 0}


def _parts(answer: ScriptedResponse, shell: str) -> list[dict[str, Any]]:
    thoughts: list[dict[str, Any]] = [{"text": answer.think, "thought": True}] if answer.think else []
    if answer.kind == "say":
        return [*thoughts, *({"text": piece} for piece in answer.pieces())]
    if answer.kind == "patch":
        raise UsageError("[[patch]] is not supported by the Gemini API", op="fakemodel")
    arguments: Any = {"command": answer.text, "description": "a command"}
    if answer.kind == "call":
        try:
            arguments = msgspec.json.decode(answer.text or "{}")
        except msgspec.DecodeError as error:
            raise UsageError(f"[[call {answer.tool}]] has invalid arguments: {error}", op="fakemodel") from None
    return [*thoughts, {"functionCall": {"name": answer.tool or shell, "args": arguments}}]


def failure_event(start: Mapping[str, Any], code: str, message: str) -> dict[str, Any]:
    """Return the event that ends a stream with a failure, or that blocks the prompt."""
    del start
    if code in BLOCKED:
        return {"promptFeedback": {"blockReason": code}}
    status, message = _OWN_ERRORS.get(code, (code, message))
    return {"error": {"code": 500, "status": status, "message": message}}


def error(kind: str, message: str, more: Mapping[str, Any], status: int = 400) -> bytes:
    details: list[dict[str, Any]] = []
    if more:
        details.append({"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerDay"}]})
        delay = f"{more['resets_in_seconds']}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    if kind in _REASONS:
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": _REASONS[kind]}
        details.append({**info, "domain": "googleapis.com"})
    kind, message = _OWN_ERRORS.get(kind, (kind, message))
    given = kind if kind != "server_error" else _STATUS.get(status, "INTERNAL")
    return msgspec.json.encode({"error": {"code": status, "message": message, "status": given, "details": details}})


def fault_headers(reset: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an error. Here, the body states when a limit resets."""
    del reset
    return {}


def limit_headers(limits: Mapping[str, float], now: float) -> dict[str, str]:
    """Return no headers: this API states its limits only when they are exceeded."""
    del limits, now
    return {}
