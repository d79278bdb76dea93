"""The HTTP API: authentication, validation of requests, and errors with a status, a code and a message."""

from __future__ import annotations

import base64
import binascii
import hashlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proofbox.delivery.backend.openapi import openapi_document
from proofbox.delivery.backend.repositories import Repositories
from proofbox.delivery.backend.rules import BackendRefusal
from proofbox.delivery.client.settings import ApiKey
from proofbox.delivery.client.transport import KEY_HEADER
from proofbox.delivery.client.wire import AppSpec, InitialExport, ManifestRequest, PullRequest
from proofbox.errors import RepositoryFailed

log = logging.getLogger("proofbox.backend")

MAX_BODY = 256 << 20
MAX_SMALL_BODY = 1 << 20
_MAX_ID = 128
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes, over one set of repositories and one key."""

    def __init__(self, repositories: Repositories, key: ApiKey, *, max_body: int = MAX_BODY) -> None:
        self._repositories = repositories
        self._key = key
        self._max_body = max_body
        self._openapi = msgspec.json.encode(openapi_document())

    def routes(self) -> list[Route]:
        deploy = "/api/apps/{app_id}/deploy/repo"
        spec = "/api/enterprises/{enterprise_id}/appgen/spec"
        git = "/git/{owner}/{name}.git"
        return [
            Route("/openapi.json", self._document, methods=["GET"]),
            Route(spec, self._answering(self._get_spec), methods=["GET"]),
            Route(spec, self._answering(self._put_spec), methods=["PUT"]),
            Route(f"{deploy}/manifest", self._answering(self._manifest), methods=["POST"]),
            Route(f"{deploy}/initial-export", self._answering(self._export), methods=["POST"]),
            Route(f"{deploy}/pull-requests", self._answering(self._propose), methods=["POST"]),
            Route(f"{git}/info/refs", self._answering(self._git_refs), methods=["GET"]),
            Route(f"{git}/git-upload-pack", self._answering(self._git_fetch), methods=["POST"]),
        ]

    async def _document(self, _: Request) -> Response:
        return Response(self._openapi, media_type="application/json")

    # The operations

    async def _get_spec(self, request: Request) -> Response:
        app = request.query_params.get("appId")
        return _json(await _in_thread(self._repositories.specs.get, _id(request, "enterprise_id"), app))

    async def _put_spec(self, request: Request) -> Response:
        _, spec = await self._body(request, AppSpec, MAX_SMALL_BODY)
        return _json(await _in_thread(self._repositories.specs.put, _id(request, "enterprise_id"), spec))

    async def _manifest(self, request: Request) -> Response:
        _, body = await self._body(request, ManifestRequest, MAX_SMALL_BODY)
        return _json(await _in_thread(self._repositories.manifest, _id(request, "app_id"), body))

    async def _export(self, request: Request) -> Response:
        digest, body = await self._body(request, InitialExport, self._max_body)
        key = _idempotency_key(request) or body.idempotency_key
        return _json(await _in_thread(self._repositories.export, _id(request, "app_id"), body, key, digest))

    async def _propose(self, request: Request) -> Response:
        digest, body = await self._body(request, PullRequest, self._max_body)
        key = _idempotency_key(request) or body.idempotency_key
        return _json(await _in_thread(self._repositories.propose, _id(request, "app_id"), body, key, digest))

    # Read access with git

    async def _git_refs(self, request: Request) -> Response:
        if request.query_params.get("service") != "git-upload-pack":
            raise BackendRefusal(403, "read_only", "repositories are read-only here; change them with pull requests")
        git = self._repositories.git_of(_full_name(request))
        listing = await _in_thread(git.serve, "--advertise-refs")
        head = b"001e# service=git-upload-pack\n0000"
        return _git(head + listing, "advertisement")

    async def _git_fetch(self, request: Request) -> Response:
        git = self._repositories.git_of(_full_name(request))
        if request.headers.get("content-encoding", "identity") != "identity":
            raise BackendRefusal(415, "encoding_unknown", "send it uncompressed: git -c http.postBuffer=100000000")
        body = await self._read(request, MAX_SMALL_BODY)
        return _git(await _in_thread(partial(git.serve, stdin=bytes(body))), "result")

    # Helpers

    def _answering(self, endpoint: Endpoint) -> Endpoint:
        async def answer(request: Request) -> Response:
            try:
                self._check_key(request)
                return await endpoint(request)
            except BackendRefusal as refusal:
                return refused(refusal)
            except RepositoryFailed as error:
                log.warning("%s %s: %s", request.method, request.url.path, error.message)
                return refused(BackendRefusal(500, "repository_failed", "a git operation failed"))

        return answer

    def _check_key(self, request: Request) -> None:
        given = request.headers.get(KEY_HEADER)
        if given is None and request.url.path.startswith("/git/"):
            given = _password(request.headers.get("authorization", ""))
        if given is None or not self._key.matches(given):
            raise BackendRefusal(401, "key_unknown", "the key is missing or wrong")

    async def _body(self, request: Request, kind: type[T], limit: int) -> tuple[str, T]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise BackendRefusal(415, "not_json", "send application/json")
        data = await self._read(request, limit)
        try:
            return hashlib.sha256(data).hexdigest(), msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError as error:
            raise BackendRefusal(422, "invalid", str(error)[:500]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BackendRefusal(400, "malformed", "the body is not JSON") from None

    async def _read(self, request: Request, limit: int) -> bytearray:
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > limit:
            raise BackendRefusal(413, "too_large", f"a request may have at most {limit} bytes")
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise BackendRefusal(413, "too_large", f"a request may have at most {limit} bytes")
        return body  # not copied: an export may take most of the memory


def refused(refusal: BackendRefusal) -> Response:
    body: dict[str, Any] = {"error": {"code": refusal.code, "message": refusal.message}}
    if refusal.pr_url:
        body["prUrl"] = refusal.pr_url
    headers = {"WWW-Authenticate": 'Basic realm="proofbox"'} if refusal.status == 401 else None
    return JSONResponse(body, refusal.status, headers)


async def http_error(_: Request, error: Exception) -> Response:
    """Format starlette's own errors like ours: an unknown path, or a method that is not allowed."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = refused(BackendRefusal(status, f"http_{status}", "this path or method does not exist"))
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer


def _json(document: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")


def _git(body: bytes, what: str) -> Response:
    headers = {"Cache-Control": "no-cache"}
    return Response(body, media_type=f"application/x-git-upload-pack-{what}", headers=headers)


async def _in_thread(work: Callable[..., T], *arguments: Any) -> T:
    return await anyio.to_thread.run_sync(partial(work, *arguments))


def _id(request: Request, name: str) -> str:
    value = str(request.path_params[name])
    if len(value) > _MAX_ID or not value.isprintable():
        raise BackendRefusal(404, f"{name.removesuffix('_id')}_unknown", "this is not a valid id")
    return value


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 256:
        raise BackendRefusal(422, "idempotency_key_invalid", "an idempotency key must have 1 to 256 characters")
    return key


def _full_name(request: Request) -> str:
    return f"{request.path_params['owner']}/{request.path_params['name']}"


def _password(authorization: str) -> str | None:
    """Return the password of HTTP basic authentication, which git uses: any user name, and the key."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return None
