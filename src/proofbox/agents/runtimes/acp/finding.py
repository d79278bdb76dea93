"""Find the program of a known agent on this machine, and what to mount so that it runs in a box.

A native program is mounted as one file. A program for Node.js is a script in a tree of packages: the whole tree is
mounted, with a Node.js that is new enough.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import msgspec

from proofbox.agents.runtimes.acp.profiles import AcpProfile
from proofbox.agents.runtimes.installed import ask_program, named_program, npm_machine, program_on_path
from proofbox.core.text import preview
from proofbox.errors import StrategyUnavailable
from proofbox.sandbox.contract import Mount

INSIDE = "/run/acp"
_SCRIPTS = (".js", ".cjs", ".mjs")


class AgentProgram(msgspec.Struct, frozen=True):
    """A program, the command line that starts it in a box or on the host, and its mounts."""

    path: Path
    found_by: str
    boxed: tuple[str, ...]
    direct: tuple[str, ...]
    mounts: tuple[Mount, ...]
    version: str
    """The version of its npm package; empty if it is not in a package. The agent states its version when it starts."""


def find_agent(profile: AcpProfile, setting: str | None = None, path: str | None = None) -> AgentProgram:
    """Find the program. Raises `StrategyUnavailable` if it is not installed, or if its Node.js is missing or too old.

    The search order is the setting, the PATH, and the environment of this Python.
    """
    if setting is not None:
        return _program(profile, named_program(setting, profile.install), "setting")
    real = program_on_path(profile.program, path)
    if real is not None:
        return _program(profile, real, "PATH")
    beside = Path(sys.prefix) / "bin" / profile.program
    if os.access(beside, os.X_OK):
        return _program(profile, beside.resolve(), "environment")
    raise StrategyUnavailable(f"{profile.program} is not installed", op="probe", fix_hints=profile.install)


def _program(profile: AcpProfile, launcher: Path, found_by: str) -> AgentProgram:
    native = _native(profile, launcher)
    if native is not None:
        inside = f"{INSIDE}/{profile.program}"
        return AgentProgram(native, found_by, (inside,), (str(native),), (Mount(native, inside),), _version(native))
    tree = next((each for each in reversed(launcher.parents) if each.name == "node_modules"), launcher.parent)
    node = _node(profile, tree)
    script = f"{INSIDE}/{tree.name}/{launcher.relative_to(tree)}"
    mounts = (Mount(tree, f"{INSIDE}/{tree.name}"), Mount(node, f"{INSIDE}/node"))
    direct = (str(node), str(launcher))
    return AgentProgram(launcher, found_by, (f"{INSIDE}/node", script), direct, mounts, _version(launcher))


def _native(profile: AcpProfile, launcher: Path) -> Path | None:
    """Return the program itself, or the one behind npm's launcher, from the package for this platform."""
    machine = npm_machine()
    if profile.native_package:
        package = next((each for each in launcher.parents if each.parent.name == "node_modules"), launcher.parent)
        for modules in (package.parent, package / "node_modules"):
            for kind in ("", "-baseline", "-musl"):
                program = modules / f"{profile.native_package}-linux-{machine}{kind}" / "bin" / profile.program
                if os.access(program, os.X_OK):
                    return program.resolve()
    return launcher if launcher.suffix not in _SCRIPTS else None


def _node(profile: AcpProfile, tree: Path) -> Path:
    """Return a Node.js that is new enough: from npm's package `node` beside the agent, or from the PATH.

    The package `node` contains the program only if its scripts were run; the one for this platform always does.
    """
    install = ("npm install -g node", *profile.install)
    found = ""
    packages = [tree / name / "bin" / "node" for name in ("node", f"node-linux-{npm_machine()}")]
    for node in (*packages, program_on_path("node")):
        if node is None or not os.access(node, os.X_OK):
            continue
        version = ask_program(node, ["--version"], "NODE_HOME", install).strip()
        major = re.match(r"v(\d+)\.", version)
        if major and int(major[1]) >= profile.node:
            return node.resolve()
        found = version[:40]
    raise StrategyUnavailable(
        f"{profile.program} needs Node.js {profile.node} or newer; " + (f"found {found}" if found else "found none"),
        op="probe",
        fix_hints=install,
        details={"node": found, "minimum": profile.node},
    )


def _version(program: Path) -> str:
    package = next((each / "package.json" for each in program.parents if (each / "package.json").is_file()), None)
    try:
        version = msgspec.json.decode(package.read_bytes())["version"] if package is not None else ""
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return ""
    return preview(str(version), 40)[0]
