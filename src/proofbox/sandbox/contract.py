"""The types of the sandbox package and the contract that every provider implements.

A *provider* is a way to isolate. It starts a *box*: one isolated environment with a box agent inside, reached over a
byte stream. A `Policy` holds everything that a caller can request of a box. A policy that the provider can't enforce on
this machine is refused before the provider is called (`enforcement.py`). `conformance/` measures what each provider
really enforces, with the same checks for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from proofbox.core.allowlist import Network as Network
from proofbox.errors import StartFailed
from proofbox.sandbox import DEFAULT_TTL

if TYPE_CHECKING:
    import socket

Access = Literal["rw", "ro", "overlay"]


class Isolation(Enum):
    """How a command is separated from the host, weakest first."""

    NONE = "none"
    NAMESPACE = "namespace"
    CONTAINER = "container"
    SANDBOXED_KERNEL = "sandboxed-kernel"
    VM = "vm"


class Mount(msgspec.Struct, frozen=True):
    """A host directory or file that appears in the box, read-only by default.

    For example:

        proofbox.Mount(Path("/srv/data"), "/data")

    A mount of the project itself sets the project's path in the box, which is also the initial working directory.
    """

    host: Path
    guest: str
    writable: bool = False


class Door(msgspec.Struct, frozen=True):
    """A way out of a box without a network: a port on the box's loopback that leads to a unix socket on the host.

    The process that listens on the socket decides what a connection may do. The socket needs mode 0666, since the box
    agent runs under a different uid; the permissions of its directory keep other users away.
    """

    port: int
    """On the box's own loopback, 1024 or above."""
    socket: Path
    """A unix socket on the host, where a process of the caller listens."""


class Layers(msgspec.Struct, frozen=True):
    """Host directories stacked in place of the project's directory; the first is on top."""

    lower: tuple[Path, ...]
    """Read-only."""
    upper: Path
    """Receives every change: files, and whiteouts for deleted files."""
    work: Path
    """An empty directory on the same file system as `upper`, for the kernel."""


class Policy(msgspec.Struct, frozen=True):
    """What the caller requests of a box. None means the provider's default; `Box.policy` then states the value."""

    network: Network | None = None
    access: Access | None = None
    disk_mb: int | None = None
    memory_mb: int | None = None
    cpus: float | None = None
    pids: int | None = None
    mounts: tuple[Mount, ...] = ()
    image: str | None = None
    """For providers that run images; the others refuse it."""
    allow: tuple[str, ...] = ()
    """With network `allow`: the hosts that can be reached, as rules of `allowlist.py`."""
    runtime: str | None = None
    """The engine's runtime for the container, such as `runsc` for gVisor."""
    doors: tuple[Door, ...] = ()
    hidden: tuple[str, ...] = ()
    """Paths in the project, relative to its root, that can't be opened in the box. They must exist when it starts."""
    frozen: tuple[str, ...] = ()
    """Paths in the project that are read-only in the box, with everything below. They must exist when it starts."""
    layers: Layers | None = None
    """With access `overlay`: the directories that form the project in this box, instead of the project's directory."""


class Diagnostic(msgspec.Struct, frozen=True):
    """Whether a provider works here, and if not, why and how to fix it."""

    available: bool
    isolation: Isolation
    reason: str = ""
    fix_hints: tuple[str, ...] = ()


class Enforcement(msgspec.Struct, frozen=True):
    """What a provider enforces on this machine. Conformance checks read this before they test a box."""

    network_none: bool = False
    network_allow: bool = False
    filesystem: bool = False
    access_ro: bool = False
    access_overlay: bool = False
    layers: bool = False
    """Can stack host directories in place of the project."""
    disk: bool = False
    """Can limit how much is written to a throw-away overlay."""
    mounts: bool = False
    """Can mount other directories in the box."""
    hidden: bool = False
    """Can hide or freeze parts of the project."""
    images: bool = False
    """Can run an image."""
    runtimes: bool = False
    """Can run a container with another runtime of the engine."""
    memory: bool = False
    cpus: bool = False
    pids: bool = False
    detached: bool = True
    own_streams: bool = True
    """Commands can reopen their streams by path, as in `/dev/stdout`."""
    agent_hidden: bool = True
    """Commands can't inspect the box agent at all, not even its harmless parts."""
    memory_kill: Literal["command", "box"] = "command"
    """What is killed at the memory limit: the command that reached it, or the whole box."""
    isolation: Isolation = Isolation.NONE
    kill_tree: Literal["sure", "fail-closed", "best-effort"] = "best-effort"
    gaps: Mapping[str, str] = {}
    """By the name of a policy or guarantee that is not enforced: the reason."""


class Forward(msgspec.Struct, frozen=True):
    """A port on the box's own loopback that leads to a unix socket outside."""

    port: int
    socket: str
    """Its file name in `BoxSpec.sockets`."""


class BoxSpec(msgspec.Struct, frozen=True):
    """A box to start: resolved paths, a checked policy, and its lifetime.

    Without `listen` the box is bound to one stream and ends with it. With `listen` (a directory for its socket) any
    number of clients can connect, and the box ends after `ttl` seconds without a client.
    """

    label: str
    project: Path
    policy: Policy
    listen: Path | None = None
    ttl: float = DEFAULT_TTL
    log: Path | None = None
    forwards: tuple[Forward, ...] = ()
    sockets: Path | None = None
    """The directory that holds the sockets of `forwards`, mounted read-only."""
    home: Path | None = None
    """A prepared home directory for the commands: covered by a throw-away layer, unless `preparing`."""
    preparing: bool = False
    """The result of this box is kept (`provisioning.py`), so more of its file system is writable."""
    template: bool = False
    """Whether a virtual machine is cloned from a template instead of booted. Other providers ignore it."""


