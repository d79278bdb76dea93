"""The build backend: hatchling, plus the box's C programs.

Each program is one C file in `src/proofbox/sandbox/agent`, or a directory of C files with that name, built as a static
binary that runs in any root file system, into `bin/<name>-<arch>` beside it. What is built depends on what is asked
for:

    editable install   this machine's architecture, by the system's C compiler where it can link a static program
                       (musl's first: its programs start in half the time), else by zig (the PyPI package `ziglang`,
                       fetched as a build requirement only then)
    wheel              x86_64 and aarch64, both by zig against musl, so that one py3-none-any wheel serves both
    not on Linux       nothing: the box's programs are Linux programs

PROOFBOX_BUILD_AGENT overrides that: `native` builds this machine's architecture alone (for those who package proofbox
with their own compiler and without zig), `all` builds both, `none` builds nothing. CC names the C compiler to try, in
place of musl-gcc, cc, gcc and clang. After a build, `bin/` holds exactly what was asked for; a binary whose source,
flags and compiler are unchanged is kept.

This file is the PEP 517 backend itself, around hatchling's, because the requirements of a wheel and of an editable
install differ (zig is a download of 100 MB) and hatchling asks a build hook for both in one question.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hatchling.build import build_editable, build_sdist, build_wheel, get_requires_for_build_sdist
from hatchling.build import get_requires_for_build_editable as hatchling_requires_for_editable
from hatchling.build import get_requires_for_build_wheel as hatchling_requires_for_wheel
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

PROGRAMS = ("boxagent", "boxlaunch", "boxprobe", "boxrun", "boxvm", "treestat", "treewrite")
ARCHES = ("x86_64", "aarch64")
AGENT = Path("src/proofbox/sandbox/agent")

# Exact, so that the same sources give the same wheel. The `wheel` dependency group in pyproject.toml names it too.
ZIG = "ziglang==0.17.0"

WARNINGS = ("-Wall", "-Wextra", "-Wdate-time")
# No -Werror: a newer compiler's new warning must not break an install. `scripts/check` adds it.
FLAGS = (
    *("-std=gnu11", "-O2", "-g0", "-fstack-protector-strong"),
    *WARNINGS,
    *("-static", "-s", "-Wl,--build-id=none"),
)

TRIAL = '#include <stdio.h>\n#include <linux/landlock.h>\nint main(void) { return puts("static") < 0; }\n'
COMPILE_SECONDS = 600  # zig's libc takes half a minute on a small machine, and more on a busy one


class Compiler(NamedTuple):  # not a dataclass: hatchling loads this file outside sys.modules, where they can't be made
    """A command that compiles C, and what identifies it: another compiler means another binary."""

    command: tuple[str, ...]
    identity: str
    is_zig: bool = False

    def compile(self, sources: Sequence[Path], output: Path, arch: str, cache: Path) -> str:
        """Compile the files of a program, all in one directory; what went wrong, or an empty string.

        The compiler runs in that directory and sees bare file names, so that no path of this machine gets into the
        binary.
        """
        env = {**os.environ, "LC_ALL": "C"}
        target: tuple[str, ...] = ()
        if self.is_zig:
            # Zig builds a libc before the first program, and knows it again only if zig itself is at the same place,
            # which it is not in an isolated build: so its cache is worth keeping only if someone names a place for it.
            env = {"ZIG_GLOBAL_CACHE_DIR": str(cache), **env, "ZIG_LOCAL_CACHE_DIR": str(cache)}
            target = ("-target", f"{arch}-linux-musl")
        names = [source.name for source in sources]
        return failure([*self.command, *target, *FLAGS, "-o", str(output), *names], cwd=sources[0].parent, env=env)


class AgentBuildHook(BuildHookInterface[Any]):
    """What hatchling calls before it packs a wheel of either kind."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        build_programs(Path(self.root), wanted_arches(editable=version == "editable"))


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*hatchling_requires_for_wheel(config_settings), *zig_requirement(editable=False)]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*hatchling_requires_for_editable(config_settings), *zig_requirement(editable=True)]


def zig_requirement(*, editable: bool) -> list[str]:
    arches = wanted_arches(editable=editable)
    return [ZIG] if arches and not native_compiler(arches, []) else []


def wanted_arches(*, editable: bool) -> tuple[str, ...]:
    choice = os.environ.get("PROOFBOX_BUILD_AGENT") or ""
    if choice == "none" or (not choice and sys.platform != "linux"):
        return ()
    if choice == "all" or (not choice and not editable):
        return ARCHES
    if choice not in ("", "native"):
        stop(f"PROOFBOX_BUILD_AGENT={choice!r} is not native, all or none")
    if native_arch() in ARCHES:
        return (native_arch(),)
    if choice:
        stop(f"there is no box agent for {native_arch()}, only for {' and '.join(ARCHES)}")
    print(f"hatch_build: no box agent for {native_arch()}; proofbox works without sandboxes here", file=sys.stderr)
    return ()


