"""The external programs and privileges that tests may need: how each is detected, and how to install it.

`@pytest.mark.needs("bubblewrap", …)` names them; conftest.py skips or fails a test that needs a missing one.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import private_engine

from proofbox.sandbox.host import cgroups

ROOT = Path(__file__).resolve().parent.parent
NOBODY = 65534


class Capability(NamedTuple):
    """`probe` tests for the capability. It returns an empty string, or the reason why it is missing."""

    probe: Callable[[], str]
    how_to_get: str
    expected_in_ci: bool


def trial(argv: Sequence[str], **options: Any) -> str:
    """Run a command for a probe. Return an empty string if it succeeded, else its last line of output."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **options)
    except (OSError, subprocess.SubprocessError) as problem:
        return str(problem)
    if done.returncode == 0:
        return ""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return f"{argv[0]}: {lines[-1] if lines else f'exit code {done.returncode}'}"


def probe_bubblewrap() -> str:
    bwrap = shutil.which("bwrap")
    return trial([bwrap, "--ro-bind", "/", "/", "--unshare-all", "true"]) if bwrap else "no bwrap on the PATH"


def probe_root() -> str:
    return "" if os.geteuid() == 0 else f"this is uid {os.geteuid()}"


def probe_limits() -> str:
    here = cgroups.tree()
    return "" if here.can_limit("memory") else f"no control group can limit memory: {here.reason}"


class OrdinaryUser(NamedTuple):
    """How to run Python without privileges: `subprocess.run([user.python, …], env=user.env, **user.identity)`."""

    uid: int
    python: str
    env: Mapping[str, str]
    identity: Mapping[str, Any]

    def run_code(self, code: str, *words: str) -> str:
        """Run Python code as that user and return its output. It must succeed."""
        argv = [self.python, "-c", code, *words]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            argv, env=dict(self.env), cwd="/", capture_output=True, text=True, check=False, **self.identity
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@cache
def find_ordinary_user() -> OrdinaryUser | str:
    """Return the current user, or the user `nobody` if this is root, with a Python interpreter that the user can run.

    Root's interpreter may be in a directory that other users cannot read, such as a home directory with mode 0700. In
    that case the system's interpreter of the same version is used with the same packages.
    """
    if os.geteuid() != 0:
        return OrdinaryUser(os.geteuid(), sys.executable, dict(os.environ), {})
    identity: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    paths = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": "/nonexistent"}
    problem = ""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        problem = trial([python, "-c", "import proofbox, msgspec"], env=env, cwd="/", **identity)
        if not problem:
            return OrdinaryUser(NOBODY, python, env, identity)
    return problem


def probe_ordinary_user() -> str:
    found = find_ordinary_user()
    return found if isinstance(found, str) else ""


def native_arch() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def foreign_arch() -> str:
    return "x86_64" if native_arch() == "aarch64" else "aarch64"


def qemu_user() -> str | None:
    return shutil.which(f"qemu-{foreign_arch()}-static") or shutil.which(f"qemu-{foreign_arch()}")


def probe_qemu_user() -> str:
    qemu = qemu_user()
    return trial([qemu, "--version"]) if qemu else f"no qemu-{foreign_arch()}-static on the PATH"


def probe_zig() -> str:
    return "" if importlib.util.find_spec("ziglang") else "the Python module ziglang is not installed"


def probe_zensical() -> str:
    return "" if importlib.util.find_spec("zensical") else "the Python module zensical is not installed"


def probe_cc() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "trial.c"
        source.write_text("int main(void) { return 0; }\n")
        return trial(["cc", "-static", "-o", f"{scratch}/trial", str(source)]) or trial([f"{scratch}/trial"])


def probe_fuse() -> str:
    if problem := probe_root():
        return problem
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse"
    return "" if shutil.which("bindfs") else "no bindfs on the PATH"


def probe_ripgrep() -> str:
    return trial(["rg", "--version"])


