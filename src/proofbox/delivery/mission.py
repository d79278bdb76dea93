"""Convert an app's spec into a suite with one mission, for `suite run`."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview
from proofbox.delivery.client.wire import AppSpec

_ID = re.compile(r"[^a-z0-9]+")
_MAX_LENGTH = 20_000
_NOT_EMPTY = 'test -n "$(ls -A)"'


def mission_from_spec(spec: AppSpec) -> str:
    """Return the suite as TOML. The spec's text is quoted, truncated and redacted."""
    plain = Redactor().redact_json(msgspec.to_builtins(spec))
    name = str(plain.get("appName") or plain["appId"])
    mission_id = _ID.sub("-", str(plain["appId"]).lower()).strip("-")[:60] or "app"
    stated = [
        ("Industry", plain.get("industry")),
        ("Tech stack", plain.get("techStack")),
        ("Feature flags", plain.get("featureFlags")),
    ]
    prompt = [f"Build the app {name!r} in this directory.", ""]
    if plain.get("description"):
        prompt += [str(plain["description"]), ""]
    prompt += [f"{label}: {_as_text(value)}" for label, value in stated if value]
    tags = ["app", *([f"industry:{plain['industry']}"] if plain.get("industry") else [])]
    return "\n".join(
        [
            "[suite]",
            f"id = {_toml(mission_id)}",
            "",
            "[[mission]]",
            f"id = {_toml(mission_id)}",
            f"tags = [{', '.join(_toml(tag) for tag in tags)}]",
            f"prompt = {_toml(preview(chr(10).join(prompt), _MAX_LENGTH)[0])}",
            "# A spec does not say how to check the app. This check passes for any directory that is not empty:",
            "# replace it with your own checks, because only what they test is proven.",
            f"verify = {{ commands = [{_toml(_NOT_EMPTY)}] }}",
            "",
        ]
    )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _toml(text: str) -> str:
    """Return a TOML basic string. TOML uses the escapes of JSON, but also requires escaping DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
