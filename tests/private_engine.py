"""A private Docker or Podman engine for tests, without a network. It is removed afterwards with everything in it.

Its only image is built here from a static busybox, so no registry is needed. If this machine has perl, as Debian does,
the image also contains perl with its libraries, because some attacks need more than a shell.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.containers.engine import ContainerEngine

IMAGE = "proofbox-test:latest"
LIST = "engines"  # a file in the run's directory that lists the engines' directories, for the check for leftovers
# These keep the engine from changing the host's network.
FLAGS = ("--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false")
RUNSC_FLAGS = ["--network=none", "--platform=ptrace"]
UP_SECONDS = 120.0


class PrivateEngine(NamedTuple):
    host: str
    pid: int
    engine: ContainerEngine


def missing() -> str:
    if os.geteuid() != 0:
        return "a private engine needs root"
    absent = [name for name in ("dockerd", "containerd", "busybox") if shutil.which(name) is None]
    return f"not on the PATH: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def private_engine() -> Iterator[PrivateEngine]:
    # The path is short because of its sockets, and in /tmp, because an engine's overlay can't be on another overlay.
    base = _place("pbe-")
    config = base / "daemon.json"
    config.write_text(
        json.dumps({"runtimes": {"runsc": {"path": shutil.which("runsc") or "runsc", "runtimeArgs": RUNSC_FLAGS}}})
    )
    places = {"--data-root": "data", "--exec-root": "exec", "--pidfile": "pid"}
    words = [f"{flag}={base / name}" for flag, name in places.items()]
    host = f"unix://{base / 'sock'}"
    with (base / "log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", f"--config-file={config}", f"--host={host}", *words, *FLAGS],
            cwd=base,  # where its helpers leave files
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        engine = ContainerEngine(host)
        _wait_until_up(engine, process, base / "log")
        engine.call(
            "POST", "/images/create", op="import", query={"fromSrc": "-", "repo": IMAGE.split(":")[0]}, body=rootfs()
        )
        yield PrivateEngine(host, process.pid, engine)
    finally:
        containers = [path.name for path in (base / "data/containers").glob("*")]
        _stop(process)
        _kill_below(base)
        for container in containers:
            _remove_groups(container)
        _unmount_below(base)
        shutil.rmtree(base, ignore_errors=True)


def missing_podman() -> str:
    if os.geteuid() != 0:
        return "a private podman needs root"
    absent = [name for name in ("podman", "conmon", "runc", "busybox") if shutil.which(name) is None]
    return f"not on the PATH: {', '.join(absent)}" if absent else ""


@contextlib.contextmanager
def private_podman() -> Iterator[PrivateEngine]:
    """Start Podman instead. It uses runc, because crun refuses the hybrid control groups of some machines."""
    base = _place("pbp-")
    places = {"--root": "root", "--runroot": "run", "--tmpdir": "tmp"}
    words = ["podman", *(word for flag, name in places.items() for word in (flag, str(base / name)))]
    words += ["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    host = f"unix://{base / 'sock'}"
    # Other operations, such as a reset, use the default store, so the default must be in this directory as well.
    (base / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{base}/root"\nrunroot = "{base}/run"\n'
    )
    env = {**os.environ, "CONTAINERS_STORAGE_CONF": str(base / "storage.conf")}
    with (base / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, "system", "service", "--time", "0", host],
            cwd=base,  # where its helpers leave files
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        engine = ContainerEngine(host)
        _wait_until_up(engine, process, base / "log")
        engine.call(
            "POST", "/images/create", op="import", query={"fromSrc": "-", "repo": IMAGE.split(":")[0]}, body=rootfs()
        )
        yield PrivateEngine(host, process.pid, engine)
    finally:
        _stop(process)
        subprocess.run([*words, "system", "reset", "--force"], cwd=base, env=env, capture_output=True, check=False)
        _kill_below(base)
        _unmount_below(base)
        shutil.rmtree(base, ignore_errors=True)


def _place(prefix: str) -> Path:
    base = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    if run := os.environ.get("PROOFBOX_TEST_RUN"):
        with Path(run, LIST).open("a") as listed:
            listed.write(f"{base}\n")
    return base


def _wait_until_up(engine: ContainerEngine, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + UP_SECONDS
    while True:
        try:
            engine.call("GET", "/_ping", op="answer", timeout=5)
        except ProviderUnavailable:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the engine did not start:\n{log.read_text(errors='replace')[-3000:]}") from None
            time.sleep(0.05)
        else:
            return


def rootfs() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox is not None
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in ("bin", "etc", "tmp", "usr", "usr/bin", "root", "var", "home", "mnt"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        tar.add(busybox, "bin/busybox")
        for name in names:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        _add_perl(tar)
        for name, text in {"etc/passwd": "root:x:0:0::/root:/bin/sh\n", "etc/group": "root:x:0:\n"}.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(text), 0o644
            tar.addfile(file, io.BytesIO(text.encode()))
    return data.getvalue()


def _add_perl(tar: tarfile.TarFile) -> None:
    perl = shutil.which("perl", path="/usr/bin")
    if perl is None:
        return
    places = subprocess.run([perl, "-e", "print join qq(\n), @INC"], capture_output=True, text=True, check=True)
    base = [place for place in places.stdout.split() if place.endswith("/perl-base")]
    programs = [perl, "/usr/bin/id"]  # a conformance check copies `id` into a project as a setuid program
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout.split()
    libraries = {word for word in listed if word.startswith("/") and not word.endswith(":")}
    for path in sorted({perl, *base, *libraries}):
        tar.add(os.path.realpath(path), path.lstrip("/"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Its containerd and shims are in its process group; kill those that have not ended in time.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill_below(base: Path) -> None:
    """Kill what a killed engine left running: processes with the engine's directory in their command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{base}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def _remove_groups(container: str) -> None:
    """Remove the control groups that a killed engine left for a container, and kill the processes in them."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for _, mount, kind, *_ in mounts:
        group = Path(mount) / "docker" / container
        end = time.monotonic() + 10
        while kind in ("cgroup", "cgroup2") and group.exists() and time.monotonic() < end:
            for directory in sorted((group, *(path for path in group.rglob("*") if path.is_dir())), reverse=True):
                with contextlib.suppress(OSError):
                    for pid in (directory / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                    directory.rmdir()
            time.sleep(0.01)


def _unmount_below(base: Path) -> None:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(f"{base}/")), reverse=True):
        subprocess.run(["umount", "-l", point], check=False, capture_output=True)
