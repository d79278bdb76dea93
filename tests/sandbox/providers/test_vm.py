"""Virtual machines: their own kernel, shared files, and ends. Each test boots one; a boot takes seconds if emulated."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from capabilities import OrdinaryUser
from conftest import SOAK
from fake_mac import MAC, be_a_mac, busybox_root, kernel_in_qemu
from isolation_page import decisions, documented
from raw_agent import wait_until
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, write

from proofbox import Mount, Sandboxes, run_plan
from proofbox.errors import ImageUnknown, SandboxLost
from proofbox.sandbox.conformance import CHECKS, run_conformance
from proofbox.sandbox.contract import Door
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.machines import kernel as kernels
from proofbox.sandbox.machines.acceleration import find_acceleration
from proofbox.sandbox.machines.console_port import HEADER, READY
from proofbox.sandbox.machines.initramfs import make_initramfs
from proofbox.sandbox.machines.kernel import find_kernel
from proofbox.sandbox.machines.qemu import port_options, qemu_base
from proofbox.sandbox.machines.trial_boot import INITRAMFS, KERNEL, booting
from proofbox.sandbox.providers import vm
from proofbox.sandbox.service import Session

pytestmark = [pytest.mark.needs("vm", "bubblewrap"), pytest.mark.xdist_group("vm"), pytest.mark.timeout(900)]

# The whole suite takes minutes with an emulated machine. The soak tests run it.
SAMPLE = ("commands.exit-codes", "detached.used-by-another-process")


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A prepared kernel in a separate cache: other tests of this process must not find one, since `vm` is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(kernels, "_found", [])
        kernels.prepare_kernel(lambda _: None)
        yield


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def boxes(project: Path) -> Iterator[Sandboxes]:
    with Sandboxes(project) as opened:
        yield opened


def processes_of(session: Session) -> dict[int, str]:
    """Return the host's processes of a machine by pid, from their command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            group = (entry / "cgroup").read_text()
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if f"/{session.id}." in group:
            found[int(entry.name)] = name
    return found


@pytest.mark.needs("root")
@pytest.mark.parametrize("check", [check.name for check in CHECKS] if SOAK else SAMPLE)
def test_conformance(check: str) -> None:
    [result] = run_conformance("vm", only=[check]).results
    assert result.outcome in ("passed", "not_applicable"), result.detail


AS_USER = """
import os, pathlib, tempfile, proofbox
from proofbox.sandbox.machines.kernel import prepare_kernel
prepare_kernel(lambda _: None)
with tempfile.TemporaryDirectory() as project, proofbox.Sandboxes(project) as boxes:
    with boxes.start_session(provider="vm") as session:
        result = session.exec(["sh", "-c", "id -u; echo made > made; test -e /etc/shadow || echo absent"])
    print(result.isolation.value, *result.stdout.split(), pathlib.Path(project, "made").stat().st_uid == os.getuid())
"""


@pytest.mark.needs("unprivileged-user")
def test_ordinary_user_starts_machines(ordinary_user: OrdinaryUser) -> None:
    assert ordinary_user.run_code(AS_USER).split() == ["vm", "1000", "absent", "True"]


@pytest.mark.needs("root")
def test_machine_isolates_as_documented(tmp_path: Path) -> None:
    run = run_plan("vm", tmp_path / "out", only_profiles=["default"])
    assert [(each.probe_id, each.detail) for each in run.results if not each.matched] == []
    assert documented("vm") == decisions(run), "regenerate docs/isolation.md: scripts/isolation"


