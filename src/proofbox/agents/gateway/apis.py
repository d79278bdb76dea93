"""What a request asks for: its API, its model, and whether its failure can be the endpoint's.

A program in the box writes paths, parameters, headers and bodies. Only plain requests to a model can show that the
endpoint has failed: an endpoint answers 401 or 403 on other paths, and parameters change the form of a response.
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import unquote_plus

import msgspec

Api = Literal["openai", "anthropic", "gemini", ""]

MAX_BODY = 32 << 20
"""The largest request whose failure can be the endpoint's. Servers close the connection during larger ones."""
MAX_PATH = 500
"""How much of a path is recorded."""
_MODEL_PATH = re.compile(
    r"[^?]*(?:/responses(?:/compact)?|/(?:chat/)?completions|/messages|:(?:streamG|g)enerateContent)"
    r"(?:\?(?:(?:alt=sse|beta=true|api-version=[\w.-]+)(?:&|$))+)?"
)
_KEYS = ("key", "$key", "api_key", "apikey", "api-key", "access_token", "oauth_token")
_FORMS = ("fields", "$fields", "alt", "$alt", "callback", "$callback")
"""Parameters of Google's APIs that leave members out of a response, or write it in another format."""
_READABLE = ("alt=sse", "alt=json")


class _Asked(msgspec.Struct):
    model: str = ""


def api_of(path: str) -> Api:
    """Return the API of a path; empty if the path belongs to several or is unknown."""
    path = path.partition("?")[0]
    if re.search(r"/(?:responses(?:/.*)?|completions)$", path):
        return "openai"
    if re.search(r"/messages(?:/.*)?$", path):
        return "anthropic"
    return "gemini" if ":" in path.rpartition("/")[2] else ""


def is_model_request(method: str, path: str) -> bool:
    """Return whether the request plainly asks a model, so that a failure can be the endpoint's."""
    return method == "POST" and len(path) < MAX_PATH and _MODEL_PATH.fullmatch(path) is not None


def model_of(body: bytes) -> str | None:
    """Return the model that a request names; empty if its path does, None if the body can't be read."""
    if len(body) > MAX_BODY:
        return None
    try:
        return msgspec.json.decode(body, type=_Asked).model[:200]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def forwarded_query(query: str) -> str:
    """Return the query without keys, which the gateway adds, and without parameters that hide the token usage."""
    return "&".join(each for each in query.split("&") if each in _READABLE or _is_forwarded(each))


def _is_forwarded(parameter: str) -> bool:
    return unquote_plus(parameter.partition("=")[0]).lower() not in (*_KEYS, *_FORMS)
