"""The nouns of the sandbox room, and the contract every provider keeps.

A *provider* is a way to isolate. It starts a *box*: one isolated environment with a box agent inside, reached over a
byte stream. Everything a caller may ask of a box is a `Policy`; what a provider can't enforce on this machine it
refuses before anything is started. Whether it keeps its word is measured by `conformance/`, the same checks for every
provider.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from proofbox.core.allowlist import Network as Network
from proofbox.errors import StartFailed

Access = Literal["rw", "ro", "overlay"]

DEFAULT_OUTPUT_CAP = 10 * 1024 * 1024
DEFAULT_TTL = 3600.0


class Isolation(Enum):
    """What stands between a command and the host, weakest first."""

    NONE = "none"
    NAMESPACE = "namespace"
    CONTAINER = "container"
    SANDBOXED_KERNEL = "sandboxed-kernel"
    VM = "vm"


class Mount(msgspec.Struct, frozen=True):
    """A host directory or file that appears in the box. Read-only unless said otherwise.

    One of the project itself says where in the box the project is to be: commands begin there.
    """

    host: Path
    guest: str
    writable: bool = False


class Door(msgspec.Struct, frozen=True):
    """The one way out of a box without a network: a port of its own loopback that leads to a unix socket of the host.

    Whoever listens there decides what comes of it. The socket needs mode 0666, since the box agent has a uid of its
    own; its directory keeps others away.
    """

    port: int
    """On the box's own loopback, from 1024 on."""
    socket: Path
    """A unix socket on the host; whoever listens there decides."""


class Layers(msgspec.Struct, frozen=True):
    """Host directories that a box sees laid over one another in place of its project; the first is on top."""

    lower: tuple[Path, ...]
    """Never written."""
    upper: Path
    """Where every change goes: files, whiteouts for what was deleted."""
    work: Path
    """An empty directory beside `upper`, for the kernel."""


class Policy(msgspec.Struct, frozen=True):
    """What the caller asks of a box. None means the provider's own default, which `Box.policy` then states."""

    network: Network | None = None
    access: Access | None = None
    disk_mb: int | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    mounts: tuple[Mount, ...] = ()
    image: str | None = None
    """For providers that run images; others refuse one."""
    allow: tuple[str, ...] = ()
    """With network `allow`: the hosts that can be reached, as rules of `allowlist.py`."""
    runtime: str | None = None
    """The engine's runtime for the container, such as `runsc` for gVisor."""
    doors: tuple[Door, ...] = ()
    hidden: tuple[str, ...] = ()
    """Paths of the project, from its root, that can't be opened in the box. They must exist when it starts."""
    frozen: tuple[str, ...] = ()
    """Paths of the project that can't be changed in the box, with all below. They must exist when it starts."""
    layers: Layers | None = None
    """With access `overlay`: what the project is made of in this box, instead of its own directory."""


class Diagnostic(msgspec.Struct, frozen=True):
    """Whether a provider works here, and if not, why and what to do about it."""

    available: bool
    isolation: Isolation
    reason: str = ""
    fix_hints: tuple[str, ...] = ()


class Enforcement(msgspec.Struct, frozen=True):
    """What a provider enforces on this machine. A conformance check asks this before it asks the box."""

    network_none: bool = False
    network_allow: bool = False
    filesystem: bool = False
    access_ro: bool = False
    access_overlay: bool = False
    layers: bool = False
    """It can lay host directories over one another in place of the project."""
    disk: bool = False
    """It can limit what is written to a throw-away overlay."""
    mounts: bool = False
    """It can show other directories in the box."""
    hidden: bool = False
    """Parts of the project hidden or frozen."""
    images: bool = False
    """It can run an image."""
    memory: bool = False
    cpus: bool = False
    pids: bool = False
    detached: bool = True
    own_streams: bool = True
    """A command may open its streams again by name."""
    agent_hidden: bool = True
    """Nothing of the box agent can be looked at from inside, not even what is harmless."""
    memory_kill: Literal["command", "box"] = "command"
    """What ends at the memory limit: the command that reached it, or the whole box."""
    isolation: Isolation = Isolation.NONE
    kill_tree: Literal["sure", "fail-closed", "best-effort"] = "best-effort"
    gaps: Mapping[str, str] = {}
    """Of each policy or guarantee that is not enforced, by its name, why not."""


class Forward(msgspec.Struct, frozen=True):
    """A port on the box's own loopback that leads to a unix socket outside."""

    port: int
    socket: str
    """Its name in `BoxSpec.sockets`."""