@pytest.mark.needs("root", "limits")
def test_machine_has_its_own_kernel_and_leaves_nothing_behind(boxes: Sandboxes, project: Path) -> None:
    socket_place = project.parent / "listening"
    with (
        listening(socket_place),
        boxes.start_session(
            provider="vm",
            network="none",
            mounts=[Mount(socket_place, "/run/mounted")],
            doors=[Door(4000, socket_place)],
        ) as session,
    ):
        result = session.exec(["sh", "-c", "uname -r; date +%s; echo made > made; id -u; nproc"])
        release, seconds, uid, processors = result.stdout.split()
        assert release == release_of(find_kernel())
        assert abs(int(seconds) - time.time()) < 30
        assert (uid, processors) == ("1000", "1")
        assert (result.isolation.value, result.provider) == ("vm", "vm")
        assert re.match("acceleration: (kvm|tcg)", result.diagnostics["vm"].reason)
        assert (project / "made").stat().st_uid == project.stat().st_uid
        assert session.exec(["python3", "-c", ASK]).stdout == "pong\npong\n"
        assert session.exec(["sh", "-c", LOADER]).stdout.split() == loader_on_this_machine()
        names = sorted(processes_of(session).values())
        assert names.count("virtiofsd") == 2
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid, name in processes_of(session).items() if "qemu" in name}
        assert owners
        assert 0 not in owners
    wait_until(lambda: not processes_of(session), "the end of the machine")


@pytest.mark.needs("root", "limits")
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("qemu-system-x86", "QEMU was killed by signal 9"),
        ("virtiofsd", "virtiofsd was killed by signal 9"),
        ("boxvm", "the box ended while the command was running"),
    ],
)
def test_killed_program_is_reported_as_a_lost_box(boxes: Sandboxes, program: str, reason: str) -> None:
    with boxes.start_session(provider="vm") as session, ThreadPoolExecutor(1) as pool:
        running = pool.submit(session.exec, ["sh", "-c", "echo > started; sleep 600"])
        wait_until((session.inside.project / "started").exists, "the command")
        victim = next(pid for pid, name in processes_of(session).items() if name.startswith(program))
        os.kill(victim, signal.SIGKILL)
        within_two_seconds(running.done, "the report of the loss")
        with pytest.raises(SandboxLost, match=reason):
            running.result()
        within_two_seconds(lambda: not processes_of(session), "the end of the machine")


def within_two_seconds(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition for two seconds, which are longer on a machine that starves this process."""
    for _ in range(40):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail(f"{what} took more than two seconds")


def test_guest_waits_until_its_kernel_knows_that_the_host_is_connected() -> None:
    kernel = find_kernel()
    monitor, its_end = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as port, monitor, its_end:
        listener.bind("")
        listener.listen()
        fds = [listener.fileno(), its_end.fileno()]
        options = port_options(str(fds[0]))
        options[1] += ",server=on,wait=off"
        options[-1] += ",id=port"  # QEMU reports only changes of devices with a name
        options += ["-chardev", f"socket,id=monitor,fd={fds[1]}", "-mon", "chardev=monitor,mode=control"]
        kind = find_acceleration(kernel / "vmlinux", make_initramfs(kernel))
        qemu = [*qemu_base(kind, KERNEL, INITRAMFS, memory_mb=None, cpus=None), *options]
        with booting(qemu, {KERNEL: kernel / "vmlinux", INITRAMFS: make_initramfs(kernel)}, kind, fds=fds):
            its_end.close()
            monitor.sendall(b'{"execute": "qmp_capabilities"}')
            with monitor.makefile("rb") as events:
                assert any(b"VSERPORT_CHANGE" in event and b'"open": true' in event for event in events)
                monitor.settimeout(3)
                with pytest.raises(TimeoutError):  # a guest that gives up ends QEMU
                    events.readline()
            port.connect(listener.getsockname())
            assert port.recv(HEADER.size) == HEADER.pack(0, READY, 0)


@pytest.mark.needs("root", "limits")
def test_killed_client_leaves_nothing_behind(project: Path) -> None:
    code = (
        "import sys, proofbox\n"
        "boxes = proofbox.Sandboxes(sys.argv[1])\n"
        "print(boxes.start_session(provider='vm').id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(project)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        id = client.stdout.readline().strip()
        groups = [path for path in Path("/sys/fs/cgroup").rglob(f"{id}.*") if path.is_dir()]
        assert groups
        client.kill()
    within_two_seconds(lambda: not any(map(populated, groups)), "the end of the machine")


ASK = """
import socket
for kind, address in ((socket.AF_INET, ("127.0.0.1", 4000)), (socket.AF_UNIX, "/run/mounted")):
    with socket.socket(kind) as stream:
        stream.connect(address)
        stream.send(b"ping")
        print(stream.recv(9).decode())
"""
# The guest has a copy of the C library in memory, with what the host's file has, on a file system other than /usr's.
LOADER = """
cat /lib/x86_64-linux-gnu/libc.so.6 | sha256sum | cut -c -64
stat -L -c '%a %s %Y' /lib/x86_64-linux-gnu/libc.so.6
test "$(stat -L -c %d /lib/x86_64-linux-gnu/libc.so.6)" = "$(stat -c %d /usr)" || echo in memory
"""
ROOT_ATTACKS = """
import ctypes, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
assert os.getuid() == 0
module = os.open("failover.ko", os.O_RDONLY)
print("module", libc.syscall(313, module, b"", 0))
print("raw", socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).fileno() > 0)
print("interfaces", *(name for _, name in socket.if_nameindex()))
os.mkdir("/tmp/share")
print("share", libc.mount(b"files", b"/tmp/share", b"virtiofs", 0, None))
print("outside", os.path.exists("/tmp/share" + sys.argv[1]))
for place in ("/tmp/share/planted", "/tmp/share" + os.path.dirname(sys.argv[1]) + "/planted", "/usr/planted"):
    try:
        open(place, "w").close()
        print("planted", place)
    except OSError as error:
        pass
