"""A client for the part of the Docker Engine API that boxes need, over its socket: no command line client, no library.

Podman's socket has the same API. The size of responses is limited. Errors contain the engine's own message.
"""

from __future__ import annotations

import io
import os
import socket
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec

from proofbox.errors import EngineRefused, ProviderUnavailable

if TYPE_CHECKING:  # loaded for the first call: most sessions never talk to an engine
    import http.client

API = "v1.40"  # Docker 19.03, Podman 3: the oldest with everything that boxes need
ANSWER_LIMIT = 16 << 20
_FIX = (
    "start a container engine (Debian, Ubuntu: sudo apt-get install docker.io), or point DOCKER_HOST at its socket",
)


class ContainerEngine:
    def __init__(self, address: str) -> None:
        self.address = address
        self._url = urllib.parse.urlsplit(address)
        if self._url.scheme not in ("unix", "tcp", "http", "https"):
            raise ProviderUnavailable(
                f"DOCKER_HOST={address!r}: unsupported scheme; use unix://, tcp://, http:// or https://",
                op="probe",
                fix_hints=["forward a remote engine's socket: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST"],
            )

    @property
    def local(self) -> bool:
        """Whether it is reached over a unix socket. It may still not see this machine's files; a start shows that."""
        return self._url.scheme == "unix"

    @classmethod
    def find(cls, env: Mapping[str, str] | None = None) -> ContainerEngine:
        """Return the engine at `DOCKER_HOST`, or at the first usable socket."""
        env = os.environ if env is None else env
        if env.get("DOCKER_HOST"):
            return cls(env["DOCKER_HOST"])
        for path in _usual_sockets(env):
            if os.access(path, os.W_OK):
                return cls(f"unix://{path}")
        raise ProviderUnavailable("found no engine socket that you can access", op="probe", fix_hints=_FIX)

    def call(
        self,
        method: str,
        path: str,
        *,
        op: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        timeout: float = 60,
    ) -> Any:
        """Send one request; return the JSON of the response, or None. Raises `EngineRefused` if the engine refuses.

        A body of bytes, or an open file, is an archive; anything else is sent as JSON.
        """
        from http.client import HTTPException

        connection = self._connect(timeout)
        try:
            data, headers = _body(body)
            connection.request(method, _target(path, query), body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_LIMIT)
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        if answer.status >= 400:
            raise _refusal(answer.status, _message(text), op)
        return _decoded(text, op)

    def download(self, path: str, file: BinaryIO, *, op: str, query: Mapping[str, str], limit: int) -> None:
        """Write the body of a response to a file. Raises `EngineRefused` if refused or larger than `limit`."""
        from http.client import HTTPException

        connection = self._connect(timeout=60)
        try:
            connection.request("GET", _target(path, query))
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _refusal(answer.status, _message(answer.read(ANSWER_LIMIT)), op)
            size = 0
            while part := answer.read(1 << 20):
                size += len(part)
                if size > limit:
                    raise EngineRefused(
                        f"{op}: the response is larger than {limit} bytes", op=op, details={"status": 0}
                    )
                file.write(part)
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()

    def attach(self, container: str) -> socket.socket:
        """Return the container's stdin, stdout and stderr as one connection, upgraded from HTTP."""
        from http.client import HTTPException

        connection = self._connect(timeout=30)
        query = {"stream": "1", "stdin": "1", "stdout": "1", "stderr": "1"}
        try:
            connection.request(
                "POST",
                _target(f"/containers/{container}/attach", query),
                headers={"Connection": "Upgrade", "Upgrade": "tcp", "Content-Length": "0"},
            )
            stream = connection.sock
            head = b""
            while b"\r\n\r\n" not in head:  # byte by byte: the data after the head is the container's
                byte = stream.recv(1)
                head += byte
                if not byte or len(head) > 65536:
                    raise self._unreachable(ConnectionError("the engine did not respond to the attach request"))
        except (OSError, HTTPException) as error:
            connection.close()
            raise self._unreachable(error) from None
        status = int(head.split(b" ", 2)[1])
        if status not in (101, 200):
            connection.close()
            raise _refusal(status, head[:200].decode("latin-1"), "attach")
        stream.settimeout(None)
        connection.sock = None  # the caller owns it now: closing the connection must not close it
        return stream

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        from http.client import HTTPConnection

        try:
            connection = HTTPConnection("engine", timeout=timeout)
            connection.sock = self._socket(timeout)
        except OSError as error:
            raise self._unreachable(error) from None
        return connection

    def _socket(self, timeout: float) -> socket.socket:
        if self.local:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.settimeout(timeout)
            try:
                stream.connect(self._url.path)
            except BaseException:
                stream.close()
                raise
            return stream
        secure = self._url.scheme == "https" or bool(os.environ.get("DOCKER_TLS_VERIFY"))
        host, port = self._url.hostname or "localhost", self._url.port or (2376 if secure else 2375)
        stream = socket.create_connection((host, port), timeout)
        return _secured(stream, host) if secure else stream

    def _unreachable(self, error: Exception) -> ProviderUnavailable:
        hints = list(_FIX)
        if isinstance(error, PermissionError):
            hints = ["give your user access: sudo usermod -aG docker $USER, then log in again"]
        return ProviderUnavailable(
            f"the engine at {self.address} does not answer: {error}", op="probe", fix_hints=hints
        )


def _usual_sockets(env: Mapping[str, str]) -> Iterator[Path]:
    runtime = env.get("XDG_RUNTIME_DIR")
    yield Path("/var/run/docker.sock")
    if runtime:
        yield Path(runtime, "docker.sock")
        yield Path(runtime, "podman/podman.sock")
    yield Path("/run/podman/podman.sock")


def _secured(stream: socket.socket, host: str) -> socket.socket:
    folder = Path(os.environ.get("DOCKER_CERT_PATH", "~/.docker")).expanduser()
    from ssl import create_default_context

    context = create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
    return context.wrap_socket(stream, server_hostname=host)


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"/{API}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")


def _body(body: Any) -> tuple[bytes | BinaryIO | None, dict[str, str]]:
    if isinstance(body, bytes | io.IOBase):
        length = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
        return cast(bytes | BinaryIO, body), {"Content-Type": "application/x-tar", "Content-Length": str(length)}
    return None if body is None else msgspec.json.encode(body), {"Content-Type": "application/json"}


def _decoded(text: bytes, op: str) -> Any:
    """Decode a response. For a stream of documents, as from a build, return None, or raise the error that it states."""
    try:
        return msgspec.json.decode(text) if text.strip() else None
    except ValueError:
        pass
    for line in reversed(text.splitlines()):
        try:
            stated = msgspec.json.decode(line).get("error")
        except (ValueError, AttributeError):
            continue
        if isinstance(stated, str) and stated:
            raise _refusal(200, stated[:2000], op)
    return None


def _refusal(status: int, message: str, op: str) -> EngineRefused:
    return EngineRefused(f"the engine refused to {op}: {message}", op=op, details={"status": status})


def _message(text: bytes) -> str:
    try:
        return str(msgspec.json.decode(text)["message"])[:2000]
    except (ValueError, KeyError, TypeError):
        return text[:500].decode("utf-8", "replace").strip()
