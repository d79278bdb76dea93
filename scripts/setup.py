"""Prepares a checkout for use: creates `.venv` from uv.lock, builds the C programs, and installs system packages.

    scripts/setup            what the demo needs
    scripts/setup --check    also linters and type checkers
    scripts/setup --docs     also the tools that build the documentation
    scripts/setup --test     also what the tests need
    scripts/setup --no-system   install no system packages

Each action prints one line on stderr; if nothing needs to be done, nothing is printed. System packages are installed
with apt-get if that needs no password (as root, or with passwordless sudo). Otherwise the command to install them is
printed, and setup continues. Everything else stays inside the checkout, in `.venv` and `.tools`, except the download
caches of pip and uv.

This file uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
STAMP = VENV / "proofbox-setup.json"
AGENT = ROOT / "src/proofbox/sandbox/agent"

# The agents that the tests drive over the Agent Client Protocol, and a Node.js that is new enough for all of them.
OPENCODE, CLAUDE_AGENT_ACP, CODEX_ACP, GEMINI, NODE = "1.18.33", "0.99.1", "2.6.0", "0.61.0", "22.22.0"
OLDEST_UV = (0, 5, 3)  # the first version with dependency groups and lock files of version 1


class Package(NamedTuple):
    """A Debian package, the commands or files that show that it is installed (any of them), and what needs it."""

    name: str
    commands: tuple[str, ...]
    purpose: str


FOREIGN = "x86_64" if platform.machine() in ("aarch64", "arm64") else "aarch64"
PACKAGES = {
    "demo": [
        Package("bubblewrap", ("bwrap",), "the bubblewrap provider"),
        Package("git", ("git",), "the reference backend"),
    ],
    "check": [],  # only Python packages
    "docs": [],
    "test": [
        Package("docker.io", ("dockerd",), "the tests' private Docker engine"),
        Package("runsc", ("runsc",), "the tests with gVisor"),
        Package("podman", ("podman",), "the tests with Podman"),
        Package("busybox-static", ("busybox",), "the image of the tests' private engine"),
        Package("musl-tools", ("musl-gcc",), "building box programs that start twice as fast"),
        Package(
            "qemu-user-static",
            (f"qemu-{FOREIGN}-static", f"qemu-{FOREIGN}"),
            f"the test of the wheel's {FOREIGN} binaries",
        ),
        Package("qemu-system-x86", ("qemu-system-x86_64",), "the tests with virtual machines"),
        Package("qemu-system-common", ("/usr/lib/qemu/virtiofsd",), "the tests with virtual machines"),
        Package("qemu-system-arm", ("qemu-system-aarch64",), "the test of apple-vm's guest"),
        Package("linux-image-cloud-amd64", ("/boot/vmlinuz-*-cloud-amd64",), "the tests with virtual machines"),
        Package("mmdebstrap", ("mmdebstrap",), "the nightly builds of images"),
        Package("bindfs", ("bindfs",), "the test of projects on FUSE"),
        Package("ripgrep", ("rg",), "the comparison of the Python search with ripgrep"),
        Package("strace", ("strace",), "the power-cut test of commits"),
        Package("chromium", ("chromium",), "the viewer's tests and screenshots"),
        Package("zsh", ("zsh",), "the test of tab completion in zsh"),
    ],
}
LEVELS = tuple(PACKAGES)  # each level includes the ones before it


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/setup", description=(__doc__ or "").partition("\n")[0])
    for name, purpose in (
        ("check", "also install linters and type checkers"),
        ("docs", "also install the tools that build the documentation"),
        ("test", "also install what the tests need"),
    ):
        parser.add_argument(f"--{name}", dest="level", action="store_const", const=name, help=purpose)
    parser.set_defaults(level="demo")
    parser.add_argument("--no-system", action="store_true", help="install no system packages")
    options = parser.parse_args()
    level: str = options.level

    if sys.platform == "linux":  # first: one of them is a compiler
        system_packages(level, may_install=not options.no_system)
    if not ready(level):
        with one_at_a_time():
            if not ready(level):  # another setup may have done it while this one waited
                make_venv(level)
    keep_bytecode()
    return 0


# The virtual environment


def ready(level: str) -> bool:
    """Return whether `.venv` is up to date. If it is, setup does nothing else."""
    try:
        stamp = json.loads(STAMP.read_bytes())
        if not isinstance(stamp, dict) or stamp.get("digest") != sources_digest():
            return False
        return LEVELS.index(stamp["level"]) >= LEVELS.index(level) and all(map(Path.is_file, agent_binaries()))
    except (OSError, ValueError, KeyError):
        return False


def sources_digest() -> str:
    """Return a digest of everything that determines `.venv`. If it changes, `.venv` is rebuilt.

    It covers the checkout's path, which scripts and the editable install contain, and the interpreter, whose minor
    version is in every path.
    """
    total = hashlib.sha256()
    python = VENV / "bin/python"
    total.update(f"{ROOT}\0{python.resolve(strict=True)}\0{python_version()}\0".encode())
    agent_sources = sorted([*AGENT.rglob("*.c"), *AGENT.rglob("*.h")])
    for path in [ROOT / "uv.lock", ROOT / "pyproject.toml", ROOT / "hatch_build.py", Path(__file__), *agent_sources]:
        total.update(f"{path.relative_to(ROOT)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def python_version() -> str:
    """Return the version of `.venv`'s interpreter, without starting a process if this is it."""
    if Path(sys.executable) == VENV / "bin/python":
        return sys.version
    return run([str(VENV / "bin/python"), "-I", "-S", "-c", "import sys; print(sys.version, end='')"]).stdout


