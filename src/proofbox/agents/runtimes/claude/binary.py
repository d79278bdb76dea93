"""Find the claude program, and check whether its version is supported.

The search order is the setting, the PATH, and the PyPI package `claude-agent-sdk`. npm may put a script on the
PATH that starts the real program from another package; the box needs the program itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from proofbox.agents.runtimes.installed import (
    ask_program,
    named_program,
    npm_machine,
    packaged_program,
    program_on_path,
    supported_version,
)
from proofbox.errors import StrategyUnavailable

MINIMUM = (2, 1, 197)
INSTALL = (
    "npm install -g @anthropic-ai/claude-code",
    "or: pip install claude-agent-sdk",
    "or set `binary` to the program's path",
)
HOME_VARIABLE = "CLAUDE_CONFIG_DIR"


class ClaudeBinary(msgspec.Struct, frozen=True):
    path: Path
    found_by: str


def find_claude(setting: str | None = None, path: str | None = None) -> ClaudeBinary:
    if setting is not None:
        named = named_program(setting, INSTALL[:2])
        return ClaudeBinary(_native(named) or named, "setting")
    real = program_on_path("claude", path)
    if real is not None:
        native = _native(real)
        return ClaudeBinary(native, "npm") if native is not None else ClaudeBinary(real, "PATH")
    packaged = packaged_program("claude_agent_sdk", "_bundled", "claude")
    if packaged is not None:
        return ClaudeBinary(packaged, "PyPI")
    raise StrategyUnavailable("claude is not installed", op="probe", fix_hints=INSTALL)


def ask_version(binary: ClaudeBinary) -> str:
    """Return the version. Raises an error if it is not supported."""
    text = ask_program(binary.path, ["--version"], HOME_VARIABLE, INSTALL[:2])
    return supported_version("claude", text, MINIMUM, INSTALL[:2])


def _native(launcher: Path) -> Path | None:
    """Return the program behind npm's script, from the package for this platform."""
    if launcher.suffix not in (".js", ".cjs", ".mjs"):
        return None
    machine = npm_machine()
    package = next((each for each in launcher.parents if each.name == "claude-code"), launcher.parent)
    for modules in (package.parent, package / "node_modules" / "@anthropic-ai"):
        for libc in ("", "-musl"):
            program = modules / f"claude-code-linux-{machine}{libc}" / "claude"
            if os.access(program, os.X_OK):
                return program.resolve()
    return None
