"""Virtual machines that are cloned from a template: one boot for all tests of this file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from capabilities import OrdinaryUser
from conftest import SOAK
from fake_mac import busybox_root
from raw_agent import wait_until
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, write
from test_vm import FETCH, SAMPLE, Handler, listening, populated, processes_of

from proofbox import Sandboxes, Settings
from proofbox.errors import SandboxLost
from proofbox.sandbox.conformance import CHECKS, run_conformance
from proofbox.sandbox.contract import Door
from proofbox.sandbox.images.image import images_dir
from proofbox.sandbox.images.imports import import_image
from proofbox.sandbox.machines import kernel as kernels
from proofbox.sandbox.machines.template import DIGESTS

pytestmark = [pytest.mark.needs("vm", "bubblewrap"), pytest.mark.xdist_group("vm"), pytest.mark.timeout(900)]

CLONED = Settings(vm_template=True)
# Checks of the boundary that one machine each is enough for. Clones are used, since they start sooner than a boot.
BOUNDARY = (
    "killing.timeout-daemon",
    "network.no-interface",
    "filesystem.access-ro",
    "reach.outside-by-path",
    "confinement.capabilities",
    "agent.tracing",
    "limits.cpu-time",
)


@pytest.fixture(scope="module", autouse=True)
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A prepared kernel and, from the first test on, a template, in a separate cache."""
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
    with Sandboxes(project, settings=CLONED) as opened:
        yield opened


def the_template() -> Path:
    [found] = images_dir().glob("*.template")
    return found


STATE = """
cat /proc/sys/kernel/random/boot_id; head -c 32 /dev/urandom | od -An -tx1 -w32 | tr -d ' '; date +%s; ls /var/tmp
"""


@pytest.mark.needs("root", "limits")
def test_clones_share_the_project_and_no_state(boxes: Sandboxes, project: Path) -> None:
    (project / "given").write_text("by the host\n")
    with boxes.start_session(provider="vm") as one, boxes.start_session(provider="vm") as other:
        shown = one.exec(["sh", "-c", "cat given; echo made > made; echo x > /var/tmp/private"])
        assert shown.stdout == "by the host\n"
        assert (project / "made").read_text() == "made\n"
        assert (project / "made").stat().st_uid == project.stat().st_uid
        (project / "given").write_text("changed\n")
        assert other.exec(["cat", "given", "made"]).stdout == "changed\nmade\n"
        (boot, random, seconds, *private), (other_boot, other_random, *_) = (
            session.exec(["sh", "-c", STATE]).stdout.split() for session in (one, other)
        )
        assert private == ["private"]
        assert other.exec(["ls", "/var/tmp"]).stdout == ""
        assert len(random) == len(other_random) == 64
        assert boot != other_boot
        assert random != other_random
        assert abs(int(seconds) - time.time()) < 30
        for pid, name in processes_of(one).items():
            if name.startswith("qemu"):
                assert Path(f"/proc/{pid}").stat().st_uid != 0
                files = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
                options = {words[4]: words[5].split(",") for words in files}
                assert "ro" in options["/run/memory"]
                assert "ro" in options["/run/state"]
    assert {path.stat().st_mode & 0o222 for path in the_template().iterdir()} == {0}
    wait_until(lambda: not processes_of(one) and not processes_of(other), "the end of the machines")


@pytest.mark.needs("root")
def test_damaged_template_is_made_again(boxes: Sandboxes) -> None:
    boxes.exec(["true"], provider="vm")
    template = the_template()
    before = (template / DIGESTS).stat().st_mtime_ns
    memory = template / "memory"
    with memory.open("r+b") as file:
        file.seek(os.lseek(file.fileno(), 0, os.SEEK_DATA))
        first = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([first[0] ^ 1]))
    assert boxes.exec(["echo", "works"], provider="vm").stdout == "works\n"
    assert the_template() == template
    after = (template / DIGESTS).stat().st_mtime_ns
    assert after != before
    boxes.exec(["true"], provider="vm")
    assert (template / DIGESTS).stat().st_mtime_ns == after


@pytest.mark.needs("root", "limits")
def test_killed_clone_leaves_nothing_behind(boxes: Sandboxes) -> None:
    session = boxes.start_session(provider="vm")
    victim = next(pid for pid, name in processes_of(session).items() if name.startswith("qemu"))
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        session.exec(["sleep", "600"])
    session.stop()
    wait_until(lambda: not processes_of(session), "the end of the machine")