os.mknod("/tmp/memory", 0o20600, os.makedev(1, 1))
print("modules", "failover" in open("/proc/modules").read())
"""


@pytest.mark.needs("root")
def test_root_in_the_guest_stays_in_the_guest(
    boxes: Sandboxes, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bubblewrap box could not contain this: commands are root, with all capabilities and without a filter."""
    monkeypatch.setattr(vm, "_confinement", lambda *_: iter(()))
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (project / "failover.ko").write_bytes((find_kernel() / "modules/failover.ko").read_bytes())
    result = boxes.exec(["python3", "-c", ROOT_ATTACKS, str(outside)], provider="vm", network="none")
    found = dict(line.split(" ", 1) for line in result.stdout.splitlines())
    assert found == {
        "module": "0",
        "raw": "True",
        "interfaces": "lo",
        "share": "0",
        "outside": "False",
        "modules": "True",
    }, result.stderr
    host = Path("/proc/modules")
    assert not host.exists() or "failover" not in host.read_text()
    assert not Path("/usr/planted").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "project"]


FETCH = """
id -u; ls /; test -e /usr || echo no programs of the host
printf 'GET / HTTP/1.0\r\n\r\n' | nc 127.0.0.1 $0 | grep -o found
printf 'GET http://other.example/ HTTP/1.0\r\n\r\n' | nc 127.0.0.1 3128 | grep -o '403 Forbidden'
printf ping | nc 127.0.0.1 4000
"""


