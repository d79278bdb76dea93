"""Interactive processes, and doors from a box without a network to one socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import private_engine
import pytest
from raw_agent import PATIENCE, alive, resident_kb

from proofbox import AsyncSandboxes, Sandboxes
from proofbox.errors import CommandNotFound, PolicyRefused, RequestInvalid, SandboxLost
from proofbox.sandbox.async_service import AsyncSession
from proofbox.sandbox.client.async_process import AsyncProcess, open_process
from proofbox.sandbox.contract import Door

PROVIDERS = ["off", pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))]


def in_session(project: Path, provider: str, work: Callable[[AsyncSession], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(PATIENCE * 2):
            async with AsyncSandboxes(project) as boxes, await boxes.start_session(provider=provider) as session:
                await work(session)

    anyio.run(bounded)


async def read(process: AsyncProcess, size: int) -> bytes:
    held = b""
    while len(held) < size:
        piece = await process.receive()
        assert piece is not None, f"the output ended after {held!r}"
        held += piece.data
    return held


@pytest.mark.parametrize("provider", PROVIDERS)
def test_input_and_output_alternate(tmp_path: Path, provider: str) -> None:
    async def work(session: AsyncSession) -> None:
        async with open_process(session, ["cat"]) as process:
            for number in range(20):
                line = f"line {number}\n".encode()
                await process.send(line)
                assert await read(process, len(line)) == line
            assert (await session.exec(["echo", "beside"])).stdout == "beside\n"
            await process.close_stdin()
            assert await process.receive() is None
            assert (await process.wait()).exit_code == 0
            with pytest.raises(anyio.BrokenResourceError):
                await process.send(b"too late")
            await process.close_stdin()
            await process.kill()

    in_session(tmp_path, provider, work)


def test_unread_data_does_not_fill_memory(tmp_path: Path) -> None:
    total = 48 << 20

    async def work(session: AsyncSession) -> None:
        before = resident_kb(os.getpid())
        async with open_process(session, ["cat"]) as process:
            poured = 0

            async def pour() -> None:
                nonlocal poured
                for _ in range(total >> 20):
                    await process.send(b"x" * (1 << 20))
                    poured += 1
                await process.close_stdin()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pour)
                # No reader: the sender must block, not end.
                still, before_that = 0, (-1, -1)
                while still < 20:
                    await anyio.sleep(0.02)
                    here = (poured, process._call.stdin_window)
                    still, before_that = (still + 1 if here == before_that else 0), here
                assert poured < total >> 20
                assert process._call.stdin_window < 64 << 10
                seen = 0
                while piece := await process.receive():
                    seen += len(piece.data)
            assert seen == total
            result = await process.wait()
            assert len(result.stdout_bytes) < 70 << 10
            assert result.truncated.stdout
        assert resident_kb(os.getpid()) - before < 24_000

    in_session(tmp_path, "off", work)


@pytest.mark.parametrize("how", ["left", "cancelled", "raised"])
def test_leaving_the_block_kills_the_process_tree(tmp_path: Path, how: str) -> None:
    pids: list[int] = []
    script = "setsid sleep 1000 & echo $!; exec sleep 1000"

    async def work(session: AsyncSession) -> None:
        with anyio.CancelScope() as scope:
            try:
                async with open_process(session, ["sh", "-c", script]) as process:
                    piece = await process.receive()
                    assert piece is not None
                    pids.append(int(piece.data))
                    if how == "raised":
                        raise RuntimeError("ours")  # noqa: TRY301
                    if how == "cancelled":
                        scope.cancel()
                        await process.wait()
            except RuntimeError:
                assert how == "raised"
        assert not alive(pids[0])
        assert (await session.exec(["echo", "on"])).stdout == "on\n"

    in_session(tmp_path, "off", work)


def test_signals_streams_and_failed_starts(tmp_path: Path) -> None:
    async def work(session: AsyncSession) -> None:
        script = "trap 'echo caught >&2; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
        async with open_process(session, ["sh", "-c", script], env={"A": "b"}) as process:
            assert await read(process, 6) == b"ready\n"
            await process.signal(signal.SIGTERM)
            errors = b""
            while b"caught" not in errors:  # the shell may first report its `sleep`, which got the signal as well
                piece = await process.receive()
                assert piece is not None
                assert piece.stream == "stderr"
                errors += piece.data
            assert (await process.wait()).exit_code == 5
        async with open_process(session, ["no-such-program"]) as process:
            with pytest.raises(CommandNotFound):
                await process.wait()

    in_session(tmp_path, "off", work)


@pytest.mark.needs("bubblewrap")
def test_end_of_the_box_is_a_loss_for_reader_and_writer(tmp_path: Path) -> None:
    async def work(session: AsyncSession) -> None:
        await session.exec(["true"])  # a box that ends before it has answered was never started
        async with open_process(session, ["sleep", "1000"]) as process:
            lost: list[str] = []

            async def feed() -> None:
                with pytest.raises(SandboxLost):
                    await process.send(b"x" * (4 << 20))
                lost.append("send")

            async def listen() -> None:
                with pytest.raises(SandboxLost):
                    await process.receive()
                lost.append("receive")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(feed)
                tasks.start_soon(listen)
                await anyio.wait_all_tasks_blocked()
                await session.stop()
            assert sorted(lost) == ["receive", "send"]

    in_session(tmp_path, "bubblewrap", work)


# ---- doors

SEND_HELLO = ["sh", "-c", "exec 3<>/dev/tcp/127.0.0.1/8123 && echo hello >&3 && cat <&3"]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "private"
    directory.mkdir(mode=0o700)
    path = directory / "sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        path.chmod(0o666)
        server.listen(8)

        def serve() -> None:
            while True:
                try:
                    stream, _ = server.accept()
                except OSError:
                    return
                with stream:
                    stream.sendall(b"received " + stream.recv(100))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield path
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.needs("bubblewrap")
def test_door_reaches_one_socket_and_no_other_network(tmp_path: Path, listener: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with Sandboxes(project) as boxes:
        with boxes.start_session(provider="bubblewrap", network="none", doors=[Door(8123, listener)]) as session:
            assert session.exec(["bash", *SEND_HELLO[1:]]).stdout == "received hello\n"
            assert session.exec(["cat", "/proc/net/dev"]).stdout.count(":") == 1
            assert session.exec(["ls", str(listener.parent)]).exit_code != 0
            result = session.exec(["true"])
            assert result.policy.doors == (Door(8123, listener),)
            assert result.policy.network == "none"
        with boxes.start_session(provider="bubblewrap") as session:
            assert "received" not in session.exec(["bash", *SEND_HELLO[1:]]).stdout
    assert stat.S_IMODE(listener.parent.stat().st_mode) == 0o700


TIME_SECOND_PIECES = """
import socket, time
stream, control = (socket.create_connection(("127.0.0.1", 8123)) for _ in range(2))
control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
seconds = []
for _ in range(20):
    stream.sendall(b"?")
    stream.recv(1)
    began = time.monotonic()
    control.sendall(b"?")
    stream.recv(1)
    seconds.append(time.monotonic() - began)
