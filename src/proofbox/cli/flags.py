"""Flags that several commands share, said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter, Token

if TYPE_CHECKING:  # what `--help` does not need is not loaded for it
    from proofbox.sandbox.box_handle import PolicyOptions


def place(_: object, tokens: Sequence[Token]) -> Path:
    """A directory that is written to: an empty word, as of a variable that is not set, is none, and not this one."""
    if not tokens[0].value:
        raise ValueError("it is empty")
    return Path(tokens[0].value)


def size(_: object, tokens: Sequence[Token]) -> str | int:
    """A number of MB, or text with a unit, which the box's policy checks."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        return text


Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document on stdout.")]
Provider = Annotated[
    str | None,
    Parameter(name="--provider", help="auto, bubblewrap, docker, off, apple-vm. Default: as configured, else auto."),
]
Project = Annotated[Path, Parameter(name="--project", help="The directory the box works on.")]
Cwd = Annotated[str | None, Parameter(name="--cwd", help="Where to run: a directory of the project.")]
Env = Annotated[
    tuple[str, ...],
    Parameter(name="--env", negative="", help="K=V for the command; K alone takes your own value. May be repeated."),
]
Timeout = Annotated[
    float | None, Parameter(name="--timeout", help="Seconds until the command and its children are killed.")
]
Stdin = Annotated[
    str | None,
    Parameter(
        name="--stdin", allow_leading_hyphen=True, help="A file to read, or - for your own stdin. Default: none."
    ),
]
MaxOutput = Annotated[
    int, Parameter(name="--max-output", help="Bytes kept of each stream: the first and the last half of them.")
]
Shell = Annotated[str | None, Parameter(name="--shell", help="Run this string with sh -c.")]
Raw = Annotated[
    bool, Parameter(name="--raw", negative="", help="Let the command's control characters through to your terminal.")
]
Network = Annotated[
    str | None, Parameter(name="--network", help="none, full or allow:HOST[:PORT],… Default: none in a box.")
]
Access = Annotated[
    Literal["rw", "ro", "overlay"] | None,
    Parameter(name="--access", help="To the project: rw, ro, or a throw-away overlay. Default: rw."),
]
Mount = Annotated[
    tuple[str, ...],
    Parameter(name="--mount", negative="", help="HOST:GUEST[:ro|rw], read-only unless it says rw. May be repeated."),
]
Image = Annotated[str | None, Parameter(name="--image", help="The image to run, for docker.")]
Runtime = Annotated[str | None, Parameter(name="--runtime", help="The engine's runtime: runsc for gVisor.")]
Memory = Annotated[
    str | int | None,
    Parameter(name="--memory", converter=size, help="Limit of the whole box: MB, or with a unit: 512m, 2g."),
]
Cpus = Annotated[float | None, Parameter(name="--cpus", help="Limit of the whole box, in cores: 0.5, 2.")]
Pids = Annotated[int | None, Parameter(name="--pids", help="Most processes and threads in the box.")]
Disk = Annotated[
    str | int | None,
    Parameter(name="--disk", converter=size, help="The most written to the overlay: MB, or with a unit: 512m, 2g."),
]


@dataclass(frozen=True)
class BoxFlags:
    """What may be asked of a box: the same flags for every command that starts one."""

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


ASKED_OF_THE_BOX = BoxFlags()
Box = Annotated[BoxFlags, Parameter(name="*")]

Strategies = Annotated[
    str | None,
    Parameter(
        name=["--strategies", "--strategy"],
        help="Agents to try in this order, a ! after one that must be usable: codex_app_server!,scripted.",
    ),
]
Model = Annotated[str | None, Parameter(name="--model", help="The model, for agents that have one.")]
BaseUrl = Annotated[
    str | None, Parameter(name="--base-url", help="The model's endpoint. It is reached from outside the box.")
]
ApiKeyEnv = Annotated[
    str | None, Parameter(name="--api-key-env", help="The variable with its key, which stays outside the box.")
]

PublicKey = Annotated[
    Path | None, Parameter(name="--key", help="The file of the public key that must have signed the packet.")
]