class BoxSpec(msgspec.Struct, frozen=True):
    """One box to be started: resolved paths, a checked policy, and how long it lives.

    Without `listen` the box is bound to one stream and ends with it. With it (a directory for its socket) any
    number of clients may come and go, and the box ends after `ttl` seconds without one.
    """

    label: str
    project: Path
    policy: Policy
    listen: Path | None = None
    ttl: float = DEFAULT_TTL
    log: Path | None = None
    forwards: tuple[Forward, ...] = ()
    sockets: Path | None = None
    """The directory with the sockets that `forwards` lead to, to be mounted read-only."""
    home: Path | None = None
    """A prepared directory to be the commands' home: covered by a throw-away layer, unless `preparing`."""
    preparing: bool = False
    """What is done in this box is meant to be kept (`provisioning.py`): more of it can be written."""


class Box(Protocol):
    """A box that was started. The stream is connected; the agent's greeting has not been waited for."""

    isolation: Isolation
    policy: Policy
    """What is in force, with the provider's defaults filled in."""
    project: str
    """The project's path inside."""
    environment: Mapping[str, str]
    """What a command's environment starts from."""
    places: tuple[tuple[Path, str], ...]
    """What of the host is inside, and where: host path, path inside. The first that fits is meant."""
    memory_group: Path | None
    """The control group that counts kills for the memory limit, where there is one."""
    stream: socket.socket | None
    """The one stream of a stream-bound box; None where the box listens."""

    @property
    def holder(self) -> str:
        """The leader of the process group that holds it, by `process_name`; empty for one that an engine holds."""

    def account(self) -> str:
        """What the provider's own programs said on stderr: the diagnosis when a box dies."""

    def release(self) -> None:
        """Let a box that listens go on without us."""

    def kill(self) -> None:
        """End everything in it without asking its agent, which does not answer. `destroy` is still to come."""

    def destroy(self) -> None:
        """End it and everything in it, now. May be repeated. Returns when nothing of it is left."""


def stream_of(box: Box) -> socket.socket:
    """The stream of a box that has one: every box that was started without `listen`."""
    if box.stream is None:
        raise StartFailed("the provider gave a box without a stream", op="start")
    return box.stream


class Provider(Protocol):
    """A way to isolate. Implementations hold no state but what they learned about this machine."""

    name: str
    isolation: Isolation
    systems: frozenset[str]
    """Where it could run at all, as `platform.system()` says it."""

    def identity(self) -> str:
        """What a successful trial is valid for: the program or socket behind this provider, as it is now.

        Raises `ProviderUnavailable` when it isn't there at all.
        """

    def enforcement(self, policy: Policy | None = None) -> Enforcement:
        """What can be enforced here, in boxes with such a policy (its runtime may matter).

        Cheap: it looks, and starts nothing.
        """

    def start(self, spec: BoxSpec) -> Box:
        """Start a box, or raise `PolicyRefused`, `ProviderUnavailable` or `StartFailed` and leave nothing behind."""

    def explain(self, account: str) -> tuple[str, list[str]]:
        """Why a box did not come up, from what its programs said: a reason and fixes."""


class ResourceUsage(msgspec.Struct, frozen=True):
    """What a command used, as the kernel counted for it and the children it waited for."""

    cpu_ms: float
    max_rss_kb: int
    oom_killed: bool = False


class Truncated(msgspec.Struct, frozen=True):
    """Which stream was larger than its cap, so that only its head and tail were kept."""

    stdout: bool = False
    stderr: bool = False


class Output(msgspec.Struct, frozen=True):
    """One piece of a command's output, as it came."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    at_ms: float
    """Milliseconds since the command's start, by the clock inside the box."""


class ExecResult(msgspec.Struct, frozen=True):
    """What one command did. It is a result when the command ran at all, however it ended."""

    exit_code: int
    """The command's own; 128 + n when signal n ended it, 124 when it timed out: what a shell would say."""
    stdout_bytes: bytes
    stderr_bytes: bytes
    provider: str
    isolation: Isolation
    policy: Policy
    timed_out: bool
    signal: int | None
    truncated: Truncated
    duration_ms: float
    usage: ResourceUsage
    diagnostics: Mapping[str, Diagnostic]
    survivors: bool = False
    """Something of a killed command's tree hangs in the kernel and could not be ended."""
    background: bool = False
    """The command left processes behind that hold its output open."""

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


class ProbeResult(msgspec.Struct, frozen=True):
    """Which provider would be used, and what was found out about the others."""

    provider: str
    isolation: Isolation
    was_fallback: bool
    fallback_from: str | None
    diagnostics: Mapping[str, Diagnostic]


class Event(msgspec.Struct, frozen=True):
    """Something that happened on the way, for whoever watches: `on_event`."""

    kind: Literal["provider", "session", "exec", "network", "provision"]
    phase: Literal["selected", "rejected", "starting", "started", "finished", "failed", "stopped", "allowed", "denied"]
    name: str
    """The provider's name, or the session's id."""
    detail: Mapping[str, object] = {}


class RunningCommand(Protocol):
    """A command under way, for who wants to reach it."""

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Once it has ended, nothing happens."""


OnEvent = Callable[[Event], None]
OnOutput = Callable[[Output], None]
OnStart = Callable[[RunningCommand], None]
