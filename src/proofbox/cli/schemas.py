"""Every document that is printed or stored, as a JSON Schema with what each member means.

The types are the source of both: a member's meaning is the text below it in its class, or that of its name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
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
        "proofbox.agents.runtimes.scripted.threads",
        "proofbox.delivery.record",
        "proofbox.evidence.documents.witnesses",
        "proofbox.lab.run.limiter",
    ),
)
"""What declares documents and is loaded with no command, only where an agent runs, or a bundle is written or sent."""


class StoredFacts(msgspec.Struct, frozen=True):
    at: str
    """Where it is found. CONFIG, STATE and CACHE are the user's directories, BUNDLE and RUN those of evidence."""
    meaning: str
    """What it is."""
    json_schema: dict[str, Any]
    """Of the whole; of a log, of one line."""


def printed() -> dict[str, Any]:
    """By the schema's name. The modules of all commands must be loaded by now."""
    kinds: list[type[Document]] = [*Document.__subclasses__()]
    for kind in kinds:
        kinds.extend(kind.__subclasses__())
    named = {schema_of(kind): kind for kind in kinds if schema_of(kind)}
    return {name: _stating(json_schema(kind), "schema", name) for name, kind in sorted(named.items())}


def stored() -> dict[str, StoredFacts]:
    """By the schema's name, or by the file's where it states none."""
    for module in LOADED_LATE:
        importlib.import_module(module)
    return {
        name: StoredFacts(each.at, each.meaning, _stating(json_schema(each.shape), "schema_version", name))
        for name, each in sorted(STORED.items())
    }


def json_schema(shape: Any) -> dict[str, Any]:
    """Of a type, of one of several types, or of what is a JSON Schema already."""
    if isinstance(shape, dict):
        return deepcopy(shape)
    kinds = shape if isinstance(shape, tuple) else (shape,)
    refs, definitions = msgspec.json.schema_components(kinds, schema_hook=_unknown)
    for kind in _structs(kinds):
        described = definitions.get(kind.__name__, {}).get("properties", {})
        for name, meaning in {**NOUNS, **meanings(kind)}.items():
            if name in described:
                described[name] = {**described[name], "description": meaning}
    top = refs[0] if len(refs) == 1 else {"anyOf": list(refs)}
    found: dict[str, Any] = _tidied({**top, "$defs": dict(sorted(definitions.items()))})
    return found


def _unknown(kind: type) -> dict[str, Any]:
    return {} if kind is msgspec.Raw else {"type": "string"}  # paths and the like are written as text


def _stating(schema: dict[str, Any], member: str, name: str) -> dict[str, Any]:
    """With the member that says which document it is, and what it says there."""
    if not name.startswith("proofbox."):
        return schema
    for form in schema.get("anyOf", [schema]):
        whole = schema["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
        properties = whole.get("properties", {})
        said = {"schema", member} & properties.keys()
        if "anyOf" in schema and not said:  # its types leave it to whoever writes one of them
            whole["properties"] = {member: {}, **properties}
            whole["required"] = [member, *whole.get("required", [])]
            said = {member}
        for each in said:
            meaning = whole["properties"][each].get("description", NOUNS[each])
            whole["properties"][each] = {"const": name, "description": meaning}
    return schema


def _structs(kinds: tuple[Any, ...]) -> set[type]:
    """The classes that a document is made of."""
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
    """Of each member, by the name it is written under, the text that stands below it in the class."""
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
    """Of the classes of a module, by qualified name, the text below each member. Nothing where there is no source."""
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
    """Descriptions without the indentation of the source: Python 3.13 strips it from docstrings, and others don't."""
    if isinstance(schema, dict):
        return {
            name: inspect.cleandoc(value) if name == "description" and isinstance(value, str) else _tidied(value)
            for name, value in schema.items()
        }
    return [_tidied(value) for value in schema] if isinstance(schema, list) else schema