class BoxMount(msgspec.Struct, frozen=True):
    """One mount of a box."""

    source: Path | None
    """None for an empty directory."""
    place: str
    writable: bool
    cover: bool = False
    """Covers a part of another mount, so that the place exists."""
    loose: bool = False
    """The source is in a directory that boxes can write to: another box could replace it while this one starts."""


class CheckedSpec(BoxSpec, frozen=True, kw_only=True):
    """A box that its provider can enforce. Only `enforcement.start_box` makes one.

    The network and the access of its policy are set.
    """

    placed: tuple[BoxMount, ...]
    """Every mount of the box, in the order in which they must be made, including the covers of hidden parts and of
    proofbox's own files. Empty if the provider does not isolate the file system."""


class Box(Protocol):
    """A started box. The stream is connected; the agent's greeting may not have arrived yet."""

    isolation: Isolation
    policy: Policy
    """The policy in force, with the provider's defaults filled in."""
    project: str
    """The project's path in the box."""
    environment: Mapping[str, str]
    """The base environment of every command."""
    places: tuple[tuple[Path, str], ...]
    """Host paths that are visible in the box, with their paths in the box. The first match counts."""
    memory_group: Path | None
    """The control group that counts kills at the memory limit, if any."""
    stream: socket.socket | None
    """The stream of a stream-bound box; None if the box listens."""

    @property
    def holder(self) -> str:
        """The leader of the box's process group, by `process_name`; empty if a container engine runs the box."""

    def stderr(self) -> str:
        """The stderr of the provider's own programs, which explains why a box died."""

    def release(self) -> None:
        """Leave a listening box running when this process ends."""

    def kill(self) -> None:
        """Kill everything in the box without its agent, which does not answer. `destroy` must still be called."""

    def destroy(self) -> None:
        """Kill the box and everything in it. Idempotent. Returns when nothing of it is left."""


def stream_of(box: Box) -> socket.socket:
    """Return the stream of a box that was started without `listen`."""
    if box.stream is None:
        raise StartFailed("the provider started a box without a stream", op="start")
    return box.stream


class Provider(Protocol):
    """A way to isolate. Implementations keep no state except facts about this machine."""

    name: str
    isolation: Isolation
    systems: frozenset[str]
    """The operating systems it supports, in the spelling of `uname -s`."""

    def identity(self) -> str:
        """Identify the program or socket behind this provider, so that a trial is repeated when it changes.

        Raises `ProviderUnavailable` when it is not installed.
        """

    def enforcement(self, policy: Policy | None = None) -> Enforcement:
        """Return what can be enforced here in a box with this policy (its runtime may matter).

        Cheap: it inspects the machine and starts nothing.
        """

    def start(self, spec: CheckedSpec) -> Box:
        """Start a box, or raise `PolicyRefused`, `ProviderUnavailable` or `StartFailed` and leave nothing behind.

        Called only by `enforcement.start_box`, which has refused what `enforcement` does not claim.
        """

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        """Derive from the stderr of its programs why a box did not start: a reason and hints."""


class ResourceUsage(msgspec.Struct, frozen=True):
    """The resources a command used, as counted by the kernel for it and the children it waited for."""

    cpu_ms: float
    max_rss_kb: int
    oom_killed: bool = False


class Truncated(msgspec.Struct, frozen=True):
    """The streams that exceeded their cap; only their head and tail were kept."""

    stdout: bool = False
    stderr: bool = False


class Output(msgspec.Struct, frozen=True):
    """One piece of a command's output, in the order received."""

    stream: Literal["stdout", "stderr"]
    data: bytes
    at_ms: float
    """Milliseconds since the start of the command, by the clock in the box."""


class ExecResult(msgspec.Struct, frozen=True):
    """The outcome of one command. A command that ran has a result, however it ended."""

    exit_code: int
    """The command's exit code; as in a shell, 128 + n if signal n ended it, 124 if it timed out."""
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
    """A killed process of the command hangs in the kernel and could not be ended."""
    background: bool = False
    """The command left background processes that keep its output open."""

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


class ProviderSelection(msgspec.Struct, frozen=True):
    """The provider that would be used, and the diagnostics of the others."""

    provider: str
    isolation: Isolation
    was_fallback: bool
    fallback_from: str | None
    diagnostics: Mapping[str, Diagnostic]


class Event(msgspec.Struct, frozen=True):
    """A progress event, passed to `on_event`."""

    kind: Literal["provider", "session", "exec", "network", "provision"]
    phase: Literal["selected", "rejected", "starting", "started", "finished", "failed", "stopped", "allowed", "denied"]
    name: str
    """The provider's name, or the session's id."""
    detail: Mapping[str, object] = {}


class RunningCommand(Protocol):
    """A command that is running, passed to `on_start`."""

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Does nothing after the command has ended."""


OnEvent = Callable[[Event], None]
OnOutput = Callable[[Output], None]
OnStart = Callable[[RunningCommand], None]
