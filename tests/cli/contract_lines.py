"""The contract as short lines: one for each command, parameter, member of a document, and error code.

.venv/bin/python tests/cli/contract_lines.py > tests/cli/contract.txt

The texts for people (helps, meanings, hints) are left out: they are in the reference, which has its own check.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from proofbox.cli.commands.setup.contract import make_contract

Schema = dict[str, Any]
FOR_PEOPLE = {"description", "title", "examples"}


def contract_lines(contract: dict[str, Any] | None = None) -> list[str]:
    """Return a contract, by default that of the installed code, as lines."""
    contract = dict(contract or json.loads(msgspec.json.encode(make_contract())))
    types = _Types()
    lines = list(_commands(contract.pop("commands")))
    for section in ("schemas", "stored"):
        for name, document in contract.pop(section).items():
            at = "" if section == "schemas" else f" at {document['at']}"
            lines += ["", f"{'printed' if section == 'schemas' else 'stored'} {name}{at}"]
            lines += types.members(document if section == "schemas" else document["json_schema"])
    for name, facts in contract.pop("strategies").items():
        able = ", ".join(each for each, on in facts["capabilities"].items() if on)
        lines += ["", f"strategy {name}: {able}", *types.members(facts["settings"])]
    lines += types.lines()
    lines.append("")
    for code, facts in contract.pop("codes").items():
        again = ", retryable" if facts["retryable"] else ""
        lines.append(f"code {code}: exit {facts['exit_code']}{again}, a {facts['parent']}")
    lines.append("")
    del contract["version"]
    return [*lines, *(f"{name}: {json.dumps(value)}" for name, value in contract.items())]


def _commands(commands: dict[str, Any]) -> Iterator[str]:
    for path, facts in commands.items():
        printed = " or ".join([*facts["prints"], *(f"lines of {name}" for name in facts["streams"])])
        passes = ", passes the exit code" if facts["passes_exit_code"] else ""
        yield f"{path}: {printed}{passes}"
        for each in facts["parameters"]:
            rest = {name: value for name, value in each.items() if name not in ("name", "kind", "type", "help")}
            yield f"  {each['name']} {each['kind']} {each['type']}{_rest(rest)}"


class _Types:
    """The types that documents refer to by name. A name that two documents use differently gets a number."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}
        self._pending: list[tuple[str, Schema, Schema]] = []

    def members(self, schema: Schema) -> Iterator[str]:
        """Yield a line for each member of a document, or of each of its forms."""
        definitions = schema.get("$defs", {})
        for form in schema.get("anyOf", [schema]):
            whole = definitions[form["$ref"].removeprefix("#/$defs/")] if "$ref" in form else form
            yield from self._lines(whole, definitions)

    def lines(self) -> Iterator[str]:
        """Yield the lines of every type that was referred to."""
        found: dict[str, list[str]] = {}
        while self._pending:
            name, schema, definitions = self._pending.pop()
            found[name] = list(self._lines(schema, definitions))
        for name in sorted(found):
            yield from ("", f"type {name}", *found[name])

    def _lines(self, schema: Schema, definitions: Schema) -> Iterator[str]:
        if "properties" not in schema:
            yield f"  {self._text(schema, definitions)}"
            if "CREATE TABLE" in schema.get("description", ""):
                yield from (f"  {line.strip()}" for line in schema["description"].splitlines())
            return
        for name, member in schema["properties"].items():
            optional = "" if name in schema.get("required", ()) else "?"
            yield f"  {name}{optional}: {self._text(member, definitions)}"
        rest = {
            name: value for name, value in schema.items() if name not in ("properties", "required", "$defs", "type")
        }
        if words := _rest(rest):
            yield f" {words}"

    def _text(self, schema: Schema, definitions: Schema) -> str:
        rest = dict(schema)
        rest.pop("$defs", None)
        if "$ref" in schema:
            text = self._named(rest.pop("$ref").removeprefix("#/$defs/"), definitions)
        elif "anyOf" in schema:
            text = " | ".join(self._text(form, definitions) for form in rest.pop("anyOf"))
        elif "enum" in schema or "const" in schema:
            text = " | ".join(map(json.dumps, rest.pop("enum", None) or [rest.pop("const")]))
        elif "properties" in schema:
            required = rest.pop("required", ())
            members = rest.pop("properties").items()
            inner = (
                f"{name}{'' if name in required else '?'}: {self._text(each, definitions)}" for name, each in members
            )
            text = f"{{{', '.join(inner)}}}"
            rest.pop("type", None)
        elif isinstance(schema.get("additionalProperties"), dict):
            text = f"{{*: {self._text(rest.pop('additionalProperties'), definitions)}}}"
            rest.pop("type", None)
        elif isinstance(schema.get("items"), dict):
            text = f"({self._text(rest.pop('items'), definitions)})[]"
            rest.pop("type", None)
        elif "prefixItems" in schema:
            text = f"[{', '.join(self._text(each, definitions) for each in rest.pop('prefixItems'))}]"
            rest.pop("type", None)
        else:
            text = str(rest.pop("type", "any"))
        return text + _rest(rest)

    def _named(self, name: str, definitions: Schema) -> str:
        schema = definitions[name]
        key = name, json.dumps({**schema, "parts": _reachable(schema, definitions)}, sort_keys=True)
        if key not in self._known:
            same = sum(known == name for known, _ in self._known)
            self._known[key] = f"{name}.{same + 1}" if same else name
            self._pending.append((self._known[key], schema, definitions))
            list(self._lines(schema, definitions))  # names the types of its members
        return self._known[key]


def _reachable(schema: Schema, definitions: Schema) -> dict[str, Any]:
    """Return the definitions that a schema refers to, at any depth."""
    found: dict[str, Any] = {}
    pending = [schema]
    while pending:
        text = json.dumps(pending.pop())
        for name, definition in definitions.items():
            if f'"#/$defs/{name}"' in text and name not in found:
                found[name] = definition
                pending.append(definition)
    return found


def _rest(keywords: dict[str, Any]) -> str:
    """Return all other keywords, so that none can change unseen."""
    return "".join(f" {name}={json.dumps(value)}" for name, value in keywords.items() if name not in FOR_PEOPLE)


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in contract_lines())
