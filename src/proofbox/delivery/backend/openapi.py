"""The OpenAPI description, generated from the structs that parse requests, so that both always agree."""

from __future__ import annotations

from typing import Any

import msgspec

from proofbox.delivery.client.transport import KEY_HEADER
from proofbox.delivery.client.wire import (
    AppSpec,
    ExportAnswer,
    InitialExport,
    ManifestRequest,
    PullRequest,
    PullRequestAnswer,
    RepoManifest,
)

_STATUSES = {
    400: "The body is not JSON.",
    401: "The key is missing or wrong.",
    403: "The app belongs to another user.",
    404: "An id is unknown.",
    409: "The request conflicts with the current state.",
    413: "The body is too large.",
    415: "The content type is not JSON.",
    422: "The body is JSON but does not match the schema.",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        },
        "prUrl": {"type": "string"},
    },
}
_KINDS = (AppSpec, ManifestRequest, RepoManifest, InitialExport, ExportAnswer, PullRequest, PullRequestAnswer)


def openapi_document() -> dict[str, Any]:
    schemas, components = msgspec.json.schema_components(_KINDS, ref_template="#/components/schemas/{name}")
    kinds: dict[Any, dict[str, Any]] = dict(zip(_KINDS, schemas, strict=True))
    key = {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "minLength": 1, "maxLength": 256}}

    def operation(name: str, summary: str, answer: type, body: type | None, *parameters: Any) -> dict[str, Any]:
        found: dict[str, Any] = {
            "operationId": name,
            "summary": summary,
            "parameters": list(parameters),
            "responses": {
                "200": {"description": "Done.", "content": _json(kinds[answer])},
                **{
                    str(status): {"description": text, "content": _json({"$ref": "#/components/schemas/Error"})}
                    for status, text in _STATUSES.items()
                },
            },
        }
        if body is not None:
            found["requestBody"] = {"required": True, "content": _json(kinds[body])}
        return found

    app, enterprise = _path_parameter("appId"), _path_parameter("entId")
    which = {"name": "appId", "in": "query", "schema": {"type": "string", "minLength": 1}}
    deploy = "/api/apps/{appId}/deploy/repo"
    return {
        "openapi": "3.1.0",
        "info": {"title": "proofbox reference backend", "version": "1"},
        "security": [{"key": []}],
        "paths": {
            "/api/enterprises/{entId}/appgen/spec": {
                "get": operation("getAppSpec", "Return an app's spec.", AppSpec, None, enterprise, which),
                "put": operation("putAppSpec", "Store an app's spec.", AppSpec, AppSpec, enterprise),
            },
            f"{deploy}/manifest": {
                "post": operation(
                    "getRepoManifest", "List the repository's files.", RepoManifest, ManifestRequest, app, key
                )
            },
            f"{deploy}/initial-export": {
                "post": operation(
                    "initialExport", "Create the repository from these files.", ExportAnswer, InitialExport, app, key
                )
            },
            f"{deploy}/pull-requests": {
                "post": operation(
                    "createPullRequest",
                    "Open a pull request with these changes.",
                    PullRequestAnswer,
                    PullRequest,
                    app,
                    key,
                )
            },
        },
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": KEY_HEADER}},
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
