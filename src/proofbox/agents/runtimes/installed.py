"""Find an agent's program on this machine, and run it outside a box to ask for its version."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from proofbox.core.files.programs import directories_of, is_planted, locate_program, trusted_path
from proofbox.errors import RuntimeIncompatible, RuntimeStartFailed, StrategyUnavailable
from proofbox.sandbox.host.scratch import Scratch
from proofbox.workspace.registry import is_registered

ASK_SECONDS = 30.0
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def named_program(setting: str, install: Sequence[str]) -> Path:
    """Return the program that the setting `binary` names. Raises `StrategyUnavailable` if it can't be used."""
    found = Path(setting).expanduser()
    if not found.is_absolute():  # a relative path would depend on the current directory, which may be untrusted
        raise StrategyUnavailable(
            f"binary {setting[:200]!r} is a relative path", op="probe", fix_hints=["use an absolute path"]
        )
    if not os.access(found, os.X_OK) or not found.is_file():
        raise StrategyUnavailable(
            f"binary {setting[:200]!r} is not an executable file",
            op="probe",
            fix_hints=["check the path", *install],
        )
    return found.resolve()


def program_on_path(name: str, path: str | None = None) -> Path | None:
    """Return the program on the PATH, or None.

    Raises `StrategyUnavailable` for a program that a stranger or an agent could have put there, because it is run on
    the host to ask for its version. The current directory may come from a stranger, unless it contains the user's home
    directory. Agents write to workspaces. A user who wants such a program names it in their settings.
    """
    program = locate_program(name, path)
    if program is None:
        return None
    above = {each for place in directories_of(program) for each in (place, *place.parents)}
    if is_planted(program) or any(is_registered(str(each)) for each in above):
        raise StrategyUnavailable(
            f"{name} on PATH is {program}, in the current directory or in a workspace, so it is not run",
            op="probe",
            fix_hints=[
                f"remove {os.path.dirname(program)} from PATH",
                "or, if you trust it, set `binary` to its path in your own config.toml",
            ],
            details={"program": program},
        )
    return Path(program).resolve()


def ask_program(program: Path, arguments: Sequence[str], home_variable: str, install: Sequence[str]) -> str:
    """Run the program and return its output, with a temporary home and without our environment."""
    with Scratch() as home:
        env = {"PATH": trusted_path(), "HOME": str(home), home_variable: str(home)}
        try:
            done = subprocess.run(
                [str(program), *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=ASK_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            stderr = getattr(error, "stderr", b"") or b""
            raise RuntimeStartFailed(
                f"{program} {arguments[0]} failed: {type(error).__name__}",
                op="probe",
                fix_hints=[f"check that it runs on this machine: {program} {arguments[0]}", *install],
                details={"stderr": stderr[-500:].decode("utf-8", "replace")},
            ) from None
    return done.stdout.decode("utf-8", "replace")


def packaged_program(module: str, *path: str) -> Path | None:
    """Return the program that a PyPI package contains, or None if the package is not installed."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(place, *path)
        if os.access(program, os.X_OK):
            return program.resolve()
    return None


def npm_machine() -> str | None:
    """Return npm's name of this machine's architecture, as in the names of packages with native programs."""
    return {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine().lower())


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Parse the version from `codex-cli 0.166.0` or a user agent such as `proofbox/0.166.0 (Debian …)`."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def supported_version(name: str, text: str, minimum: tuple[int, int, int], install: Sequence[str]) -> str:
    """Return the version that a program states. Raises `RuntimeIncompatible` if it is older than `minimum`."""
    version = parse_version(text)
    if version is None or version < minimum:
        least = ".".join(map(str, minimum))
        found = ".".join(map(str, version)) if version else f"of an unknown version ({text[:80]!r})"
        raise RuntimeIncompatible(
            f"{name} is {found}; {least} or newer is required",
            op="probe",
            fix_hints=install,
            details={"found": text[:200], "minimum": least},
        )
    return ".".join(map(str, version))