def native_arch() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def build_programs(root: Path, arches: Sequence[str]) -> None:
    """Bring `bin/` to exactly the programs wanted, each compiled only if anything it is made from has changed."""
    agent, bin_dir, work = root / AGENT, root / AGENT / "bin", root / ".tools" / "agent"
    wanted = {f"{name}-{arch}": (name, arch) for name in PROGRAMS for arch in arches}
    if bin_dir.is_dir():
        for left_over in set(os.listdir(bin_dir)) - set(wanted):
            (bin_dir / left_over).unlink()
    if not wanted:
        return
    sources = {name: sources_of(agent, name) for name in PROGRAMS}
    missing = [name for name, files in sources.items() if not files]
    if missing:
        stop(f"missing source in {AGENT}: {', '.join(missing)}")

    compiler = choose_compiler(arches)
    bin_dir.mkdir(exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    headers = [path.read_bytes() for path in sorted(agent.rglob("*.h"))]
    # Compiled elsewhere and renamed: a box may be running the old binary, and another build may be at work.
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        for name, (program, arch) in wanted.items():
            binary, stamp, output = bin_dir / name, work / f"{name}.stamp", Path(scratch) / name
            files = [path.read_bytes() for path in sources[program]]
            recipe = digest(json.dumps([compiler.identity, FLAGS, arch]).encode(), *files, *headers)
            if binary.is_file() and stamp.is_file() and stamp.read_text() == f"{recipe} {digest(binary.read_bytes())}":
                continue
            problem = compiler.compile(sources[program], output, arch, cache=Path(scratch) / "cache")
            if problem:
                stop(f"{program} for {arch} does not compile with {compiler.identity}:\n{problem}")
            output.chmod(0o755)
            stamp_text = f"{recipe} {digest(output.read_bytes())}"
            output.replace(binary)
            stamp.write_text(stamp_text)


def sources_of(agent: Path, program: str) -> list[Path]:
    return sorted(agent.glob(f"{program}.c")) or sorted((agent / program).glob("*.c"))


def choose_compiler(arches: Sequence[str]) -> Compiler:
    tried: list[str] = []
    compiler = native_compiler(arches, tried) or zig_compiler(tried)
    if compiler is None:
        hints = ["install the PyPI package `ziglang` (a build with isolation fetches it by itself)"]
        if list(arches) == [native_arch()]:
            hints.append("install a C compiler with a static libc (Debian, Ubuntu: apt-get install gcc libc6-dev)")
        elif sys.platform == "linux":
            hints.append("set PROOFBOX_BUILD_AGENT=native to build for this machine alone with its C compiler")
        stop("no compiler for the box agent. Tried:", *(f"  {line}" for line in tried), *(f"Or: {h}" for h in hints))
    return compiler


def native_compiler(arches: Sequence[str], tried: list[str]) -> Compiler | None:
    """The system's compiler, if it is all that is needed: it makes static programs that run here.

    Tried for real, because a compiler without a static libc (or for another target) is common.
    """
    if sys.platform != "linux" or list(arches) != [native_arch()]:
        return None
    named = os.environ.get("CC")
    for command in [shlex.split(named)] if named else [musl_gcc(), ["cc"], ["gcc"], ["clang"]]:
        if not shutil.which(command[0]):
            tried.append(f"{command[0]}: not found")
            continue
        compiler = Compiler(tuple(command), first_line([*command, "--version"]))
        with tempfile.TemporaryDirectory() as scratch:
            source, output = Path(scratch) / "trial.c", Path(scratch) / "trial"
            source.write_text(TRIAL)
            problem = compiler.compile([source], output, native_arch(), cache=Path(scratch)) or failure([str(output)])
        if not problem:
            return compiler
        tried.append(f"{shlex.join(command)}: makes no static program: {problem.splitlines()[-1]}")
    return None


def musl_gcc() -> list[str]:
    """Debian's wrapper knows no kernel headers; those of the system are the same for every libc."""
    headers = ["/usr/include", f"/usr/include/{native_arch()}-linux-gnu"]
    return ["musl-gcc", *(word for path in headers for word in ("-idirafter", path))]


def zig_compiler(tried: list[str]) -> Compiler | None:
    if importlib.util.find_spec("ziglang"):
        command = [sys.executable, "-m", "ziglang"]
    elif found := shutil.which("zig"):
        command = [found]
    else:
        tried.append("zig: neither the Python module ziglang nor a zig command")
        return None
    version = first_line([*command, "version"])
    if not version:
        tried.append(f"{shlex.join(command)}: does not start")
        return None
    return Compiler((*command, "cc"), f"zig {version}", is_zig=True)


def failure(argv: Sequence[str], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command; empty if it succeeded, else what it said."""
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    if done.returncode == 0:
        return ""
    return (done.stderr or done.stdout).strip() or f"{argv[0]} ended with {done.returncode}"


def first_line(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().partition("\n")[0]


def digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


def stop(*lines: str) -> NoReturn:
    """End the build with a message and no traceback: nothing here is a defect of the build itself."""
    sys.exit("\n".join((f"hatch_build: {lines[0]}", *lines[1:])))
