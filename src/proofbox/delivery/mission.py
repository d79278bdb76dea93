"""An app's spec as a mission: a suite of one, in the form that `suite run` takes."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from proofbox.core.redaction.redactor import Redactor
from proofbox.core.text import preview
from proofbox.delivery.client.wire import AppSpec

_ID = re.compile(r"[^a-z0-9]+")
_LONGEST = 20_000
_NOT_EMPTY = 'test -n "$(ls -A)"'


def mission_from_spec(spec: AppSpec) -> str:
    """TOML. The spec is someone's text: it is quoted, bounded, and whatever looks like a secret is not in it."""
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
    prompt += [f"{label}: {_told(value)}" for label, value in stated if value]
    tags = ["app", *([f"industry:{plain['industry']}"] if plain.get("industry") else [])]
    return "\n".join(
        [
            "[suite]",
            f"id = {_toml(mission_id)}",
            "",
            "[[mission]]",
            f"id = {_toml(mission_id)}",
            f"tags = [{', '.join(_toml(tag) for tag in tags)}]",
            f"prompt = {_toml(preview(chr(10).join(prompt), _LONGEST)[0])}",
            "# A spec does not say how to tell that the app is right. This holds for anything that is not empty:",
            "# put your own checks here, since what they don't test is not proven.",
            f"verify = {{ commands = [{_toml(_NOT_EMPTY)}] }}",
            "",
        ]
    )


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _toml(text: str) -> str:
    """A basic string. JSON's escapes are TOML's, but for DEL, which TOML wants escaped as well."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
