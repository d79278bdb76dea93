"""`workspace effects`, `workspace tools`, `workspace call`: the tools of a workspace, and the log of their effects."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from proofbox.cli import flags
from proofbox.cli.commands.workspaces.workspace import Directory
from proofbox.cli.output import columns, show
from proofbox.cli.parameters import Parameter
from proofbox.errors import CapabilitiesRefused, UsageError
from proofbox.workspace.capabilities.grants import DEFAULT_CAPABILITIES

if TYPE_CHECKING:
    from proofbox.workspace.capabilities.capabilities import Capabilities
    from proofbox.workspace.capabilities.rules import PatternRules
    from proofbox.workspace.timeline.effects import Effect

CapabilitiesFlag = Annotated[
    str,
    Parameter(name="--capabilities", help="A file, or a preset: minimal, sandbox, developer, agent, unrestricted."),
]
Check = Annotated[
    str | None,
    Parameter(name="--check", help="A command that must pass after each change, or the change is rolled back."),
]


def effects(
    directory: Directory = Path(),
    /,
    *,
    since: Annotated[int, Parameter(name="--since", help="Skip the N oldest effects.")] = 0,
    limit: Annotated[int | None, Parameter(name="--limit", help="Show only the latest N effects.")] = None,
    json: flags.Json = False,
) -> int:
    """List the effects of tool calls in a workspace, including denied ones, oldest first.

    For example:
      proofbox workspace effects project
      proofbox workspace effects project --limit 20 --json
    """
    from proofbox.cli.commands.workspaces.documents import EffectsDocument
    from proofbox.workspace.workspace import Workspace

    if limit is not None and not 1 <= limit <= sys.maxsize:
        raise UsageError(f"--limit {limit} is out of range", op="workspace effects", fix_hints=["--limit 20"])
    with Workspace.open(directory, track=False) as workspace:
        found = tuple(deque(workspace.effects.entries(max(0, since)), maxlen=limit))
        document = EffectsDocument(workspace=workspace.id, effects=found)
    show(document, lambda: _table(found), as_json=json)
    return 0


def tools(
    directory: Directory = Path(),
    /,
    *,
    capabilities: CapabilitiesFlag = DEFAULT_CAPABILITIES,
    json: flags.Json = False,
) -> int:
    """List the tools an agent has in a workspace, their parameters, and whether the capabilities allow them.

    For example:
      proofbox workspace tools project --capabilities agent --json
    """
    from proofbox.cli.commands.workspaces.documents import ToolFacts, ToolsDocument
    from proofbox.workspace.tools.toolbox import open_toolbox

    with open_toolbox(directory, capabilities=capabilities, track=False) as box:
        missing = _missing(box.capabilities, str(box.workspace.path))
        found = tuple(
            ToolFacts(
                name=tool.name,
                description=tool.description,
                parameters=tool.schema,
                read_only=tool.read_only,
                available=not missing.get(tool.name),
                reason=missing.get(tool.name, ""),
            )
            for tool in box.registry.tools.values()
        )
        document = ToolsDocument(workspace=box.workspace.id, tools=found, capabilities=box.capabilities.grants)
    rows = [("TOOL", "WHAT IT DOES"), *((t.name, t.description if t.available else f"no: {t.reason}") for t in found)]
    show(document, lambda: columns(rows), as_json=json)
    return 0


def call(
    directory: Directory,
    tool: Annotated[str, Parameter(help="The tool's name; `proofbox workspace tools` lists them.")],
    /,
    *,
    args: Annotated[
        str, Parameter(name="--args", allow_leading_hyphen=True, help="Its arguments as JSON; - reads them from stdin.")
    ] = "{}",
    capabilities: CapabilitiesFlag = DEFAULT_CAPABILITIES,
    provider: flags.Provider = None,
    check: Check = None,
    json: flags.Json = False,
) -> int:
    """Call one tool on a workspace as an agent would: checked, recorded, with a snapshot after a change.

    For example:
      proofbox workspace call project read_file --args '{"path": "README.md"}'
      proofbox workspace call project run_command --args '{"command": "make test"}' --capabilities agent
    """
    from proofbox.cli.commands.workspaces.documents import CallDocument
    from proofbox.workspace.tools.toolbox import open_toolbox

    given = _stdin() if args == "-" else args
    with open_toolbox(
        directory, capabilities=capabilities, provider=provider, check=check, nudge=False, track=False
    ) as box:
        result = box.registry.call(tool, given)
    document = CallDocument(tool=tool, result=msgspec.to_builtins(result), text=result.text())
    show(document, lambda: document.text, as_json=json)
    return 0


def _stdin() -> bytes:
    from proofbox.workspace.tools.registry import ARGUMENTS_LIMIT

    if sys.stdin is None:
        raise UsageError("--args - was given, but stdin is closed", op="workspace call", fix_hints=["--args '{}'"])
    return sys.stdin.buffer.read(ARGUMENTS_LIMIT + 1)


def _missing(capabilities: Capabilities, root: str) -> dict[str, str]:
    """Return the tools that these capabilities never allow, each with the reason."""
    from proofbox.workspace.capabilities.compiling import compile_rules

    found: dict[str, str] = {}
    needs: dict[str, tuple[PatternRules[Any], tuple[str, ...]]] = {
        "fs.read": (capabilities.read, ("read_file", "search_text")),
        "fs.write": (capabilities.write, ("write_file", "edit_file", "apply_patch")),
        "fs.delete": (capabilities.delete, ("remove_file",)),
        "command": (capabilities.commands, ("run_command",)),
    }
    for kind, (rules, names) in needs.items():
        if not rules.allow:
            found |= dict.fromkeys(names, f"no {kind} rule allows anything")
    if "run_command" not in found:
        try:
            compile_rules(capabilities, root)
        except CapabilitiesRefused as error:
            found["run_command"] = error.message
    return found


def _table(found: tuple[Effect, ...]) -> str:
    if not found:
        return "no effects"
    rows = [("TIME", "KIND", "RESULT", "TARGET")]
    for each in found:
        ended = {"intent": "", "denied": "denied", "note": "note"}.get(each.phase)
        if ended is None:
            code = "" if each.exit_code is None else f"exit {each.exit_code}"
            ended = each.error or code or "ok"
        rows.append((each.time[:19] + "Z", each.kind, ended, (each.target or each.note)[:100].replace("\n", " ")))
    return columns(rows)
