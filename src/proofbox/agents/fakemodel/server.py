"""The fake model's server: HTTP/1.1 with server-sent events, in the format of the API that a request uses.

`responses.py`, `messages.py` and `gemini.py` implement the formats.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import anyio
import anyio.abc
import msgspec

from proofbox.agents.fakemodel import gemini, messages, responses
from proofbox.agents.fakemodel.script import Fault, ModelScript, ResponseRule, ScriptedResponse, ScriptEntry
from proofbox.agents.gateway.http import HttpRequest, Responder, connection_handler
from proofbox.core.clock import Clock, SystemClock
from proofbox.errors import UsageError

REMEMBERED = 10_000
IDLE_SECONDS = 3600.0
_COUNTS = {"/messages/count_tokens": b'{"input_tokens":1000}', ":countTokens": b'{"totalTokens":1000}'}
_CONTEXT = ("<", "# ", "[Request interrupted")  # prefixes of the texts that agents add to a conversation
_WHOLE = ":generateContent"
_APIS = {"/responses": responses, "/messages": messages, ":streamGenerateContent": gemini, _WHOLE: gemini}


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
            path = request.target.partition("?")[0]
            counted = next((body for end, body in _COUNTS.items() if path.endswith(end)), None)
            if request.method == "POST" and counted is not None:
                await responder.send(200, counted, {"content-type": "application/json"})
                return
            api = next((api for end, api in _APIS.items() if path.endswith(end)), None)
            if request.method != "POST" or api is None:
                known = ", ".join(f"POST …{end}" for end in _APIS)
                await responder.send(404, responses.error("not_found", f"only {known} are supported", {}))
                return
            conversation = api.conversation(body)
            try:
                answers = self._choose(conversation)
                events = api.events(answers, next(self._numbers), api.shell_of(body))
            except UsageError as error:
                await responder.send(400, api.error("invalid_request_error", error.message, {}))
                return
            key = hashlib.sha256(msgspec.json.encode(conversation)).hexdigest()
            if path.endswith(_WHOLE) and not answers[0].faults:
                await responder.send(200, gemini.body_of(events), {"content-type": "application/json"})
                return
            if api is gemini and not path.endswith(_WHOLE) and "alt=sse" not in request.target:
                responder = _ArrayResponder(responder)  # without it, Gemini streams the elements of an array
            await self._play(api, answers[0], events, key, responder)
        finally:
            self.open -= 1

    def _choose(self, conversation: Sequence[ScriptEntry]) -> list[ScriptedResponse]:
        """Choose the next responses, to send as one: their number is the number of tool results since the prompt."""
        prompt, outcomes, spoken = "", 0, False
        for entry in conversation:
            if entry.kind == "assistant":
                spoken = True
            elif entry.kind == "outcome":
                outcomes += 1
            elif not entry.text or entry.text.lstrip().startswith(_CONTEXT):
                pass
            elif "[[" in entry.text or spoken or not prompt:
                prompt, outcomes, spoken = entry.text, 0, False
        answers = self._script.answers(prompt)
        if outcomes >= len(answers):
            return [ScriptedResponse()]
        return answers[outcomes : outcomes + answers[outcomes].together]

    async def _play(
        self, api: ModuleType, answer: ScriptedResponse, events: list[dict[str, Any]], key: str, responder: Responder
    ) -> None:
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        await anyio.sleep(answer.wait)
        headers = api.limit_headers(answer.limits, self._clock.now().timestamp())
        passed = 0
        for fault in answer.faults:
            if attempt <= passed + fault.times:
                await self._break(api, fault, events, headers, responder)
                return
            passed += fault.times
        await responder.start(200, {"content-type": "text/event-stream", **headers})
        for event in events:
            await responder.write(_sse(event))
        await responder.finish()

    async def _break(
        self, api: ModuleType, fault: Fault, events: list[dict[str, Any]], headers: dict[str, str], responder: Responder
    ) -> None:
        stream = {"content-type": "text/event-stream", **headers}
        if fault.kind == "http":
            if fault.retry_after is not None:
                headers["retry-after"] = f"{fault.retry_after:g}"
            status = int(fault.value)
            headers |= api.fault_headers(self._reset(fault))
            body = api.error(
                fault.type or "server_error", fault.message or f"fake {status}", self._reset(fault), status
            )
            await responder.send(status, body, {"content-type": "application/json", **headers})
        elif fault.kind == "drop" and fault.value != "mid":
            await responder.abort()
        else:
            await responder.start(200, stream)
            await responder.write(_sse(events[0]))
            if fault.kind == "fail":
                await responder.write(
                    _sse(api.failure_event(events[0], fault.value, fault.message or f"fake {fault.value}"))
                )
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


class _ArrayResponder(Responder):
    """Sends events, and the bodies of errors, as the elements of a JSON array."""

    def __init__(self, responder: Responder) -> None:
        super().__init__(responder._stream, responder._http)
        self._next = b"["

    async def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        await super().send(status, b"[%b]" % body, headers)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        await super().start(status, {**headers, "content-type": "application/json"})

    async def write(self, data: bytes) -> None:
        await super().write(self._next + data.removeprefix(b"data: ").strip())
        self._next = b","

    async def finish(self) -> None:
        await super().write(b"]")
        await super().finish()


def _body(request: HttpRequest) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(request.body) if request.body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = {"undecodable_bytes": len(request.body)}
    return body if isinstance(body, dict) else {"body": body}


def _sse(event: dict[str, Any]) -> bytes:
    name = b"event: %b\n" % event["type"].encode() if "type" in event else b""
    return b"%bdata: %b\n\n" % (name, msgspec.json.encode(event))
