"""The wheel supports both Linux architectures. It is built once per session from the sdist, like a release."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from capabilities import ROOT, find_uv, foreign_arch, native_arch, qemu_user
from release import Built, build, built_release, unpack

PROGRAMS = ("boxagent", "boxlaunch", "boxprobe", "boxrun", "boxvm", "treestat", "treewrite")
ARCHES = ("x86_64", "aarch64")
ELF_MACHINE = {"x86_64": 62, "aarch64": 183}
BIN = "proofbox/sandbox/agent/bin"

# Building zig's libc takes half a minute per architecture if it is not cached, and twice that on a busy machine.
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.timeout(600)]
EVERY_BINARY = [f"{name}-{arch}" for name in PROGRAMS for arch in ARCHES]


@pytest.fixture(scope="session")
def built() -> Built:
    return built_release()


@pytest.fixture(
    scope="session",
    params=[pytest.param("uv", marks=pytest.mark.needs("uv")), pytest.param("pip", marks=pytest.mark.needs("venv"))],
)
def site_packages(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel without its dependencies, which the binaries do not need, and return the directory."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    if request.param == "uv":
        uv = find_uv() or "uv"
        make = [uv, "venv", "--quiet", "--python", sys.executable, str(venv)]
        install = [uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(venv / "bin/python")]
    else:
        make = [sys.executable, "-m", "venv", str(venv)]
        install = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    for argv in (make, [*install, str(built.wheel)]):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    (found,) = venv.glob("lib/python*/site-packages")
    return found


@pytest.mark.needs("zig")
def test_sdist_has_sources_and_no_binaries(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src/proofbox/sandbox/agent").rglob("*.[ch]")}
    assert len(sources) > len(PROGRAMS)
    assert sources <= names
    assert {"hatch_build.py", "pyproject.toml", "LICENSE"} <= names
    assert not [name for name in names if "/agent/bin" in name]


@pytest.mark.needs("zig")
def test_wheel_contains_exactly_the_expected_binaries(built: Built) -> None:
    assert built.wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built.wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith(f"{BIN}/")}
    assert inside == {f"{BIN}/{binary}" for binary in EVERY_BINARY}


@pytest.mark.needs("zig")
@pytest.mark.parametrize("binary", EVERY_BINARY)
def test_binary_is_static_and_contains_no_build_path(built: Built, binary: str) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        mode = archive.getinfo(f"{BIN}/{binary}").external_attr >> 16
        content = archive.read(f"{BIN}/{binary}")
    assert stat.S_IMODE(mode) == 0o755
    assert content[:5] == b"\x7fELF\x02"
    assert int.from_bytes(content[18:20], "little") == ELF_MACHINE[binary.partition("-")[2]]
    interpreter, dynamic = 3, 2
    assert not {interpreter, dynamic} & set(segment_types(content)), "asks for a loader or shared libraries"
    assert os.fsencode(built.wheel.parent) not in content
    assert len(content) < 1_000_000


def segment_types(elf: bytes) -> Iterator[int]:
    """The types of a 64-bit little-endian ELF file's program headers."""
    offset = int.from_bytes(elf[32:40], "little")
    size, count = int.from_bytes(elf[54:56], "little"), int.from_bytes(elf[56:58], "little")
    for index in range(count):
        start = offset + index * size
        yield int.from_bytes(elf[start : start + 4], "little")


@pytest.mark.needs("zig")
@pytest.mark.parametrize("name", PROGRAMS)
def test_native_binary_runs_after_install(site_packages: Path, name: str) -> None:
    assert_tells_its_version([str(site_packages / BIN / f"{name}-{native_arch()}")], name)


@pytest.mark.needs("zig", "qemu-user")
@pytest.mark.parametrize("name", PROGRAMS)
def test_foreign_binary_runs_under_qemu_after_install(site_packages: Path, name: str) -> None:
    binary = site_packages / BIN / f"{name}-{foreign_arch()}"
    assert os.access(binary, os.X_OK)
    assert_tells_its_version([qemu_user() or "", str(binary)], name)


def assert_tells_its_version(argv: list[str], name: str) -> None:
    done = subprocess.run([*argv, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{name} \d+\n", done.stdout), done.stdout


@pytest.mark.needs("zig")
def test_wheel_build_is_reproducible(built: Built, tmp_path: Path) -> None:
    again = build("wheel", unpack(built.sdist, tmp_path), tmp_path)
    assert again.read_bytes() == built.wheel.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is built unless asked for")
@pytest.mark.parametrize(
    ("kind", "choice", "compiler", "asks_for_zig"),
    [
        ("wheel", "", "", True),
        ("wheel", "none", "", False),
        ("editable", "", "no-such-compiler", True),
        ("editable", "all", "", True),
        ("editable", "none", "no-such-compiler", False),
        pytest.param("editable", "", "", False, marks=pytest.mark.needs("cc")),
        pytest.param("wheel", "native", "", False, marks=pytest.mark.needs("cc")),
    ],
)
def test_zig_is_required_only_if_needed(kind: str, choice: str, compiler: str, asks_for_zig: bool) -> None:
    program = f"import hatch_build; print(hatch_build.get_requires_for_build_{kind}())"
    env = {**os.environ, "PROOFBOX_BUILD_AGENT": choice, "CC": compiler}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("ziglang==" in done.stdout) == asks_for_zig


@pytest.mark.parametrize(
    ("choice", "says"), [("native", "no compiler for the box agent"), ("both", "is not native, all or none")]
)
def test_impossible_build_explains_the_reason(choice: str, says: str, tmp_path: Path) -> None:
    agent = tmp_path / "src/proofbox/sandbox/agent"
    agent.mkdir(parents=True)
    for name in PROGRAMS:
        (agent / f"{name}.c").touch()
    # No zig either: a bare PATH, and a finder that sees no ziglang.
    program = (
        "import importlib.util as u, sys, pathlib; sys.path.insert(0, sys.argv[1]); real = u.find_spec;"
        "u.find_spec = lambda name, package=None: None if name == 'ziglang' else real(name, package);"
        "import hatch_build as h; h.build_programs(pathlib.Path(sys.argv[2]), h.wanted_arches(editable=True))"
    )
    env = {**os.environ, "PROOFBOX_BUILD_AGENT": choice, "CC": "no-such-compiler", "PATH": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT), str(tmp_path)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
