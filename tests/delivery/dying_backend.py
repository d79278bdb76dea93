"""The reference backend with faults: it dies at a given step, ignores idempotency keys, or has the first API version.

python dying_backend.py OPTIONS ARGUMENTS…    OPTIONS is JSON: {"die_at": 12, "forgetful": true, "old": true}
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proofbox.cli import main
from proofbox.delivery.backend import git, ledger, repositories, serve

NEW_IN_REQUESTS = ("idempotencyKey", "evidence", "patchId", "branchName")
NEW_IN_ANSWERS = ("repoUrl", "repoFullName", "branchName", "prUrl", "prState", "state")


def die_at(step: int) -> None:
    """Kill this process before or after the given step; all steps that write something are counted."""
    left = [step]

    def one_step() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            one_step()
            result = call(*arguments, **options)
            one_step()
            return result

        return wrapper

    for owner, name in (
        (ledger.BackendDatabase, "_do"),
        (git.Git, "_try"),
        (subprocess.Popen, "communicate"),
        (repositories.Repositories, "_open"),
    ):
        patch.object(owner, name, dying(getattr(owner, name))).start()
    transaction = ledger.BackendDatabase.transaction

    def committing(self: ledger.BackendDatabase) -> Any:
        context = transaction(self)
        context.__exit__ = dying(context.__exit__)  # type: ignore[method-assign]
        return context

    patch.object(ledger.BackendDatabase, "transaction", committing).start()
    whole = serve.application

    def while_reading(*given: Any, **more: Any) -> ASGIApp:
        app = whole(*given, **more)

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            async def piece() -> Message:
                one_step()
                return await receive()

            await app(scope, piece, send)

        return counted

    patch.object(serve, "application", while_reading).start()


class FirstVersion:
    """Removes members that an older backend does not support from requests and responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        document = json.loads(body)
        manifest = scope["path"].endswith("/manifest")
        for name in NEW_IN_REQUESTS if manifest else NEW_IN_REQUESTS[:3]:
            document.pop(name, None)
        for change in document.get("changes", []):
            for name in ("mode", "renamedFrom", "beforeSha256", "afterSha256"):
                change.pop(name, None)
        data = json.dumps(document).encode()
        gone = (b"idempotency-key", b"content-length")
        headers = [pair for pair in scope["headers"] if pair[0] not in gone]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(data)).encode())]}
        started: list[Message] = []

        async def again() -> Message:
            return {"type": "http.request", "body": data}

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
                return
            found = json.loads(message["body"])
            if manifest:
                for name in NEW_IN_ANSWERS:
                    found.pop(name, None)
                for file in found.get("files", []):
                    file.pop("mode", None)
            found = {name: value for name, value in found.items() if name not in ("branchName", "state")}
            if started[0]["status"] != 200:
                found = {"message": "no"}
            text = json.dumps(found).encode()
            kept = [pair for pair in started[0]["headers"] if pair[0] != b"content-length"]
            length = (b"content-length", str(len(text)).encode())
            await send({**started[0], "headers": [*kept, length]})
            await send({"type": "http.response.body", "body": text})

        await self._app(scope, again, answer)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if chosen.get("forgetful"):
        patch.object(serve, "Repositories", partial(repositories.Repositories, idempotent=False)).start()
    if chosen.get("old"):
        whole = serve.application
        patch.object(serve, "application", lambda *given, **more: FirstVersion(whole(*given, **more))).start()
    if chosen.get("die_at"):
        die_at(chosen["die_at"])
    sys.exit(main(sys.argv[2:]))