def probe_strace() -> str:
    strace = shutil.which("strace")
    return trial([strace, "-f", "-o", os.devnull, "true"]) if strace else "no strace on the PATH"


def find_uv() -> str | None:
    places = (ROOT / ".tools/uv/bin/uv", ROOT / ".tools/uv-venv/bin/uv")
    found = [str(path) for path in places if path.is_file()]
    return found[0] if found else shutil.which("uv")


def probe_uv() -> str:
    uv = find_uv()
    return trial([uv, "--version"]) if uv else "no uv, neither scripts/setup's nor on the PATH"


def probe_index() -> str:
    """Check that uv can install a package, from an index or from its cache."""
    uv = find_uv()
    if not uv:
        return "no uv, neither scripts/setup's nor on the PATH"
    with tempfile.TemporaryDirectory() as scratch:
        words = ["pip", "install", "--quiet", "--no-deps", "--target", scratch, "--python", sys.executable, "msgspec"]
        return trial([uv, *words], env={**os.environ, "UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"})


def probe_shell(name: str) -> Callable[[], str]:
    return lambda: trial([name, "-c", "true"]) if shutil.which(name) else f"no {name} on the PATH"


def probe_chromium() -> str:
    if importlib.util.find_spec("playwright") is None:
        return "the Python module playwright is not installed"
    chromium = shutil.which("chromium")
    return trial([chromium, "--version"]) if chromium else "no chromium on the PATH"


def probe_venv() -> str:
    return "" if importlib.util.find_spec("ensurepip") else "this Python has no ensurepip"


def probe_docker() -> str:
    return private_engine.missing()


def probe_podman() -> str:
    return private_engine.missing_podman()


def probe_gvisor() -> str:
    return probe_docker() or ("" if shutil.which("runsc") else "no runsc on the PATH")


def probe_codex() -> str:
    # Imported here, because every test imports this module, which must not depend on a package under test.
    from proofbox.agents.runtimes.codex.binary import find_binary
    from proofbox.errors import ProofboxError

    try:
        return trial([str(find_binary(os.environ.get("PROOFBOX_TEST_CODEX")).path), "--version"])
    except ProofboxError as error:
        return error.message


def probe_claude() -> str:
    from proofbox.agents.runtimes.claude.binary import find_claude
    from proofbox.errors import ProofboxError

    try:
        return trial([str(find_claude(os.environ.get("PROOFBOX_TEST_CLAUDE")).path), "--version"])
    except ProofboxError as error:
        return error.message


def probe_acp(agent: str) -> Callable[[], str]:
    def probe() -> str:
        from proofbox.agents.runtimes.acp.finding import find_agent
        from proofbox.agents.runtimes.acp.profiles import PROFILES
        from proofbox.errors import ProofboxError

        try:
            find_agent(PROFILES[agent])
        except ProofboxError as error:
            return error.message
        return ""

    return probe


def probe_git() -> str:
    """Check for git 2.38 or newer: the reference backend merges without a working tree."""
    git = shutil.which("git")
    if not git:
        return "no git on the PATH"
    version = subprocess.run([git, "--version"], capture_output=True, text=True).stdout
    found = tuple(int(part) for part in version.split()[2].split(".")[:2])
    return "" if found >= (2, 38) else f"git is {found[0]}.{found[1]}"


def probe_debian() -> str:
    """Check for Debian or Ubuntu, whose coreutils and dash print the messages that some tests compare exactly."""
    return "" if Path("/etc/debian_version").exists() else "this is not Debian or Ubuntu"


def probe_vm() -> str:
    """Check for the programs of virtual machines, and for a kernel whose preparation needs no network."""
    from proofbox.errors import ProofboxError
    from proofbox.sandbox.machines.kernel import installed_release
    from proofbox.sandbox.machines.qemu import find_qemu, find_virtiofsd

    if native_arch() != "x86_64":
        return f"this is {native_arch()}"
    try:
        find_qemu(), find_virtiofsd()
    except ProofboxError as error:
        return error.message
    return "" if installed_release() else "the package linux-image-cloud-amd64 is not installed"


