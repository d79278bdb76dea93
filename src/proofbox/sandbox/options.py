"""The options of a call, and how they become a policy. Everything that is wrong on every machine is refused here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast, get_args

from proofbox.config.settings import Settings
from proofbox.core.allowlist import parse_network
from proofbox.core.nearest import nearest
from proofbox.core.size import Size, megabytes
from proofbox.errors import RequestInvalid
from proofbox.sandbox.contract import Access, Door, Layers, Mount, Network, OnOutput, OnStart, Policy
from proofbox.sandbox.paths import parse_mount, resolve_mounts

if TYPE_CHECKING:
    from proofbox.sandbox.client.requests import Stdin

MIN_DOOR = 1024  # a box can't listen on a lower port
_MINIMUM = {
    "memory": 4,  # MB; below this not even a shell starts
    "cpus": 0.01,
    "pids": 2,  # the command and one child
    "disk": 1,  # MB
}
_FIELDS = {"memory": "memory_mb", "disk": "disk_mb"}

Option = TypeVar("Option")

# Parameters of the service's methods: if misspelt, they arrive among the options.
_PARAMETERS = ("provider", "detached", "ttl")


class PolicyOptions(TypedDict, total=False):
    """Options of a box; see `Policy`. They are named like the flags and the keys of `config.toml`.

    Mounts can be written as on the command line: `HOST:GUEST:ro`. `memory` and `disk` are in MB, or text with a unit:
    512, `"512m"`, `"2g"`.
    """

    network: str | None
    """`none`, `full`, or `allow:HOST[:PORT],…`."""
    access: Access | None
    disk: Size | None
    memory: Size | None
    cpus: float | None
    pids: int | None
    mounts: Sequence[str | Mount]
    image: str | None
    runtime: str | None
    doors: Sequence[Door]
    hidden: Sequence[str]
    frozen: Sequence[str]
    layers: Layers | None


class ExecOptions(TypedDict, total=False):
    """Options of one command.

    `cwd` is a directory in the project (default: the project itself). `env` is added to the box's environment. When
    `timeout` expires, `grace` seconds pass between SIGTERM and SIGKILL. `on_output` receives the output as it arrives.
    `limits` apply to each process, by the names in `requests.RLIMITS`. `on_start` receives the running command, to
    send signals to it; the call itself still waits until the command ends.
    """

    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    timeout: float | None
    grace: float
    stdin: Stdin
    max_output: int
    on_output: OnOutput | None
    limits: Mapping[str, int] | None
    on_start: OnStart | None


class RunOptions(ExecOptions, PolicyOptions, total=False):
    """Options of a command in a new box: those of the command and those of the box."""


BOX_OPTIONS = PolicyOptions.__optional_keys__
COMMAND_OPTIONS = ExecOptions.__optional_keys__


def split_options(options: RunOptions) -> tuple[PolicyOptions, ExecOptions]:
    """Separate the options of the box from those of the command. An unknown option is a TypeError."""
    refuse_unknown(options, BOX_OPTIONS | COMMAND_OPTIONS)
    named = dict(options)
    policy = {name: named.pop(name) for name in options if name in BOX_OPTIONS}
    return cast(PolicyOptions, policy), cast(ExecOptions, named)


def refuse_unknown(options: Mapping[str, object], known: frozenset[str]) -> None:
    """Raise TypeError for an unknown option: a misspelt limit must not be ignored."""
    for name in options:
        if name not in known:
            raise TypeError(f"unexpected option {name!r} ({_instead(name)})")


def _instead(name: str) -> str:
    if name in BOX_OPTIONS:
        return "this is an option of the box, set when the box starts; a command can't change it"
    if name in COMMAND_OPTIONS:
        return "this is an option of a command"
    return nearest(name, sorted({*BOX_OPTIONS, *COMMAND_OPTIONS, *_PARAMETERS}))


def make_policy(project: Path, options: PolicyOptions, settings: Settings) -> Policy:
    """Combine the options of a call with the settings, which apply where the call has no value. Mounts add up.

    Relative mount sources are resolved against the current directory in a call, and against the project in settings.
    Every policy is built and checked here, before any provider is tried.
    """
    refuse_unknown(options, BOX_OPTIONS)
    for name in ("mounts", "hidden", "frozen"):
        if isinstance(options.get(name), str | bytes):  # iterating over it would yield characters
            raise RequestInvalid(f"{name} must be a list, not a string", op="start", fix_hints=[f"write {name}=[…]"])
    network, allow = parse_network(_first(options.get("network"), settings.network))
    own = [parse_mount(each) if isinstance(each, str) else each for each in options.get("mounts") or ()]
    mounts = [*(parse_mount(each, project) for each in settings.mounts), *own]
    policy = Policy(
        network=network,
        allow=allow,
        access=_first(options.get("access"), settings.access),
        disk_mb=_megabytes(options.get("disk"), settings.disk, "disk"),
        memory_mb=_megabytes(options.get("memory"), settings.memory, "memory"),
        cpus=_first(options.get("cpus"), settings.cpus),
        pids=_first(options.get("pids"), settings.pids),
        mounts=resolve_mounts(project, mounts),
        image=_first(options.get("image"), settings.image),
        runtime=_first(options.get("runtime"), settings.runtime),
        doors=tuple(options.get("doors") or ()),
        hidden=tuple(options.get("hidden") or ()),
        frozen=tuple(options.get("frozen") or ()),
        layers=options.get("layers"),
    )
    _check_values(policy)
    return policy


def _megabytes(option: Size | None, default: Size | None, name: str) -> int | None:
    size = default if option is None else option
    return None if size is None else megabytes(size, name)


def _first(option: Option | None, default: Option | None) -> Option | None:
    return default if option is None else option  # 0 and "" are values, and are refused later


def _check_values(policy: Policy) -> None:
    """Refuse unknown words, meaningless numbers, and options that contradict each other.

    They are wrong on every machine, so they are checked once, before a provider is selected.
    """
    for name, word, known in (
        ("network", policy.network, get_args(Network)),
        ("access", policy.access, get_args(Access)),
    ):
        if word is not None and word not in known:  # an unknown word must not act as the most lenient one
            raise RequestInvalid(
                f"unknown {name} {word!r}", op="start", fix_hints=[f"choose one of: {', '.join(known)}"]
            )
    for name in _MINIMUM:
        check_limit(name, getattr(policy, _FIELDS.get(name, name)))
    if policy.doors and policy.network == "full":
        raise RequestInvalid(
            "a door is a port on the box's own loopback, but with network full the box uses the host's loopback",
            op="start",
            fix_hints=["use network none or allow:HOST,…"],
        )
    ports = [door.port for door in policy.doors]
    if len(set(ports)) < len(ports) or not all(MIN_DOOR <= port < 65536 for port in ports):
        raise RequestInvalid(
            f"doors at {', '.join(map(str, ports))}: ports must be distinct and from {MIN_DOOR} to 65535",
            op="start",
            fix_hints=[f"choose different ports from {MIN_DOOR} on"],
        )
    if policy.layers is not None and (policy.access != "overlay" or policy.disk_mb is not None):
        raise RequestInvalid(
            "layers need access overlay, and can't have a disk limit",
            op="start",
            fix_hints=["use access overlay, without a disk limit"],
        )
    if policy.disk_mb is not None and policy.access != "overlay":
        raise RequestInvalid(
            "a disk limit needs access overlay: the project's own directory has no quota",
            op="start",
            fix_hints=["add --access overlay"],
        )


def check_limit(name: str, value: float | None) -> None:
    """Refuse a limit that no box can work with. `name` is the option's name; sizes are in MB."""
    least = _MINIMUM[name]
    kind = (int, float) if name == "cpus" else int
    good = isinstance(value, kind) and not isinstance(value, bool) and least <= value < 2**40
    if value is not None and not good:
        unit = " MB" if name in _FIELDS else ""
        raise RequestInvalid(
            f"invalid {name} limit: {value}{unit}",
            op="start",
            fix_hints=[f"give {least}{unit} or more" + (", such as 512 or 2g" if unit else "")],
        )
