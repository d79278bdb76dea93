"""docs/reference/sdk.md: each public name of the package, with its signature and what its docstring says."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

import proofbox
from proofbox.cli.glossary import NOUNS
from proofbox.cli.schemas import meanings

WIDTH = 110

# Result types: docs/design/0050-the-public-face.md.
MET = {
    "sandbox.service": ("Session",),
    "sandbox.async_service": ("AsyncSession",),
    "sandbox.sessions": ("SessionInfo",),
    "sandbox.contract": (
        "ExecResult",
        "Output",
        "Event",
        "Policy",
        "Isolation",
        "ProviderSelection",
        "Diagnostic",
        "Door",
    ),
    "sandbox.images.catalogue": ("Image",),
    "workspace.model": ("Snapshot", "Status", "Change", "RollbackResult"),
    "workspace.tools.contract": ("ToolEnvironment", "ToolResult"),
    "lab.attempt.adhoc.request": ("AttemptRun", "AttemptFork"),
    "evidence.bundle.reader": ("Bundle", "UnverifiedBundle"),
    "evidence.verify.verification": ("Verification",),
    "evidence.promotion.emit": ("Promotion",),
    "lab.reports.suite_status": ("SuiteStatus", "RunningAttempt", "RunNode"),
    "lab.reports.suite_run": ("SuiteRun", "AttemptFacts", "Explanation"),
    "lab.reports.totals": ("Totals",),
    "lab.run.events": ("RunStarted", "SuiteEvent"),
    "lab.reports.scoring": ("Validation", "MetricsReport"),
    "lab.reports.finding": ("EvidenceFinding",),
    "lab.doctor": ("DoctorReport", "ProviderReport", "CheckDone"),
    "lab.garbage": ("CollectedGarbage",),
    "lab.run.retention": ("RetentionItem",),
    "delivery.documents": ("DeliveryPlan", "Delivery"),
    "delivery.proof": ("Proof",),
    "core.results": ("ErrorBody",),
}


def page() -> str:
    lines = [
        "# Python",
        "",
        inspect.cleandoc(proofbox.__doc__ or "").partition("\n")[0],
        "",
        "These are the public names: `import proofbox`, then `proofbox.NAME`. The types of their results are",
        "[listed below](#result-types). Everything else may change. Every error is a `proofbox.ProofboxError`;",
        "the codes are in [errors](errors.md).",
        "",
        *(f"- [`{name}`](#{name.lower()})" for name in sorted(proofbox.__all__, key=str.lower)),
        "",
    ]
    for name in sorted(proofbox.__all__, key=str.lower):
        lines += [f"## {name}", "", *_describe(name, getattr(proofbox, name)), ""]
    lines += [
        "## Result types",
        "",
        "Types for annotations, by the module that defines them. The results that commands",
    ]
    lines += ["print with `--json` are described with every member in SCHEMAS.md.", ""]
    lines += ["| type | module | meaning |", "|---|---|---|"]
    for module, names in MET.items():
        for name in names:
            value = getattr(importlib.import_module(f"proofbox.{module}"), name)
            lines.append(f"| `{name}` | `proofbox.{module}` | {_first(value)} |")
    lines.append("")
    return "\n".join(lines)


def _describe(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        yield from (f"The module `{value.__name__}`. {_first(value)} All of them are in [errors](errors.md).", "")
        return
    if inspect.isclass(value) and issubclass(value, proofbox.ProofboxError):
        yield from (f"An error: `{value.code}`, exit code {value.exit_code}.", "")
    elif not getattr(value, "_is_protocol", False):
        yield from ("```python", _signature(name, value), "```", "")
    yield from _words(value)
    if inspect.isclass(value):
        yield from _members(value)


def _words(value: Any) -> Iterator[str]:
    text = inspect.cleandoc(value.__doc__ or "") if value.__doc__ else ""
    if text and not text.startswith("Initialize self"):
        yield from (text, "")


def _members(kind: type) -> Iterator[str]:
    if issubclass(kind, msgspec.Struct):
        texts = {**NOUNS, **meanings(kind)}
        yield from ("| member | type | meaning |", "|---|---|---|")
        for field in msgspec.structs.fields(kind):
            annotation = _plain(_annotations(kind).get(field.name, "")).replace("|", "\\|")
            yield f"| `{field.name}` | `{annotation}` | {' '.join(texts.get(field.name, '').split())} |"
        yield ""
    for name, member in _public(kind):
        if isinstance(member, property):
            yield from (f"- `{name}`: {_first(member)}".rstrip(": "), "")
        else:
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            yield from ("```python", _signature(f"{kind.__name__}.{name}", function), "```", "")
            yield from _words(function)


def _public(kind: type) -> Iterator[tuple[str, Any]]:
    """Return our own methods and properties, including inherited ones."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("proofbox"):
            continue
        for name, member in vars(base).items():
            wanted = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
            if wanted and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, member


def _annotations(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found |= inspect.get_annotations(base)
    return found


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    words: list[str] = []
    parameters = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    parameters = [inner for each in parameters for inner in _unpacked(each, value)]
    star = False
    for number, each in enumerate(parameters):
        if each.kind is each.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        star = star or each.kind is each.VAR_POSITIONAL
        words.append(_parameter(each))
        after = parameters[number + 1].kind if number + 1 < len(parameters) else None
        if each.kind is each.POSITIONAL_ONLY and after is not each.POSITIONAL_ONLY:
            words.append("/")
    ends = "" if signature.return_annotation is signature.empty else f" -> {_plain(signature.return_annotation)}"
    lead = "async " if inspect.iscoroutinefunction(value) else ""
    line = f"{lead}{name}({', '.join(words)}){'' if inspect.isclass(value) else ends}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{lead}{name}(\n{inner}){'' if inspect.isclass(value) else ends}"


def _unpacked(each: inspect.Parameter, function: Any) -> list[inspect.Parameter]:
    """Yield the keywords of `**options: Unpack[…]`, which several calls share."""
    if each.kind is not each.VAR_KEYWORD or not str(each.annotation).startswith("Unpack["):
        return [each]
    options = vars(sys.modules[function.__module__])[str(each.annotation).removeprefix("Unpack[").removesuffix("]")]
    return [
        inspect.Parameter(name, each.KEYWORD_ONLY, annotation=getattr(kind, "__forward_arg__", kind), default=...)
        for name, kind in options.__annotations__.items()
    ]


def _parameter(each: inspect.Parameter) -> str:
    stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    text = stars + each.name
    if each.annotation is not each.empty:
        text += f": {_plain(each.annotation)}"
    if each.default is not each.empty:
        shown = repr(each.default)
        # A default without a source spelling (a sentinel, a struct) is shown as "some default".
        text += f" = {shown if isinstance(each.default, str | int | float | bool | tuple | None) else '...'}"
    return text


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    text = re.sub(r"\b_Path\b", "str | os.PathLike[str]", text)  # an alias in many modules
    # 3.13 has moved pathlib; its names are where they were.
    return text.replace("typing.", "").replace("pathlib._local.", "pathlib.").strip("'")


def _first(member: Any) -> str:
    return " ".join(inspect.cleandoc(member.__doc__ or "").partition("\n\n")[0].split())
