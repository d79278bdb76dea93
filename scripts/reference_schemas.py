"""SCHEMAS.md: every document that is printed or stored, as tables of its members."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from proofbox.cli.commands.setup.contract import ContractDocument
from proofbox.cli.schemas import OMITTED

ERROR = "proofbox.error/1"
OPENING = """# Schemas

Every document that proofbox prints with `--json` (its `schema` names it) or stores (`schema_version`). A reader
refuses a version that it does not know; `docs/schema-versions.md` says when a version changes and how old documents
are read. As JSON Schema they are in `proofbox contract --json`, under `schemas` and
`stored`.

In the tables, *?* marks a member that may be absent; a member with a default value then has that one (null, false, 0,
or empty, unless the table says otherwise). `sha256` is 64 lower-case hexadecimal digits, *time* is RFC 3339
in UTC. Where a stored document is: CONFIG, STATE and CACHE are `$XDG_CONFIG_HOME/proofbox` (`~/.config/proofbox`),
`$XDG_STATE_HOME/proofbox` (`~/.local/state/proofbox`) and `$XDG_CACHE_HOME/proofbox` (`~/.cache/proofbox`); OUT is
what `--out` names, RUN is `OUT/<run_id>`, BUNDLE the directory of any bundle, PROJECT a project's.
"""
Schema = dict[str, Any]
_USUAL = (None, False, 0, "", (), [], {})
"""Defaults of absent members that the tables do not state."""


def page(contract: ContractDocument) -> str:
    parts = Parts()
    printers: dict[str, list[str]] = {}
    for path, facts in contract.commands.items():
        for name in (*facts.prints, *facts.streams):
            printers.setdefault(name, []).append(f"`{path}`")
    body = ["## Printed", ""]
    for name, schema in contract.schemas.items():
        by = ", ".join(printers.get(name, []))
        by = (
            f"Printed by {by}." if by else "Printed by any command that fails." if name == ERROR else "Part of another."
        )
        body += [f"### {name}", "", by, "", *parts.tables(schema), ""]
    body += ["## Stored", ""]
    for name, stored in contract.stored.items():
        body += [
            f"### {name}",
            "",
            stored.meaning,
            "",
            f"Where: {stored.at}.",
            "",
            *parts.tables(stored.json_schema),
            "",
        ]
    body += ["## Parts", "", "Structures that several of the documents above contain.", "", *parts.chapters()]
    return "\n".join([*_opening(contract), *body])


def _opening(contract: ContractDocument) -> Iterator[str]:
    yield from (OPENING, "| printed | stored |", "|---|---|")
    left, right = list(contract.schemas), list(contract.stored)
    for number in range(max(len(left), len(right))):
        cells = (
            f"[`{names[number]}`](#{slug(names[number])})" if number < len(names) else "" for names in (left, right)
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


class Parts:
    """Collects the definitions that documents share. Different ones with the same name are numbered."""

    def __init__(self) -> None:
        self._titles: dict[tuple[str, str], str] = {}
        self._pending: list[tuple[str, Schema, Schema]] = []

    def tables(self, schema: Schema) -> Iterator[str]:
        """Return the tables of a document, or of one of its forms."""
        definitions = schema.get("$defs", {})
        forms = schema.get("anyOf", [schema])
        for form in forms:
            whole = definitions[_target(form)] if "$ref" in form else form
            if len(forms) > 1:
                yield from (f"**{whole.get('title', '')}**: {_line(whole.get('description', ''))}".rstrip(": "), "")
            if "properties" not in whole:
                yield from ("```sql", whole.get("description", ""), "```", "")
                continue
            yield from ("| member | type | meaning |", "|---|---|---|")
            yield from self._rows(whole, definitions)
            yield ""

    def chapters(self) -> Iterator[str]:
        chapters: dict[str, list[str]] = {}
        while self._pending:
            title, schema, definitions = self._pending.pop()
            lines = [f"### {title}", ""]
            if schema.get("description"):
                lines += [_line(schema["description"]), ""]
            lines += ["| member | type | meaning |", "|---|---|---|", *self._rows(schema, definitions), ""]
            chapters[title] = lines
        for title in sorted(chapters):
            yield from chapters[title]

    def _rows(self, schema: Schema, definitions: Schema, prefix: str = "") -> Iterator[str]:
        required = set(schema.get("required", ()))
        for name, inner in schema["properties"].items():
            meaning = _line(inner.get("description", ""))
            # Members with a default are written, unless the schema says otherwise; others may be absent.
            written = name in required or "const" in inner or ("default" in inner and not meaning.endswith(OMITTED))
            absent, meaning = "" if written else "?", meaning.removesuffix(OMITTED).rstrip()
            if absent and inner.get("default") not in _USUAL:
                meaning = f"{meaning} Absent: `{json.dumps(inner['default'])}`.".lstrip()
            yield f"| `{prefix}{name}`{absent} | {self._type(inner, definitions)} | {meaning} |"
            yield from self._inside(inner, definitions, f"{prefix}{name}")

    def _inside(self, schema: Schema, definitions: Schema, path: str) -> Iterator[str]:
        """Yield the members of an object that is described inline."""
        for form in schema.get("anyOf", ()):
            yield from self._inside(form, definitions, path)
        if "properties" in schema:
            yield from self._rows(schema, definitions, f"{path}.")
        elif schema.get("type") == "array" and isinstance(schema.get("items"), dict):
            yield from self._inside(schema["items"], definitions, f"{path}[]")
        elif isinstance(schema.get("additionalProperties"), dict):
            yield from self._inside(schema["additionalProperties"], definitions, f"{path}.*")

    def _type(self, schema: Schema, definitions: Schema) -> str:
        if "$ref" in schema:
            return self._part(_target(schema), definitions)
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(self._type(form, definitions) for form in schema["anyOf"]))
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            return " \\| ".join(f"`{json.dumps(value)}`" for value in values)
        match schema.get("type"):
            case "array" if "prefixItems" in schema:
                return f"[{', '.join(self._type(each, definitions) for each in schema['prefixItems'])}]"
            case "array":
                items = schema.get("items")
                if not isinstance(items, dict) or not items:
                    return "array"
                each = self._type(items, definitions)
                meant = definitions[_target(items)] if "$ref" in items else items
                return f"({each})[]" if len(meant.get("anyOf", meant.get("enum", ()))) > 1 else f"{each}[]"
            case "object" if isinstance(schema.get("additionalProperties"), dict):
                return f"{{text: {self._type(schema['additionalProperties'], definitions)}}}"
            case "string" if schema.get("pattern") == "^[0-9a-f]{64}$":
                return "sha256"
            case "string" if schema.get("format") == "date-time":
                return "time"
            case "string":
                return "text"
            case None:
                return "any"
            case kind:
                return str(kind)

    def _part(self, name: str, definitions: Schema) -> str:
        schema = definitions[name]
        if "properties" not in schema:
            return self._type(schema, definitions)
        key = name, json.dumps(schema, sort_keys=True)
        if key not in self._titles:
            same = sum(known == name for known, _ in self._titles)
            self._titles[key] = f"{name} ({same + 1})" if same else name
            self._pending.append((self._titles[key], schema, definitions))
            self._register(schema, definitions)
        return f"[{self._titles[key]}](#{slug(self._titles[key])})"

    def _register(self, schema: Schema, definitions: Schema) -> None:
        """Register the parts of a part as well, even if their table is not written yet."""
        for _ in self._rows(schema, definitions):
            pass


def _target(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix("#/$defs/")


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def slug(heading: str) -> str:
    """Return the anchor of a heading, which is the same on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
