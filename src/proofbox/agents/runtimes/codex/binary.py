"""Find the codex program, and check whether its version is supported.

The search order is the setting, the PATH, and the PyPI package `openai-codex-cli-bin`. npm puts a script on the
PATH that starts the real program from another package; the box needs the program itself.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import msgspec

from proofbox.agents.runtimes.installed import (
    ask_program,
    named_program,
    npm_machine,
    packaged_program,
    program_on_path,
    supported_version,
)
from proofbox.core.dirs import cache_dir
from proofbox.core.files.atomic import write_document
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import RuntimeIncompatible, StrategyUnavailable
from proofbox.sandbox.host.scratch import Scratch

MINIMUM = (0, 160, 0)
INSTALL = (
    "npm install -g @openai/codex",
    "or: pip install openai-codex-cli-bin",
    "or set `binary` to the program's path",
)
REQUIRED = {
    "ClientRequest": (
        *("initialize", "thread/start", "thread/resume", "thread/fork", "turn/start", "turn/steer", "turn/interrupt"),
    ),
    "ServerNotification": (
        *("thread/started", "turn/started", "turn/completed", "item/started", "item/completed"),
        *("item/agentMessage/delta", "thread/tokenUsage/updated", "error"),
    ),
    "ServerRequest": ("item/commandExecution/requestApproval", "item/fileChange/requestApproval"),
}


class Binary(msgspec.Struct, frozen=True):
    path: Path
    found_by: str

    @property
    def package(self) -> Path | None:
        """The directory with bundled programs such as ripgrep, or None."""
        root = self.path.parent.parent
        return root if self.path.parent.name == "bin" and (root / "codex-path").is_dir() else None


class Schema(msgspec.Struct, frozen=True):
    """The methods of a version, as reported by the program."""

    version: str
    methods: dict[str, list[str]]


def find_binary(setting: str | None = None, path: str | None = None) -> Binary:
    if setting is not None:
        named = named_program(setting, INSTALL[:2])
        return Binary(_native(named) or named, "setting")
    real = program_on_path("codex", path)
    if real is not None:
        native = _native(real)
        return Binary(native, "npm") if native is not None else Binary(real, "PATH")
    packaged = _pypi()
    if packaged is not None:
        return Binary(packaged, "PyPI")
    raise StrategyUnavailable("codex is not installed", op="probe", fix_hints=INSTALL)


def check_version(text: str) -> str:
    """Return the version. Raises an error if it is not supported."""
    return supported_version("codex", text, MINIMUM, INSTALL[:2])


def ask_version(binary: Binary) -> str:
    return check_version(_run(binary, "--version"))


def check_schema(binary: Binary, version: str) -> Schema:
    """Check that the program has all required methods. The result is cached for each version."""
    schema = _schema(binary, version)
    missing = [
        f"{method} ({kind})"
        for kind, methods in REQUIRED.items()
        for method in methods
        if method not in schema.methods.get(kind, ())
    ]
    if missing:
        old = " (it uses the old codex/event protocol)" if not schema.methods.get("ServerNotification") else ""
        raise RuntimeIncompatible(
            f"codex {version} lacks {len(missing)} required methods{old}: {', '.join(missing[:4])}",
            op="probe",
            fix_hints=INSTALL[:2],
            details={"found": version, "missing": missing},
        )
    return schema


def _schema(binary: Binary, version: str) -> Schema:
    st = binary.path.stat()
    identity = f"{binary.path}\0{st.st_size}\0{st.st_mtime_ns}\0{version}"
    place = cache_dir() / f"codex-schema-{version}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    try:
        return parse_json(place.read_bytes(), Schema)
    except (OSError, msgspec.DecodeError):
        pass
    with Scratch() as scratch:
        _run(binary, "app-server", "generate-json-schema", "--out", str(scratch))
        schema = Schema(version, {kind: _methods(scratch / f"{kind}.json") for kind in REQUIRED})
    write_document(place, msgspec.json.encode(schema))
    return schema


def _methods(path: Path) -> list[str]:
    try:
        document = parse_json(path.read_bytes(), dict[str, Any])
        return sorted(each["properties"]["method"]["enum"][0] for each in document["oneOf"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError, IndexError):
        return []


def _run(binary: Binary, *arguments: str) -> str:
    return ask_program(binary.path, arguments, "CODEX_HOME", INSTALL[:2])


def _native(launcher: Path) -> Path | None:
    """Return the program behind npm's script: in a package for this platform, next to the script's package or in it."""
    if launcher.suffix != ".js":
        return None
    package = launcher.parent.parent
    name = f"codex-{'darwin' if sys.platform == 'darwin' else 'linux'}-{npm_machine()}"
    for modules in (package.parent, package / "node_modules" / "@openai"):
        found = sorted((modules / name / "vendor").glob("*/bin/codex"))
        if found:
            return found[0].resolve()
    return None


def _pypi() -> Path | None:
    return packaged_program("codex_cli_bin", "bin", "codex")
