"""Build a release once per process (an sdist of the checkout, and a wheel from it), and install it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from capabilities import ROOT, find_uv


class Built(NamedTuple):
    sdist: Path
    wheel: Path


@cache
def built_release() -> Built:
    """Build the wheel from the unpacked sdist, so that the binaries in the checkout stay unchanged."""
    place = Path(tempfile.mkdtemp(prefix="release-"))
    sdist = build("sdist", ROOT, place)
    return Built(sdist, build("wheel", unpack(sdist, place), place))


def unpack(sdist: Path, into: Path) -> Path:
    with tarfile.open(sdist) as archive:
        # The argument `filter` exists only since 3.11.4. Without a filter, later versions warn.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)  # noqa: S202 - our own archive
    return into / sdist.name.removesuffix(".tar.gz")


def build(kind: str, source: Path, into: Path) -> Path:
    """Call the build backend like a frontend does, with the installed packages, including the locked zig."""
    program = f"import sys, hatch_build; print('built', hatch_build.build_{kind}(sys.argv[1]))"
    env = {name: value for name, value in os.environ.items() if name != "PROOFBOX_BUILD_AGENT"}
    env |= {**zig_cache(), "SOURCE_DATE_EPOCH": "1704067200"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(into)], cwd=source, env=env, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return into / done.stdout.rsplit("built ", 1)[1].strip()


@cache
def zig_cache() -> dict[str, str]:
    """Return the variables that let zig find its build of libc again, which takes a minute per architecture.

    Zig knows it by the path of its own library. That path in uv's cache, from which uv links `.venv`, is the same for
    all checkouts of a user; without it, the build is kept in this checkout.
    """
    spec = importlib.util.find_spec("ziglang")
    library = Path(spec.origin if spec and spec.origin else "").with_name("lib")
    own = Path.home() / ".cache"
    for found in user_uv_cache().glob("archive-v*/*/ziglang/lib"):
        if os.path.samefile(found / "std/std.zig", library / "std/std.zig") and os.access(own, os.W_OK):
            return {"ZIG_LIB_DIR": str(found), "ZIG_GLOBAL_CACHE_DIR": str(own / "zig")}
    return {"ZIG_GLOBAL_CACHE_DIR": str(ROOT / ".tools/zig-cache")}


def user_uv_cache() -> Path:
    """Return the user's download cache, instead of the test run's."""
    return Path(os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache/uv")))


class Installed:
    """The wheel installed in a new environment, used from an empty directory, without any reference to the checkout."""

    def __init__(self, place: Path, extra: str = "") -> None:
        self.bin = place / "venv/bin"
        self.cwd = place / "empty"
        self.cwd.mkdir(parents=True)
        # Use the certificates that this machine trusts.
        cache = {"UV_CACHE_DIR": str(user_uv_cache())}
        trust = {name: os.environ.get(name, "true") for name in ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")}
        uv = find_uv() or "uv"
        wheel = f"{built_release().wheel}{f'[{extra}]' if extra else ''}"
        for argv in (
            [uv, "venv", "--quiet", "--python", sys.executable, str(place / "venv")],
            [uv, "pip", "install", "--quiet", "--python", str(self.bin / "python"), wheel],
        ):
            done = subprocess.run(argv, env={**os.environ, **cache, **trust}, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
        self.env = {"HOME": str(place), "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        self.env["TMPDIR"] = os.environ["TMPDIR"]

    def run(self, *words: str, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.cwd, env={**self.env, **env}, input=input, capture_output=True, text=True, timeout=200
        )
