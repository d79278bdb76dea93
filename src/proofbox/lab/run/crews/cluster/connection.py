"""Connect to a Ray cluster: a private one on this machine, or an existing one. Both must authenticate their clients.

Ray runs whatever a client sends it, so a cluster without authentication gives every process that can reach it the
rights of its user. A private cluster listens only on the loopback interface, has no dashboard, and gets a new token.
This module changes environment variables that Ray reads when it is imported, so only the driver process may use it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from proofbox.config.engine import EngineSettings
from proofbox.core.interpreter import module_child
from proofbox.errors import EngineUnavailable
from proofbox.lab.run.crews.cluster.nodes import REACH_TIMEOUT

OBJECT_STORE = 200_000_000
"""Bytes of shared memory for the objects of a private cluster. Bundles are returned in pieces, so this is enough."""
PROBE_TIMEOUT = 30.0
REFUSED = 3
"""The exit code of the probe if the cluster requires a token."""
CONNECT_TIMEOUT = 120.0
"""Seconds to connect. Ray itself may wait forever for a head that dies in the meantime."""
NO_SPARE_WORKERS = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
"""Keep Ray from starting Python processes in advance. A run uses one per node, and each takes a second to start."""
TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def require_ray() -> None:
    """Raise `EngineUnavailable` if Ray is not installed."""
    if find_spec("ray") is None:
        hints = ["install it: pip install 'proofbox[ray]'", "run on this machine: --engine local"]
        raise EngineUnavailable("Ray is not installed", op="engine", fix_hints=hints)


@contextlib.contextmanager
def connected(engine: EngineSettings, place: Path, give_up: Callable[[EngineUnavailable], object]) -> Iterator[Any]:
    """Connect this process to the engine's cluster, and yield the module `ray`. `place` is for Ray's files.

    Ray opens its directories, with its sockets and logs, to all users of the machine, so only this user may have access
    to `place`.

    `give_up` is called in another thread if the cluster does not answer. It must end this process, because Ray's calls
    cannot be cancelled.

    Raises `EngineUnavailable` if there is no cluster at the address, it refuses the token, or it requires none.
    """
    require_ray()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(place), "RAY_AUTH_MODE": "token"}
    os.environ.setdefault("RAY_LOG_TO_STDERR", "0")
    address = engine.address
    if address is None:
        os.environ |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), **NO_SPARE_WORKERS}
    elif engine.unauthenticated and not _has_token():
        os.environ["RAY_AUTH_MODE"] = "disabled"
    elif not _has_token():
        raise EngineUnavailable(
            f"no token for the cluster at {address}",
            op="engine",
            fix_hints=["set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that contains it"],
        )
    if address is None or _is_loopback(address):
        # Otherwise Ray replaces a loopback address with that of a network interface.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if address is not None:
        _reach(address)
    if address is not None and not engine.unauthenticated:
        _refuse_open(address)
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        options |= {"address": "local", "_node_ip_address": "127.0.0.1", "_temp_dir": str(place / "r")}
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE, "num_cpus": os.cpu_count() or 1}
    else:
        options["address"] = address
        if os.environ["RAY_AUTH_MODE"] == "token":
            _check_token(ray, address)
    silent = _unreachable(address, f"it did not answer within {CONNECT_TIMEOUT:g} s")
    watchdog = threading.Timer(CONNECT_TIMEOUT, give_up, (silent,))
    watchdog.daemon = True
    watchdog.start()
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises many kinds of exceptions, even bare ones
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _unreachable(address, lines[0][:300]) from error
    finally:
        watchdog.cancel()
    try:
        yield ray
    finally:
        ray.shutdown()


def _unreachable(address: str | None, why: str) -> EngineUnavailable:
    if address is None:
        hints = ["run on this machine: --engine local"]
        return EngineUnavailable(f"a private cluster could not be started: {why}", op="engine", fix_hints=hints)
    hints = ["check the address and the token", "run on a node of the cluster: ray start --address HOST:PORT"]
    return EngineUnavailable(f"{address} could not be joined: {why}", op="engine", fix_hints=hints)


def _has_token() -> bool:
    return any(os.environ.get(name) for name in TOKEN_VARIABLES) or Path("~/.ray/auth_token").expanduser().exists()


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _reach(address: str) -> None:
    """Raise `EngineUnavailable` if the head accepts no connections. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_TIMEOUT).close()
    except (OSError, UnicodeError) as error:  # the latter for a name that can't be looked up
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error


def _refuse_open(address: str) -> None:
    """Raise `EngineUnavailable` unless the cluster refuses a client that has no token."""
    env = {name: value for name, value in os.environ.items() if name not in TOKEN_VARIABLES}
    child = module_child(__name__, address, env={**env, "RAY_AUTH_MODE": "disabled", "HOME": "/nonexistent"})
    try:
        done = subprocess.run(
            child.argv, cwd=child.cwd, env=child.env, capture_output=True, text=True, timeout=PROBE_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unreachable(address, f"it did not answer within {PROBE_TIMEOUT:g} s") from None
    if done.returncode == 0:
        raise EngineUnavailable(
            f"the cluster at {address} requires no token, so everyone who can reach it can run programs on it",
            op="engine",
            fix_hints=[
                "start its nodes with RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
                "if only you can reach it: unauthenticated = true in [engine] of your config.toml",
            ],
        )
    if done.returncode != REFUSED:  # whether it requires a token is unknown
        lines = done.stderr.strip().splitlines() or [f"the probe exited {done.returncode}"]
        raise _unreachable(address, lines[-1][:300])


def _check_token(ray: Any, address: str) -> None:
    """Raise `EngineUnavailable` if the cluster refuses the token. Ray itself would try for 20 s, and not tell why."""
    try:
        ray._raylet.GcsClient(address=address).get_all_node_info(timeout=10)
    except ray.exceptions.AuthenticationError:
        raise EngineUnavailable(
            f"the cluster at {address} refused the token",
            op="engine",
            fix_hints=["set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to the token that its nodes were started with"],
        ) from None
    except Exception:  # of many kinds; `ray.init` will report it
        pass


def main(argv: list[str]) -> None:
    """Ask the cluster for its nodes without a token; exit 0 if it answers, or `REFUSED` if it requires a token."""
    import ray

    try:
        ray._raylet.GcsClient(address=argv[0]).get_all_node_info(timeout=10)
    except ray.exceptions.AuthenticationError:
        sys.exit(REFUSED)
    except Exception as error:  # Ray raises many kinds
        sys.exit(str(error).strip() or type(error).__name__)


if __name__ == "__main__":
    main(sys.argv[1:])