@pytest.mark.needs("root", "docker")
def test_image_is_the_root_and_only_listed_endpoints_are_reachable(
    boxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # which also keeps the image; the kernel is known
    import_image(busybox_root(tmp_path / "root"), "tiny")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, listening(tmp_path / "listening"):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = boxes.exec(
            ["sh", "-c", FETCH, str(server.server_port)],
            provider="vm",
            image="tiny",
            network=f"allow:127.0.0.1:{server.server_port}",
            doors=[Door(4000, tmp_path / "listening")],  # as the model gateway has one
        )
        server.shutdown()
    assert "no programs of the host" in result.stdout
    assert result.stdout.split()[-4:] == ["found", "403", "Forbidden", "pong"], (result.stdout, result.stderr)
    assert result.isolation.value == "vm"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"found\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.needs("root")
def test_suite_runs_in_virtual_machines(tmp_path: Path) -> None:
    source = HEAD + mission(
        "greeting",
        write("hello.txt", "hello\n"),
        command("uname -r > kernel; cat hello.txt"),
        verify={"commands": ["grep -qx hello hello.txt", "grep -q cloud kernel"]},
    )
    out = tmp_path / "out"
    made = plan(source, out, tmp_path, provider="vm")
    conduct(made, out)
    [(_, verified, infra, _)] = results(made, out).values()
    assert (verified, infra) == ("passed", None)
    [attempt] = attempts(made, out).values()
    assert document(out, made, attempt, "attempt.json")["verification"]["isolation"] == "vm"
    assert document(out, made, attempt, "runner.ref.json")["facts"]["acceleration"] in ("kvm", "tcg")


# The same guest as on a Mac: a fake Virtualization.framework runs it in QEMU, on a PCI bus, and init composes its root.
# `test_arm64_guest.py` does that on the processor of a Mac.

COMPOSED = """
id -u; pwd; cat seen; echo made > made
echo x > /data/refused; echo x > frozen/refused; cat hidden
echo x > /bin/refused; cat /data/inner; mkdir /top
grep -c . /proc/net/dev; printf ping | nc 127.0.0.1 4000
"""


@pytest.mark.needs("root", "docker")
def test_guest_of_apple_vm_composes_its_root(
    boxes: Sandboxes, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_a_mac(monkeypatch, tmp_path)
    kernel = kernel_in_qemu(find_kernel(), tmp_path / "kernel")
    monkeypatch.setattr(kernels, "_found", [kernel])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    import_image(busybox_root(tmp_path / "root"), "tiny")
    os.chown(project, *MAC.user)
    (project / "seen").write_text("seen\n")
    (project / "hidden").write_text("secret\n")
    (project / "frozen").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/inner").write_text("inner\n")
    running = kernel / "vmlinux.running"
    with (
        listening(tmp_path / "listening"),
        boxes.start_session(
            provider="apple-vm",
            image="tiny",
            mounts=[Mount(tmp_path / "data", "/data")],
            doors=[Door(4000, tmp_path / "listening")],
            hidden=["hidden"],
            frozen=["frozen"],
        ) as session,
    ):
        result = session.exec(["sh", "-c", COMPOSED])
        assert result.stdout.splitlines() == ["1000", str(project), "seen", "inner", "3", "pong"], result.stderr
        assert result.stderr.count("Read-only file system") == 4, result.stderr
        assert "can't open 'hidden': Permission denied" in result.stderr
        assert (result.isolation.value, result.provider) == ("vm", "apple-vm")
        assert (project / "made").read_text() == "made\n"
        assert running.exists()
    wait_until(lambda: not running.exists(), "the end of the machine")


def loader_on_this_machine() -> list[str]:
    library = Path("/lib/x86_64-linux-gnu/libc.so.6")
    found = library.stat()
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    return [digest, f"{found.st_mode & 0o777:o}", str(found.st_size), str(int(found.st_mtime)), "in", "memory"]


def test_kernel_is_not_an_image(boxes: Sandboxes) -> None:
    with pytest.raises(ImageUnknown, match="not a root file system"):
        boxes.start_session(provider="vm", image="kernel")


def populated(group: Path) -> bool:
    try:
        return bool((group / "cgroup.procs").read_text())
    except OSError:  # it was removed
        return False


def release_of(kernel: Path) -> str:
    found = re.search(rb"Linux version ([^ ]+) ", (kernel / "vmlinux").read_bytes())
    assert found
    return found[1].decode()


class listening:
    """A unix socket that answers `pong`, until the end of the block."""

    def __init__(self, path: Path) -> None:
        code = (
            "import os, socket, sys\n"
            "listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666)\n"
            "listener.listen(); print(flush=True)\n"
            "while True:\n    peer = listener.accept()[0]; peer.recv(4); peer.send(b'pong'); peer.close()\n"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