print(min(seconds[1:]))  # the kernel acknowledges the first piece of a connection at once
"""


@pytest.mark.needs("bubblewrap")
def test_door_does_not_delay_small_pieces(tmp_path: Path) -> None:
    """Without TCP_NODELAY, a piece waits until the one before it is acknowledged, which takes 40 ms or more."""
    directory = tmp_path / "private"
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as server, Sandboxes(tmp_path) as boxes:
        server.bind(str(directory / "sock"))
        (directory / "sock").chmod(0o666)
        server.listen(8)
        server.settimeout(PATIENCE)

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as stream, server.accept()[0] as control:
                while stream.recv(1):
                    stream.sendall(b".")
                    control.recv(1)
                    stream.sendall(b".")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        doors = [Door(8123, directory / "sock")]
        with boxes.start_session(provider="bubblewrap", doors=doors) as session:
            result = session.exec(["python3", "-c", TIME_SECOND_PIECES], timeout=PATIENCE)
        thread.join()
    assert result.exit_code == 0, result.stderr
    assert float(result.stdout) < 0.03


@pytest.mark.needs("docker")
def test_container_has_doors(tmp_path: Path, listener: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with private_engine.private_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        with Sandboxes(project) as boxes:
            doors = [Door(8123, listener)]
            with boxes.start_session(provider="docker", image=private_engine.IMAGE, doors=doors) as session:
                result = session.exec(["sh", "-c", "echo hello | nc 127.0.0.1 8123"], timeout=PATIENCE)
                assert result.stdout == "received hello\n", result.stderr


def test_invalid_doors_are_refused(tmp_path: Path, listener: Path) -> None:
    with Sandboxes(tmp_path) as boxes:
        for doors, error in (
            ([Door(80, listener)], RequestInvalid),
            ([Door(8123, listener), Door(8123, listener)], RequestInvalid),
        ):
            with pytest.raises(error):
                boxes.exec(["true"], provider="bubblewrap", doors=doors)
        with pytest.raises(RequestInvalid, match="door"):
            boxes.exec(["true"], provider="bubblewrap", network="full", doors=[Door(8123, listener)])
        with pytest.raises(PolicyRefused, match="doors"):
            boxes.exec(["true"], provider="off", doors=[Door(8123, listener)])
        with pytest.raises(PolicyRefused, match="doors"):
            boxes.start_session(provider="bubblewrap", detached=True, doors=[Door(8123, listener)])