@pytest.mark.needs("root", "limits")
def test_killed_client_of_a_clone_leaves_nothing_behind(project: Path) -> None:
    code = (
        "import sys, proofbox\n"
        "boxes = proofbox.Sandboxes(sys.argv[1], settings=proofbox.Settings(vm_template=True))\n"
        "print(boxes.start_session(provider='vm').id, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", code, str(project)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        id = client.stdout.readline().strip()
        groups = [path for path in Path("/sys/fs/cgroup").rglob(f"{id}.*") if path.is_dir()]
        assert groups
        client.kill()
    wait_until(lambda: not any(map(populated, groups)), "the end of the machine")


@pytest.mark.needs("root", "docker")
@pytest.mark.skipif(not SOAK, reason="a boot of an image is tested: scripts/soak")
def test_clone_has_an_image_as_its_root_and_reaches_only_listed_endpoints(boxes: Sandboxes, tmp_path: Path) -> None:
    import_image(busybox_root(tmp_path / "root"), "tiny")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, listening(tmp_path / "listening"):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = boxes.exec(
            ["sh", "-c", FETCH, str(server.server_port)],
            provider="vm",
            image="tiny",
            network=f"allow:127.0.0.1:{server.server_port}",
            doors=[Door(4000, tmp_path / "listening")],
        )
        server.shutdown()
    assert "no programs of the host" in result.stdout
    assert result.stdout.split()[-4:] == ["found", "403", "Forbidden", "pong"], (result.stdout, result.stderr)


@pytest.mark.needs("root")
@pytest.mark.skipif(not SOAK, reason="it takes more clones: scripts/soak")
def test_clone_has_a_network_device_only_with_a_network(boxes: Sandboxes) -> None:
    devices = ["sh", "-c", "cut -s -d: -f1 /proc/net/dev"]
    assert boxes.exec(devices, provider="vm", network="full").stdout.split() == ["lo", "eth0"]
    assert boxes.exec(devices, provider="vm", network="none").stdout.split() == ["lo"]


AS_USER = """
import os, pathlib, tempfile, proofbox
from proofbox.sandbox.machines.kernel import prepare_kernel
prepare_kernel(lambda _: None)
settings = proofbox.Settings(vm_template=True)
with tempfile.TemporaryDirectory() as project, proofbox.Sandboxes(project, settings=settings) as boxes:
    for _ in range(2):
        result = boxes.exec(["sh", "-c", "id -u; echo made >> made; cat made"], provider="vm")
    print(result.isolation.value, *result.stdout.split(), pathlib.Path(project, "made").stat().st_uid == os.getuid())
"""


@pytest.mark.needs("unprivileged-user")
@pytest.mark.skipif(not SOAK, reason="it boots a template of that user: scripts/soak")
def test_ordinary_user_clones_machines(ordinary_user: OrdinaryUser) -> None:
    assert ordinary_user.run_code(AS_USER).split() == ["vm", "1000", "made", "made", "True"]


@pytest.mark.needs("root")
@pytest.mark.skipif(not SOAK, reason="it takes more clones: scripts/soak")
def test_suite_that_asks_for_it_runs_in_clones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # the kernel is known
    source = HEAD + mission(
        "greeting",
        write("hello.txt", "hello\n"),
        command("uname -r > kernel; cat hello.txt"),
        vm_template=True,
        verify={"commands": ["grep -qx hello hello.txt", "grep -q cloud kernel"]},
    )
    out = tmp_path / "out"
    made = plan(source, out, tmp_path, provider="vm")
    conduct(made, out)
    [(_, verified, infra, _)] = results(made, out).values()
    assert (verified, infra) == ("passed", None)
    [attempt] = attempts(made, out).values()
    assert document(out, made, attempt, "attempt.json")["verification"]["isolation"] == "vm"
    assert the_template().is_dir()


@pytest.mark.needs("root")
@pytest.mark.parametrize("check", [check.name for check in CHECKS] if SOAK else (*SAMPLE, *BOUNDARY))
def test_conformance_of_clones(check: str) -> None:
    [result] = run_conformance("vm", only=[check], settings=CLONED).results
    assert result.outcome in ("passed", "not_applicable"), result.detail
