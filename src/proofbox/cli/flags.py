"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from proofbox.cli.parameters import Parameter
from proofbox.errors import UsageError

if TYPE_CHECKING:  # not loaded for `--help`
    from proofbox.sandbox.options import PolicyOptions


def place(text: str) -> Path:
    """Parse an output directory. An empty string (an unset variable) is an error, not the current directory."""
    if not text:
        raise ValueError("the path is empty")
    return Path(text)


def size(text: str) -> str | int:
    """Parse a number of MB, or keep text with a unit for the box's policy to check."""
    try:
        return int(text)
    except ValueError:
        return text


def seconds(text: str) -> float:
    """Parse a number of seconds. A wait for NaN or infinity would never end."""
    number = float(text)
    if not 0 <= number < float("inf"):
        raise ValueError("expected a number of seconds, at least 0")
    return number


LockMode = Annotated[
    Literal["fail", "wait"],
    Parameter(name="--lock-mode", help="Fail at once, or wait, if another process writes to the output directory."),
]
LockTimeout = Annotated[
    float,
    Parameter(name="--lock-timeout", converter=seconds, help="With --lock-mode wait, the maximum seconds to wait."),
]
Engine = Annotated[
    str | None,
    Parameter(
        name="--engine",
        help="Where attempts run: local, ray (a private cluster here), or ray:HOST:PORT. Default: the configured one.",
    ),
]
OtherEngine = Annotated[
    str | None,
    Parameter(
        name="--engine",
        help="Where attempts run: local, ray (a private cluster here), or ray:HOST:PORT. Default: the one it was "
        "started with.",
    ),
]
PerNode = Annotated[
    int | None, Parameter(name="--per-node", help="With ray, maximum concurrent attempts on a node. Default: its CPUs.")
]
Resource = Annotated[
    tuple[str, ...],
    Parameter(
        name="--resource", help="With ray, NAME=AMOUNT to reserve per attempt: cpus, memory, gpus or yours. Repeatable."
    ),
]
Json = Annotated[bool, Parameter(name="--json", help="Print one JSON document on stdout.")]
Html = Annotated[
    Path | None,
    Parameter(name="--html", help="Also write it as one HTML file, with its evidence; see `proofbox view --export`."),
]
Provider = Annotated[
    str | None,
    Parameter(
        name="--provider", help="auto, bubblewrap, docker, vm, off, apple-vm. Default: the configured one, or auto."
    ),
]
Project = Annotated[Path, Parameter(name="--project", help="The project directory that the box works on.")]
Cwd = Annotated[str | None, Parameter(name="--cwd", help="The working directory, inside the project.")]
Env = Annotated[
    tuple[str, ...],
    Parameter(name="--env", help="K=V for the command; K alone passes your own value. Repeatable."),
]
Timeout = Annotated[
    float | None, Parameter(name="--timeout", help="Kill the command and its children after this many seconds.")
]
Stdin = Annotated[
    str | None,
    Parameter(
        name="--stdin", allow_leading_hyphen=True, help="A file to use as stdin, or - for your own. Default: empty."
    ),
]
MaxOutput = Annotated[
    int, Parameter(name="--max-output", help="Maximum bytes kept per stream: half from its start, half from its end.")
]
Shell = Annotated[str | None, Parameter(name="--shell", help="Run this string with sh -c.")]
Raw = Annotated[bool, Parameter(name="--raw", help="Do not escape control characters in the output.")]
Network = Annotated[
    str | None, Parameter(name="--network", help="none, full or allow:HOST[:PORT],… Default: none in a box.")
]
Access = Annotated[
    Literal["rw", "ro", "overlay"] | None,
    Parameter(name="--access", help="Access to the project: rw, ro, or a temporary overlay. Default: rw."),
]
Mount = Annotated[
    tuple[str, ...],
    Parameter(name="--mount", help="HOST:GUEST[:ro|rw], read-only by default. Repeatable."),
]
Image = Annotated[
    str | None,
    Parameter(
        name="--image",
        help="The image whose files are the root: one of `proofbox images list`, or for docker, any of the engine.",
    ),
]
Runtime = Annotated[
    str | None, Parameter(name="--runtime", help="The container engine's runtime, e.g. runsc for gVisor.")
]
Memory = Annotated[
    str | int | None,
    Parameter(name="--memory", converter=size, help="Memory limit of the whole box: MB, or with a unit: 512m, 2g."),
]
Cpus = Annotated[float | None, Parameter(name="--cpus", help="CPU limit of the whole box, in cores: 0.5, 2.")]
Pids = Annotated[int | None, Parameter(name="--pids", help="Maximum number of processes and threads in the box.")]
Disk = Annotated[
    str | int | None,
    Parameter(name="--disk", converter=size, help="Size limit of the overlay: MB, or with a unit: 512m, 2g."),
]


class BoxFlags(msgspec.Struct, frozen=True):
    """The policy flags shared by all commands that start a box."""

    network: Network = None
    access: Access = None
    mount: Mount = ()
    memory: Memory = None
    cpus: Cpus = None
    pids: Pids = None
    disk: Disk = None
    image: Image = None
    runtime: Runtime = None

    def options(self) -> PolicyOptions:
        return {
            "network": self.network,
            "access": self.access,
            "mounts": self.mount,
            "memory": self.memory,
            "cpus": self.cpus,
            "pids": self.pids,
            "disk": self.disk,
            "image": self.image,
            "runtime": self.runtime,
        }


NO_BOX_FLAGS = BoxFlags()
Box = Annotated[BoxFlags, Parameter(name="*")]

Strategies = Annotated[
    str | None,
    Parameter(
        name=["--strategies", "--strategy"],
        help="Agents to try, in order; a ! marks one that must be usable: codex_app_server!,scripted.",
    ),
]
Model = Annotated[str | None, Parameter(name="--model", help="The model's name, for agents that use one.")]
BaseUrl = Annotated[
    str | None, Parameter(name="--base-url", help="The model's endpoint, which is called from outside the box.")
]
ApiKeyEnv = Annotated[
    str | None,
    Parameter(
        name="--api-key-env", help="The environment variable that holds the API key; the key stays outside the box."
    ),
]

PublicKey = Annotated[
    Path | None, Parameter(name="--key", help="Public key file; the packet must be signed with its private key.")
]

Settings = Annotated[
    tuple[str, ...], Parameter(name="--set", help="NAME=VALUE: a setting of the runtime; VALUE is TOML. Repeatable.")
]


def runtime_settings(words: tuple[str, ...]) -> dict[str, Any]:
    """Parse the values of --set."""
    import tomllib

    from proofbox.core.parsing.toml import parse_toml

    found: dict[str, Any] = {}
    for each in words:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UsageError(f"--set takes NAME=VALUE, not {each[:60]!r}", op="runtime", fix_hints=["--set retries=2"])
        try:
            found[name] = parse_toml(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = value  # not TOML: a bare word is a string
    return found
