"""The fake model's server: the Responses API over HTTP/1.1 with server-sent events."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.abc
import msgspec

from proofbox.agents.fakemodel.script import Fault, ModelScript, ResponseRule, ScriptedResponse
from proofbox.agents.gateway.http import HttpRequest, Responder, connection_handler
from proofbox.core.clock import Clock, SystemClock
from proofbox.errors import UsageError

REMEMBERED = 10_000
DEFAULT_USAGE = {"input": 1000, "output": 50, "cached": 400, "reasoning": 10}
IDLE_SECONDS = 3600.0
_CONTEXT = ("<", "# ")  # how the texts begin that agents add to a conversation


class RecordedRequest(msgspec.Struct, frozen=True):
    """One request, as received."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: dict[str, Any]


class FakeModel:
    """The fake model. `async with FakeModel().listening() as url:` serves its API at this base URL within the block."""

    def __init__(self, rules: Sequence[ResponseRule] = (), clock: Clock | None = None) -> None:
        self._script = ModelScript(rules)
        self._clock = clock or SystemClock()
        self._attempts: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self.seen: list[RecordedRequest] = []
        self.open = 0
        """Number of requests in progress."""

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        bound = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 (no Django here)
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, connection_handler(self._answer))
            try:
                yield f"http://127.0.0.1:{bound}/v1"
            finally:
                tasks.cancel_scope.cancel()

    async def _answer(self, request: HttpRequest, responder: Responder) -> None:
        self.open += 1
        try:
            body = _body(request)
            if len(self.seen) < REMEMBERED:
                self.seen.append(RecordedRequest(request.method, request.target, request.headers, body))
            if request.method != "POST" or not request.target.partition("?")[0].endswith("/responses"):
                await responder.send(404, _error("not_found", "only POST …/responses is supported"))
                return
            try:
                answer, key = self._choose(body)
            except UsageError as error:
                await responder.send(400, _error("invalid_request_error", error.message))
                return
            await self._play(answer, key, responder)
        finally:
            self.open -= 1

    def _choose(self, body: dict[str, Any]) -> tuple[ScriptedResponse, str]:
        """Choose the next response: its number is the number of tool results since the prompt."""
        items = [item for item in body.get("input") or [] if isinstance(item, dict)]
        prompt, outcomes, spoken = "", 0, False
        for item in items:
            text = text_of(item) if item.get("role") == "user" else ""
            if item.get("role") == "assistant":
                spoken = True
            elif text and not text.lstrip().startswith(_CONTEXT) and ("[[" in text or spoken or not prompt):
                prompt, outcomes, spoken = text, 0, False
            elif str(item.get("type", "")).endswith("_output"):
                outcomes += 1
        answers = self._script.answers(prompt)
        answer = answers[outcomes] if outcomes < len(answers) else ScriptedResponse()
        return answer, hashlib.sha256(msgspec.json.encode(items)).hexdigest()

    async def _play(self, answer: ScriptedResponse, key: str, responder: Responder) -> None:
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        await anyio.sleep(answer.wait)
        headers = _limit_headers(answer.limits, self._clock.now().timestamp())
        passed = 0
        for fault in answer.faults:
            if attempt <= passed + fault.times:
                await self._break(fault, answer, headers, responder)
                return
            passed += fault.times
        await responder.start(200, {"content-type": "text/event-stream", **headers})
        for event in self._events(answer):
            await responder.write(_sse(event))
        await responder.finish()

    async def _break(
        self, fault: Fault, answer: ScriptedResponse, headers: dict[str, str], responder: Responder
    ) -> None:
        stream = {"content-type": "text/event-stream", **headers}
        if fault.kind == "http":
            if fault.retry_after is not None:
                headers["retry-after"] = f"{fault.retry_after:g}"
            status = int(fault.value)
            body = _error(fault.type or "server_error", fault.message or f"fake {status}", self._reset(fault))
            await responder.send(status, body, {"content-type": "application/json", **headers})
        elif fault.kind == "drop" and fault.value != "mid":
            await responder.abort()
        else:
            await responder.start(200, stream)
            events = list(self._events(answer))
            await responder.write(_sse(events[0]))
            if fault.kind == "fail":
                error = {"code": fault.value, "message": fault.message or f"fake {fault.value}"}
                failed = {"id": events[0]["response"]["id"], "status": "failed", "error": error}
                await responder.write(_sse({"type": "response.failed", "response": failed}))
                await responder.finish()
            elif fault.kind == "drop":
                for event in events[1:-2]:
                    await responder.write(_sse(event))
                await responder.abort()
            elif fault.kind == "idle":
                for event in events[1 : 2 + fault.after] if fault.after else ():
                    await responder.write(_sse(event))
                await anyio.sleep(float(fault.value or IDLE_SECONDS))
                await responder.abort()
            else:
                await responder.write(b"\x00\xff<html>not a stream</html>\n\ndata: {\n\ndata: [1,\n\n")
                await responder.finish()

    def _reset(self, fault: Fault) -> dict[str, Any]:
        if fault.resets is None:
            return {}
        at = self._clock.now().timestamp() + fault.resets
        return {"resets_at": int(at), "resets_in_seconds": int(fault.resets)}

    def _events(self, answer: ScriptedResponse) -> list[dict[str, Any]]:
        number = next(self._numbers)
        response = {"id": f"resp_{number}"}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
        if answer.think:
            item = {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": [{"type": "summary_text", "text": answer.think}],
                "content": None,
                "encrypted_content": None,
            }
            events.append({"type": "response.output_item.added", "item": {**item, "summary": []}})
            events.append(
                {
                    "type": "response.reasoning_summary_text.delta",
                    "item_id": item["id"],
                    "summary_index": 0,
                    "delta": answer.think,
                }
            )
            events.append({"type": "response.output_item.done", "item": item})
        if answer.kind == "say":
            item = {"type": "message", "role": "assistant", "id": f"msg_{number}", "content": []}
            events.append({"type": "response.output_item.added", "item": item})
            words = answer.text.split(" ")
            deltas = [word + " " * (at + 1 < len(words)) for at, word in enumerate(words)]
            events += [{"type": "response.output_text.delta", "item_id": item["id"], "delta": each} for each in deltas]
            whole = [{"type": "output_text", "text": answer.text, "annotations": []}]
            events.append({"type": "response.output_item.done", "item": {**item, "content": whole}})
        elif answer.kind == "patch":
            call = {"type": "custom_tool_call", "id": f"ctc_{number}", "call_id": f"call_{number}"}
            events.append(
                {
                    "type": "response.output_item.done",
                    "item": {**call, "name": "apply_patch", "input": answer.text, "status": "completed"},
                }
            )
        else:
            arguments = answer.text or "{}"
            if answer.kind == "run":
                arguments = msgspec.json.encode({"cmd": answer.text}).decode()
            call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
            namespace, _, name = (answer.tool or "exec_command").rpartition(".")
            call |= {"name": name, **({"namespace": namespace} if namespace else {})}
            events.append({"type": "response.output_item.done", "item": {**call, "arguments": arguments}})
        return [*events, {"type": "response.completed", "response": {**response, "usage": _usage(answer.usage)}}]


def _body(request: HttpRequest) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(request.body) if request.body else {}
    except msgspec.DecodeError:
        body = {"undecodable_bytes": len(request.body)}
    return body if isinstance(body, dict) else {"body": body}


def text_of(item: Mapping[str, Any]) -> str:
    """Return the text of an item, for both forms of its content."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or [] if isinstance(part, dict))


def _sse(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))


def _error(kind: str, message: str, more: dict[str, Any] | None = None) -> bytes:
    error = {"type": kind, "code": kind, "message": message, "param": None, **(more or {})}
    return msgspec.json.encode({"error": error})


def _usage(counts_given: dict[str, int]) -> dict[str, Any]:
    counts = {**DEFAULT_USAGE, **counts_given}
    return {
        "input_tokens": counts["input"],
        "input_tokens_details": {"cached_tokens": counts["cached"]},
        "output_tokens": counts["output"],
        "output_tokens_details": {"reasoning_tokens": counts["reasoning"]},
        "total_tokens": counts["input"] + counts["output"],
    }


def _limit_headers(limits: dict[str, float], now: float) -> dict[str, str]:
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