def arm64_package(name: str) -> Path:
    """Return the arm64 package of Debian that scripts/setup downloaded."""
    [found] = (ROOT / ".tools/arm64").glob(f"{name}*.deb")
    return found


def probe_arm64_guest() -> str:
    if not shutil.which("qemu-system-aarch64"):
        return "no qemu-system-aarch64 on the PATH"
    return "" if len(list((ROOT / ".tools/arm64").glob("*.deb"))) == 2 else "no packages in .tools/arm64"


CAPABILITIES = {
    "arm64-guest": Capability(
        probe_arm64_guest, "scripts/setup --test installs QEMU, and downloads an arm64 kernel and busybox", False
    ),
    "bash": Capability(probe_shell("bash"), "apt-get install bash", True),
    "bubblewrap": Capability(probe_bubblewrap, "scripts/setup installs it; user namespaces must be allowed", True),
    "cc": Capability(probe_cc, "apt-get install gcc libc6-dev", False),
    "chromium": Capability(probe_chromium, "scripts/setup --test installs it", True),
    "claude": Capability(probe_claude, "scripts/setup --test installs it", True),
    "claude-agent-acp": Capability(probe_acp("claude"), "scripts/setup --test installs it with npm", False),
    "codex": Capability(probe_codex, "scripts/setup --test installs it", True),
    "codex-acp": Capability(probe_acp("codex"), "scripts/setup --test installs it with npm", False),
    "debian": Capability(probe_debian, "run the tests on Debian or Ubuntu", False),
    "docker": Capability(
        probe_docker, "as root, with dockerd and a static busybox: scripts/setup --test installs them", True
    ),
    "fish": Capability(probe_shell("fish"), "apt-get install fish", False),
    "fuse": Capability(probe_fuse, "as root, with /dev/fuse: scripts/setup --test installs bindfs", False),
    "gemini": Capability(probe_acp("gemini"), "scripts/setup --test installs it with npm", False),
    "git": Capability(probe_git, "scripts/setup --test installs it; 2.38 or newer", True),
    "gvisor": Capability(probe_gvisor, "scripts/setup --test installs runsc", True),
    "index": Capability(probe_index, "a Python package index that uv can reach", True),
    "limits": Capability(probe_limits, "as root, or in a session with a delegated control group", False),
    "opencode": Capability(probe_acp("opencode"), "scripts/setup --test installs it with npm", False),
    "podman": Capability(probe_podman, "as root: apt-get install podman runc busybox-static", False),
    "qemu-user": Capability(probe_qemu_user, "scripts/setup --test installs it", True),
    "ray": Capability(
        lambda: "" if importlib.util.find_spec("ray") else "no module ray", "scripts/setup --test installs it", True
    ),
    "root": Capability(probe_root, "run the tests as root", False),
    "ripgrep": Capability(probe_ripgrep, "scripts/setup --test installs it", True),
    "strace": Capability(probe_strace, "scripts/setup --test installs it; tracing must be allowed", True),
    "unprivileged-user": Capability(
        probe_ordinary_user, "not as root, or with checkout and interpreter readable by uid 65534", True
    ),
    "uv": Capability(probe_uv, "scripts/setup installs it", True),
    "venv": Capability(probe_venv, "apt-get install python3-venv", False),
    "vm": Capability(probe_vm, "scripts/setup --test installs QEMU, virtiofsd and a kernel", True),
    "zensical": Capability(probe_zensical, "scripts/setup --docs installs it", True),
    "zig": Capability(probe_zig, "scripts/setup --test installs it", True),
    "zsh": Capability(probe_shell("zsh"), "scripts/setup --test installs it", True),
}


@cache
def missing(name: str) -> str:
    """Return why a capability is missing here; empty if it is available. Probed once per process."""
    return CAPABILITIES[name].probe()
