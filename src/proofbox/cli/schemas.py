"""Generate the JSON Schema of every printed or stored document, with a description of each member.

Schemas and descriptions come from the types: a member's description is the docstring below it in its class, or else the
glossary's entry for its name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from copy import deepcopy
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec

from proofbox.cli.describe import schema_of
from proofbox.cli.glossary import NOUNS
from proofbox.cli.output import Document
from proofbox.core.documents import STORED

LOADED_LATE = (
    *(
        "proofbox.agents.runtimes.acp.threads",
        "proofbox.agents.runtimes.claude.threads",
        "proofbox.agents.runtimes.scripted.threads",
        "proofbox.delivery.record",
        "proofbox.evidence.documents.witnesses",
        "proofbox.lab.campaign.registration",
        "proofbox.lab.attempt.adhoc.explore",
        "proofbox.lab.campaign.regrading",
        "proofbox.lab.reports.campaigns.loading",
        "proofbox.lab.run.limiter",
        "proofbox.probes.documents",
        "proofbox.viewer.annotations",
    ),
)
"""Modules that declare documents but are loaded by no command, only when an agent runs or a bundle is written."""
OMITTED = "May be absent."
"""The end of the description of a member that is absent if it has its default value."""
_EXAMPLE = re.compile(r"\n\nFor example:\n(\n {4}.*)+")


class StoredFacts(msgspec.Struct, frozen=True):
    at: str
    """Its location. CONFIG, STATE and CACHE are the user's directories; BUNDLE and RUN are evidence directories."""
    meaning: str
    """A description of the document."""
    json_schema: dict[str, Any]
    """The JSON Schema of the document; of a log, the schema of one line."""


def printed() -> dict[str, Any]:
    """Return the schemas of all printed documents by name. The modules of all commands must be loaded."""
    kinds: list[type[Document]] = [*Document.__subclasses__()]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    named = {schema_of(kind): kind for kind in kinds if schema_of(kind)}
    return {name: _stating(json_schema(kind), "schema", name) for name, kind in sorted(named.items())}


def stored() -> dict[str, StoredFacts]:
    """Return the stored documents by schema name, or by file name for files that state no schema."""
    for module in LOADED_LATE:
        importlib.import_module(module)
    return {
        name: StoredFacts(each.at, each.meaning, _stating(json_schema(each.shape), "schema_version", name))
        for name, each in sorted(STORED.items())
    }


def json_schema(shape: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type or of a union given as a tuple; copy a dict that is a schema already."""
    if isinstance(shape, dict):
        return deepcopy(shape)
    kinds = shape if isinstance(shape, tuple) else (shape,)
    refs, definitions = msgspec.json.schema_components(kinds, schema_hook=_unknown)
    for kind in _structs(kinds):
        described = definitions.get(kind.__name__, {}).get("properties", {})
        for name, meaning in {**NOUNS, **meanings(kind)}.items():
            if name in described:
                described[name] = {**described[name], "description": meaning}
        if issubclass(kind, msgspec.Struct) and kind.__struct_config__.omit_defaults:
            for member in described.values():
                if "default" in member:
                    member["description"] = f"{member.get('description', '')} {OMITTED}".lstrip()
    top = refs[0] if len(refs) == 1 else {"anyOf": list(refs)}
    found: dict[str, Any] = _tidied({**top, "$defs": dict(sorted(definitions.items()))})
    return found


def _unknown(kind: type) -> dict[str, Any]:
    return {} if kind is msgspec.Raw else {"type": "string"}  # paths, for example, are written as text


def _stating(schema: dict[str, Any], member: str, name: str) -> dict[str, Any]:
    """Require the member that names the document to have the value `name`."""
    if not name.startswith("proofbox."):
        return schema
    for form in schema.get("anyOf", [schema]):
        whole = schema["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
        properties = whole.get("properties", {})
        stated = {"schema", member} & properties.keys()
        if "anyOf" in schema and not stated:  # the writer adds the member to these types
            whole["properties"] = {member: {}, **properties}
            whole["required"] = [member, *whole.get("required", [])]
            stated = {member}
        for each in stated:
            meaning = whole["properties"][each].get("description", NOUNS[each])
            whole["properties"][each] = {"const": name, "description": meaning}
    return schema


def _structs(kinds: tuple[Any, ...]) -> set[type]:
    """Return all struct classes that a document consists of."""
    found: set[type] = set()
    pending: list[Any] = list(msgspec.inspect.multi_type_info(kinds))
    while pending:
        each = pending.pop()
        if isinstance(each, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
            if each.cls in found:
                continue
            found.add(each.cls)
            pending += [field.type for field in each.fields]
        elif isinstance(each, msgspec.inspect.Type):
            inner = [getattr(each, name) for name in each.__struct_fields__]
            pending += [one for value in inner for one in (value if isinstance(value, tuple) else (value,))]
    return found


def meanings(kind: type) -> dict[str, str]:
    """Return the docstring below each member of a class, by the member's encoded name."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("proofbox."):
            found |= _texts(base.__module__).get(base.__qualname__, {})
    if issubclass(kind, msgspec.Struct):
        written = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
        found = {written.get(name, name): text for name, text in found.items()}
    return found


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """Return the member docstrings of a module's classes, by qualified name; empty if there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, KeyError):
        return {}
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for member, below in pairwise(node.body):
            match member, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found.setdefault(node.name, {})[name] = inspect.cleandoc(text)
    return found


def _tidied(schema: Any) -> Any:
    """Strip indentation and examples in Python from descriptions, which are docstrings. Python 3.13 strips indentation
    itself, older versions do not."""
    if isinstance(schema, dict):
        return {
            name: _EXAMPLE.sub("", inspect.cleandoc(value))
            if name == "description" and isinstance(value, str)
            else _tidied(value)
            for name, value in schema.items()
        }
    return [_tidied(value) for value in schema] if isinstance(schema, list) else schema
