"""The `docker` provider with a private engine: the conformance suite, and tests specific to containers."""

from __future__ import annotations

import gzip
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from pacing import SOON
from private_engine import IMAGE, PrivateEngine, private_engine, rootfs
from raw_agent import wait_until

from proofbox import Sandboxes
from proofbox.config.settings import Settings
from proofbox.core.dirs import cache_dir, config_dir, state_dir
from proofbox.errors import (
    ImageUnavailable,
    ProofboxError,
    ProviderUnavailable,
    SandboxError,
    SandboxLost,
    StartFailed,
)
from proofbox.sandbox.conformance import CHECKS, run_conformance
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.ownership import our_containers
from proofbox.sandbox.host.unix_sockets import connect_at
from proofbox.sandbox.images import build as build_module
from proofbox.sandbox.images.image import architecture
from proofbox.sandbox.images.local import keep, new_archive

# One worker runs all of these tests, so that they share one engine.
pytestmark = [pytest.mark.needs("docker"), pytest.mark.xdist_group("docker")]


# gVisor is ten times slower than the others: run the checks where it differs most, and all of them in a soak.
SOAK = os.environ.get("PROOFBOX_SOAK", "") not in ("", "0")
SAMPLED = {
    "agent",
    "kernel",
    "killing",
    "limits",
    "policy",
    "commands.one-failure-among-many",
    "network.socket-families",
}


@pytest.fixture(scope="module")
def engine() -> Generator[PrivateEngine]:
    with private_engine() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started.host)
        yield started
        wait_until(lambda: our_containers(started.engine) == {}, "the end of all containers")


@pytest.fixture
def boxes(engine: PrivateEngine, tmp_path: Path) -> Generator[Sandboxes]:
    with Sandboxes(tmp_path, settings=Settings(provider="docker", image=IMAGE)) as found:
        yield found


@pytest.mark.parametrize("check", [check.name for check in CHECKS])
def test_conformance(check: str, engine: PrivateEngine) -> None:
    conforms(check, Settings(image=IMAGE))


@pytest.mark.parametrize("mounts", [(), ("/etc:/etc:ro",)])
def test_files_of_an_image_are_not_those_of_the_callers_home(
    engine: PrivateEngine, monkeypatch: pytest.MonkeyPatch, mounts: tuple[str, ...]
) -> None:
    """An image may have files with the same names in root's home."""
    monkeypatch.setenv("HOME", "/etc")
    report = run_conformance("docker", only=["reach.outside-by-path"], settings=Settings(image=IMAGE, mounts=mounts))
    assert report.results[0].outcome == ("failed" if mounts else "passed"), report.results[0].detail


@pytest.mark.needs("gvisor")
@pytest.mark.parametrize("check", [check.name for check in CHECKS if SOAK or {check.subject, check.name} & SAMPLED])
def test_conformance_of_gvisor(check: str, engine: PrivateEngine) -> None:
    conforms(check, Settings(image=IMAGE, runtime="runsc"))


def conforms(check: str, settings: Settings) -> None:
    report = run_conformance("docker", only=[check], settings=settings)
    [result] = report.results
    if result.outcome == "failed":
        pytest.fail(result.detail, pytrace=False)
    if result.outcome == "not_checked":
        pytest.skip(result.detail)
    assert result.outcome == "passed" or result.detail


def test_commands_run_as_the_project_owner(engine: PrivateEngine, tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 8765)
    with Sandboxes(tmp_path, settings=Settings(provider="docker", image=IMAGE)) as found:
        result = found.exec(["sh", "-c", "id -u; id -g; touch made"])
    assert result.stdout == "4321\n8765\n"
    assert ((tmp_path / "made").stat().st_uid, (tmp_path / "made").stat().st_gid) == (4321, 8765)


def test_empty_image_is_sufficient(engine: PrivateEngine, boxes: Sandboxes) -> None:
    """In an image without a shell or any directory, the agent runs and reports that the command is missing."""
    empty = b"\0" * 10240
    engine.engine.call("POST", "/images/create", op="import", query={"fromSrc": "-", "repo": "empty"}, body=empty)
    with boxes.start_session(image="empty") as session, pytest.raises(ProofboxError) as raised:
        session.exec(["sh"])
    assert raised.value.code == "SANDBOX_COMMAND_NOT_FOUND"


def test_auto_selects_docker_if_an_image_is_requested(engine: PrivateEngine, tmp_path: Path) -> None:
    with Sandboxes(tmp_path) as found:
        result = found.exec(["true"], image=IMAGE)
    assert result.provider == "docker"
    assert "image" in result.diagnostics["bubblewrap"].reason


def test_missing_and_unknown_images_are_explained(boxes: Sandboxes, tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="has no image 'nowhere'"):
        boxes.exec(["true"], image="nowhere")