def agent_binaries() -> list[Path]:
    """Return the binaries that the build hook creates. After `git clean`, uv would not rebuild them."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if sys.platform != "linux" or arch not in ("x86_64", "aarch64"):
        return []
    if os.environ.get("PROOFBOX_BUILD_AGENT") == "none":
        return []
    programs = {*(source.stem for source in AGENT.glob("*.c")), *(source.parent.name for source in AGENT.glob("*/*.c"))}
    return [AGENT / "bin" / f"{program}-{arch}" for program in programs]


def make_venv(level: str) -> None:
    try:
        stamp = json.loads(STAMP.read_bytes())
        known_level, made_in = str(stamp["level"]), str(stamp["root"])
    except (OSError, ValueError, KeyError, TypeError):
        known_level, made_in = level, str(ROOT)
    STAMP.unlink(missing_ok=True)
    if known_level in LEVELS:  # a later `scripts/setup` without --test keeps the test packages
        level = max(level, known_level, key=LEVELS.index)
    if made_in != str(ROOT):  # the checkout was moved or copied, and the scripts in .venv contain the old path
        shutil.rmtree(VENV)

    uv = find_uv() or get_uv()
    environment = clean_environment()
    environment["UV_PROJECT_ENVIRONMENT"] = str(VENV)
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    for variable in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS"):  # newer and older uv: use the system's certificates
        environment.setdefault(variable, "1")
    if "UV_CACHE_DIR" not in environment and not home_is_writable():
        environment["UV_CACHE_DIR"] = str(TOOLS / "cache")
    scratch = TOOLS / "tmp"  # contains uv's lock, which concurrent setups of this checkout must share
    scratch.mkdir(parents=True, exist_ok=True)
    environment["TMPDIR"] = str(scratch)
    # Reinstall, so that the build hook runs: uv would use its cached build, but the binaries may have been deleted from
    # the tree.
    argv = [uv, "sync", "--quiet", "--locked", "--compile-bytecode", "--reinstall-package", "proofbox"]
    groups = {"demo": ["--no-dev"], "check": [], "docs": ["docs"], "test": ["docs", "wheel", "codex", "claude", "ray"]}
    argv += ["--python", base_python()]
    argv += [word if word.startswith("--") else f"--group={word}" for word in groups[level]]
    done = run(argv, env=environment)
    if done.returncode:
        stop(f"`uv sync` failed:\n{(done.stderr or done.stdout).strip()}")
    if level == "test" and sys.platform == "linux":
        add_acp_agents()
        add_arm64_packages()
    document = {"digest": sources_digest(), "level": level, "root": str(ROOT)}
    STAMP.write_text(json.dumps(document) + "\n")
    version = python_version().partition(" ")[0]
    say(f".venv is ready: Python {version}, {len(list(VENV.glob('lib/python*/site-packages/*.dist-info')))} packages")


def add_acp_agents() -> None:
    """Install agents that speak ACP in `.venv` with npm, without running their scripts.

    Without them, their tests are skipped. claude-agent-acp and codex-acp use the Claude Code and the Codex of `.venv`,
    so that their own copies are omitted.
    """
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"
    place = VENV / "lib/npm"
    place.mkdir(parents=True, exist_ok=True)
    programs = {
        "opencode": place / f"node_modules/opencode-linux-{machine}/bin/opencode",
        "claude-agent-acp": place / "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js",
        "codex-acp": place / "node_modules/@agentclientprotocol/codex-acp/dist/index.js",
        "gemini": place / "node_modules/@google/gemini-cli/bundle/gemini.js",
    }
    packages = [
        f"opencode-linux-{machine}@{OPENCODE}",
        f"@agentclientprotocol/claude-agent-acp@{CLAUDE_AGENT_ACP}",
        f"@agentclientprotocol/codex-acp@{CODEX_ACP}",
        f"@google/gemini-cli@{GEMINI}",
        f"node-linux-{machine}@{NODE}",
    ]
    words = ["--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--prefix", str(place), *packages]
    done = run(["npm", "install", *words], env=clean_environment())
    if done.returncode or not all(map(Path.is_file, programs.values())):
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        say(f"missing: the tests with agents that speak ACP need npm and its registry: {lines[-1]}")
        return
    for name, program in programs.items():
        link = VENV / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(program)


def add_arm64_packages() -> None:
    """Download Debian's arm64 kernel and busybox for the guest of `apple-vm`. Without them, its test is skipped.

    apt verifies them as usual, but keeps its lists for this architecture in `.tools`: the system is not changed.
    """
    place = TOOLS / "arm64"
    if len(list(place.glob("*.deb"))) == 2 or not shutil.which("apt-get"):
        return
    shutil.rmtree(place, ignore_errors=True)
    state = place / "apt"
    for folder in (state / "lists/partial", state / "archives/partial"):
        folder.mkdir(parents=True)
    (state / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": state,
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run(["apt-get", "-qq", *options, "update"])
    shown = run(["apt-cache", *options, "depends", "--important", "linux-image-cloud-arm64"]).stdout
    kernel = re.search(r"linux-image-[0-9]\S*", shown)
    packages = [kernel[0] if kernel else "linux-image-cloud-arm64", "busybox-static"]
    done = run(["apt-get", "-qq", *options, "download", *packages], cwd=place)
    shutil.rmtree(state)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        say(f"missing: the test of apple-vm's guest needs arm64 packages of Debian: {lines[-1]}")


def base_python() -> str:
    """Return the interpreter to create `.venv` with: this one, or its base if this one is in `.venv`."""
    # typeshed does not list this attribute, which exists since 3.7.
    return str(getattr(sys, "_base_executable", "") or sys.executable)


def keep_bytecode() -> None:
    """Compile the package, because uv's --compile-bytecode skips editable installs.

    With PYTHONDONTWRITEBYTECODE set, Python would otherwise compile every module at each start.
    """
    if Path(sys.executable) == VENV / "bin/python":
        compileall.compile_dir(ROOT / "src", quiet=2)
    else:
        run([str(VENV / "bin/python"), "-I", "-S", "-m", "compileall", "-qq", str(ROOT / "src")])


def find_uv() -> str | None:
    for uv in (str(TOOLS / "uv/bin/uv"), str(TOOLS / "uv-venv/bin/uv"), shutil.which("uv")):
        # Run it to get its version: it may be a broken shim, or too old to read the lock file.
        if uv and os.access(uv, os.X_OK) and uv_version(uv) >= OLDEST_UV:
            return uv
    return None


def uv_version(uv: str) -> tuple[int, ...]:
    found = re.match(r"uv (\d+)\.(\d+)\.(\d+)", run([uv, "--version"]).stdout)
    return tuple(map(int, found.groups())) if found else (0,)


def get_uv() -> str:
    """Install uv in the checkout, with pip or venv, whichever this Python has."""
    wanted = "uv>=" + ".".join(map(str, OLDEST_UV))
    tried: list[str] = []

    def by_pip() -> bool:
        # With --target inside the checkout, neither the user's nor the system's packages change (PEP 668).
        place = str(TOOLS / "uv")
        return attempt([sys.executable, "-P", "-m", "pip", "install", "--quiet", "--target", place, wanted], tried)

    def by_venv() -> bool:
        return attempt([sys.executable, "-P", "-m", "venv", "--clear", str(TOOLS / "uv-venv")], tried) and attempt(
            [str(TOOLS / "uv-venv/bin/python"), "-P", "-m", "pip", "install", "--quiet", wanted], tried
        )

    venv_package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if not by_pip() and not by_venv() and not (apt_install([venv_package]) and by_venv()):
        stop(
            f"uv is not installed and could not be installed with {base_python()}. Tried:",
            *(f"  {line}" for line in tried),
            f"Install one of: uv itself, or pip or venv for this Python ({as_root()}apt-get install {venv_package})",
        )
    uv = find_uv()
    if uv is None:
        stop("pip installed a uv that does not start", *(f"  {line}" for line in tried))
    say(f"uv {'.'.join(map(str, uv_version(uv)))} is in {Path(uv).relative_to(ROOT)}")
    return uv


def attempt(argv: Sequence[str], tried: list[str]) -> bool:
    done = run(argv, env=clean_environment())
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        tried.append(f"{' '.join(argv)}: {lines[0] if len(lines) == 1 else f'{lines[0]} … {lines[-1]}'}")
    return done.returncode == 0


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that redirect an installation or suppress bytecode."""
    unwanted = ("VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**environment, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def home_is_writable() -> bool:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    return os.access(existing, os.W_OK | os.X_OK)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    try:
        TOOLS.mkdir(exist_ok=True)
        lock = os.open(TOOLS / "lock", os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as problem:
        stop(f"can't write into the checkout: {problem}")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another setup of this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# System packages


def system_packages(level: str, *, may_install: bool) -> None:
    wanted = [package for name in LEVELS[: LEVELS.index(level) + 1] for package in PACKAGES[name]]
    missing = [package for package in wanted if not installed(package)]
    if not missing:
        return
    if may_install:
        with one_at_a_time():
            missing = [package for package in missing if not installed(package)]
            apt_install([package.name for package in missing])
    for package in missing:
        if installed(package):
            say(f"installed {package.name}")
        elif shutil.which("apt-get"):
            say(f"missing: {package.purpose} needs {as_root()}apt-get install {package.name}")
        else:
            say(f"missing: {package.purpose} needs {' or '.join(package.commands)} on the PATH")


def installed(package: Package) -> bool:
    return any(shutil.which(each) or (each[0] == "/" and glob.glob(each)) for each in package.commands)


def apt_install(packages: Sequence[str]) -> bool:
    """Install packages with apt-get if that needs no password. Return whether they were installed."""
    if not packages or not shutil.which("apt-get"):
        return False
    prefix: list[str] = []
    if os.geteuid() != 0:
        if not shutil.which("sudo") or run(["sudo", "-n", "true"]).returncode:
            return False
        prefix = ["sudo", "-n"]
    # sudo drops the environment, so the variable is set in the command.
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    done = run(install)
    if done.returncode:  # usually because the package lists are empty or old
        run([*apt, "update"])
        done = run(install)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        say(f"apt-get install {' '.join(packages)} failed: {lines[-1]}")
    return done.returncode == 0


def as_root() -> str:
    return "" if os.geteuid() == 0 else "sudo "


# Helpers


def run(
    argv: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run a command and capture its output. A command that can't be started has exit code 127."""
    try:
        return subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as problem:
        return subprocess.CompletedProcess(argv, 127, "", str(problem))


def say(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)


def stop(*lines: str) -> NoReturn:
    say("\n".join(lines))
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