def test_default_image_is_used_if_none_is_named(
    engine: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (project := tmp_path / "project").mkdir()
    built: list[str] = []

    def build(name: str, **_: object) -> None:
        built.append(name)
        with new_archive() as archive:
            archive.write_bytes(rootfs())
            keep(archive, name, architecture(), source="build", origin="a test")

    monkeypatch.setattr(build_module, "build_image", build)
    with Sandboxes(project, settings=Settings()) as plain:
        assert plain.exec(["busybox", "true"], provider="docker").exit_code == 0
        result = plain.exec(["busybox", "true"], provider="docker")
    assert built == ["debian-12"], "built at the first use only"
    assert str(result.policy.image).startswith("proofbox-image/debian-12:")
    assert not (project / ".proofbox").exists(), "running a command locks nothing"


def test_catalogue_image_is_imported_on_first_use(
    engine: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    project = tmp_path / "project"
    project.mkdir()
    data = gzip.compress(rootfs(), 1)
    digest = hashlib.sha256(data).hexdigest()
    (config_dir() / "images.toml").write_text(
        f'schema_version = "proofbox.images/1"\n[[image]]\nname = "small"\narch = "{architecture()}"\n'
        f'url = "http://127.0.0.1:9/small.tar.gz"\nsha256 = "{digest}"\n'
    )
    with Sandboxes(project, settings=Settings(provider="docker", image="small")) as found:
        with pytest.raises(ImageUnavailable) as raised:
            found.exec(["true"])
        assert raised.value.fix_hints == ("proofbox images pull small",)
        place = cache_dir() / "images" / f"{digest}.rootfs"
        place.parent.mkdir()
        place.write_bytes(data)
        result = found.exec(["sh", "-c", "echo from the catalogue"])
        assert result.stdout == "from the catalogue\n"
        assert result.policy.image == f"proofbox-image/small:{digest}"
        place.unlink()  # imported only once: the engine has it now
        assert found.exec(["true"]).exit_code == 0


def test_invalid_archive_is_explained(engine: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    digest = hashlib.sha256(b"no archive").hexdigest()
    (config_dir() / "images.toml").write_text(
        f'schema_version = "proofbox.images/1"\n[[image]]\nname = "wrong"\narch = "{architecture()}"\n'
        f'url = "http://127.0.0.1:9/wrong"\nsha256 = "{digest}"\n'
    )
    (cache_dir() / "images").mkdir()
    (cache_dir() / "images" / f"{digest}.rootfs").write_bytes(b"no archive")
    (tmp_path / "project").mkdir()
    with Sandboxes(tmp_path / "project") as found, pytest.raises(SandboxError) as raised:
        found.exec(["true"], provider="docker", image="wrong")
    assert "import" in raised.value.message


def test_container_killed_during_a_command_is_a_lost_box(engine: PrivateEngine, boxes: Sandboxes) -> None:
    with boxes.start_session() as session:
        session.exec(["true"])
        container = our_containers(engine.engine)[session.id]
        engine.engine.call("POST", f"/containers/{container}/kill", op="kill it")
        began = time.monotonic()
        with pytest.raises(SandboxLost):
            session.exec(["sleep", "60"])
        assert time.monotonic() - began < SOON
        assert session.info.state == "lost"


@pytest.mark.parametrize("runtime", [None, pytest.param("runsc", marks=pytest.mark.needs("gvisor"))])
def test_agent_killed_during_a_command_is_a_lost_box(
    engine: PrivateEngine, boxes: Sandboxes, runtime: str | None
) -> None:
    with boxes.start_session(runtime=runtime) as session:
        session.exec(["true"])
        container = our_containers(engine.engine)[session.id]
        agent = engine.engine.call("GET", f"/containers/{container}/json", op="inspect it")["State"]["Pid"]
        began = 0.0

        def kill(_: object) -> None:
            nonlocal began
            os.kill(agent, signal.SIGKILL)
            began = time.monotonic()

        with pytest.raises(SandboxLost) as raised:
            session.exec(["sh", "-c", "echo up; sleep 60"], on_output=kill)
        assert time.monotonic() - began < SOON
        assert raised.value.details["account"]
        with pytest.raises(SandboxLost):
            session.exec(["true"])


def test_killed_client_leaves_no_container(engine: PrivateEngine, tmp_path: Path) -> None:
    script = (
        "import sys; from proofbox import Sandboxes; from proofbox.config.settings import Settings\n"
        f"s = Sandboxes({str(tmp_path)!r}, settings=Settings(provider='docker', image={IMAGE!r})).start_session()\n"
        "print(s.id, flush=True); s.exec(['sleep', '600'])"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        session = client.stdout.readline().strip()
        assert session in our_containers(engine.engine)
        client.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while session in our_containers(engine.engine) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session not in our_containers(engine.engine)


def test_prune_removes_containers_of_killed_clients(
    engine: PrivateEngine, boxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is killed between creating and starting a container: only the container's labels identify it."""
    with monkeypatch.context() as patch:
        patch.setattr("proofbox.sandbox.providers.docker.DockerBox._run", lambda _: os.kill(os.getpid(), 9))
        if (child := os.fork()) == 0:
            boxes.start_session()
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
    [left] = our_containers(engine.engine)
    [scratch] = state_dir().glob("scratch-*")
    with boxes.start_session() as bound:
        detached = boxes.start_session(detached=True)
        with monkeypatch.context() as patch:
            patch.setattr("proofbox.sandbox.containers.ownership._home", lambda: "another user's")
            assert left not in boxes.prune_sessions()
        assert left in boxes.prune_sessions()
        assert set(our_containers(engine.engine)) == {bound.id, detached.id}
        assert not scratch.exists()
        assert bound.exec(["true"]).exit_code == detached.exec(["true"]).exit_code == 0
        detached.stop()
        assert boxes.prune_sessions() == [detached.id]


def test_detached_session_waits_until_its_agent_listens(boxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine reports a container as started before its agent has made the socket."""
    missing = iter([FileNotFoundError, ConnectionRefusedError])

    def connect(directory: Path) -> socket.socket:
        for error in missing:
            raise error
        return connect_at(directory)

    monkeypatch.setattr("proofbox.sandbox.providers.docker.connect_at", connect)
    session = boxes.start_session(detached=True)
    assert next(missing, None) is None
    assert session.exec(["true"]).exit_code == 0
    session.stop()


def test_prune_works_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    with Sandboxes(tmp_path) as found:
        found.prune_sessions()
        assert found.list_sessions() == []


def test_detached_session_outlives_its_killed_client_by_its_ttl(engine: PrivateEngine, tmp_path: Path) -> None:
    script = (
        "import os; from proofbox import Sandboxes; from proofbox.config.settings import Settings\n"
        f"s = Sandboxes({str(tmp_path)!r}, settings=Settings(provider='docker', image={IMAGE!r}))\n"
        "print(s.start_session(detached=True, ttl=4).id, flush=True); os.kill(os.getpid(), 9)"
    )
    client = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60)
    assert client.returncode == -9
    session = client.stdout.strip()
    assert session in our_containers(engine.engine)
    deadline = time.monotonic() + 60
    while session in our_containers(engine.engine):
        assert time.monotonic() < deadline, "the session outlived its TTL"
        time.sleep(0.05)
    with Sandboxes(tmp_path) as found:
        assert found.get_session(session).state == "lost"
        assert session in found.prune_sessions()


def test_fifty_concurrent_sessions(engine: PrivateEngine, boxes: Sandboxes, rounds: object) -> None:
    count = rounds(8, 50)  # type: ignore[operator]
    sessions = [boxes.start_session() for _ in range(count)]
    assert [session.exec(["sh", "-c", f"exit {n}"]).exit_code for n, session in enumerate(sessions)] == list(
        range(count)
    )
    for session in sessions:
        session.stop()


@pytest.mark.needs("gvisor")
def test_gvisor_is_reached_over_the_attached_streams(boxes: Sandboxes) -> None:
    with boxes.start_session(runtime="runsc") as session:
        result = session.exec(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"\0in\xff" * 100_000)
        assert (result.stdout_bytes, result.stderr, result.exit_code) == (b"\0in\xff" * 100_000, "err\n", 3)
        assert result.isolation.value == "sandboxed-kernel"
        assert session.exec(["sleep", "600"], timeout=0.5).timed_out


def test_allowlist_reaches_only_the_listed_endpoint(boxes: Sandboxes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.recv(65536)
                stream.sendall(b"HTTP/1.0 200 OK\r\n\r\nfound")

        threading.Thread(target=answer, daemon=True).start()
        with boxes.start_session(network=f"allow:127.0.0.1:{port}") as session:
            result = session.exec(["wget", "-q", "-O-", f"http://127.0.0.1:{port}/"], timeout=60)
            assert result.stdout == "found"
            refused = session.exec(["wget", "-O-", "http://other.example/"], timeout=60)
            assert refused.exit_code != 0
            assert "403" in refused.stderr


def test_missing_engine_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for address in (f"unix://{tmp_path}/nothing.sock", "ssh://somewhere", "tcp://127.0.0.1:1"):
        monkeypatch.setenv("DOCKER_HOST", address)
        with Sandboxes(tmp_path, settings=Settings(image=IMAGE)) as found, pytest.raises(ProviderUnavailable) as raised:
            found.exec(["true"], provider="docker")
        assert raised.value.fix_hints
    with pytest.raises(ProviderUnavailable):
        ContainerEngine.find(
            {"XDG_RUNTIME_DIR": str(tmp_path)} if not Path("/var/run/docker.sock").exists() else {"DOCKER_HOST": "x"}
        )
