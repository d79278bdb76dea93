"""`BoxHandle`: the information that a client needs to run commands in a box, also in a box that another process
started. Also the options of a call, and how they become a policy."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

import msgspec

from proofbox.config.settings import Settings
from proofbox.core.allowlist import parse_network
from proofbox.core.nearest import nearest
from proofbox.core.size import Size, megabytes
from proofbox.errors import CommandNotFound, PathRefused, ProofboxError, RequestInvalid
from proofbox.sandbox.client.calls import ActiveCall
from proofbox.sandbox.client.requests import CommandRequest, Stdin, encode_env, make_request
from proofbox.sandbox.contract import (
    DEFAULT_OUTPUT_CAP,
    Access,
    Box,
    Diagnostic,
    Door,
    ExecResult,
    Isolation,
    Layers,
    Mount,
    OnOutput,
    OnStart,
    Policy,
)
from proofbox.sandbox.enforcement import check_values
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.binaries import find_program
from proofbox.sandbox.paths import parse_mount, resolve_cwd, resolve_mounts

if TYPE_CHECKING:  # `selection` imports every provider
    from proofbox.sandbox.selection import Choice

Option = TypeVar("Option")

# Parameters of the service's methods: if misspelt, they arrive among the options.
_PARAMETERS = ("provider", "detached", "ttl")


class PolicyOptions(TypedDict, total=False):
    """Options of a box; see `Policy`. The names are those of the flags and of `config.toml`.

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


class BoxHandle(msgspec.Struct, frozen=True):
    provider: str
    isolation: Isolation
    policy: Policy
    project: Path
    guest_project: str
    """The project's path in the box, and the default working directory of commands."""
    environment: Mapping[str, str]
    """The base environment of every command."""
    places: tuple[tuple[Path, str], ...]
    """Host paths that are visible in the box, with their paths in the box. The first match counts."""
    memory_group: Path | None = None
    """The control group that counts kills at the memory limit; null if there is no such group."""
    diagnostics: Mapping[str, Diagnostic] = {}
    forwards: tuple[str, ...] = ()
    """Names of the client's variables that every command gets, with their values at that time."""

    @classmethod
    def of(
        cls, box: Box, choice: Choice, project: Path, forwards: tuple[str, ...], more: Mapping[str, str]
    ) -> BoxHandle:
        # A mount of the project itself sets the project's path in the box.
        mounted_at = [mount.guest for mount in box.policy.mounts if mount.host == project]
        return cls(
            provider=choice.provider.name,
            isolation=box.isolation,
            policy=box.policy,
            project=project,
            guest_project=mounted_at[0] if mounted_at else box.project,
            environment={**box.environment, **more},
            places=(*((project, guest) for guest in mounted_at[:1]), *box.places),
            memory_group=box.memory_group,
            diagnostics=choice.diagnostics,
            forwards=forwards,
        )

    def request(
        self,
        argv: Sequence[str | bytes],
        options: ExecOptions,
        environment: Mapping[bytes, bytes],
        pty: tuple[int, int] | None = None,
    ) -> CommandRequest:
        """Build the request for a command; `environment` is `encode_env(inside.environment)`."""
        refuse_unknown(options, COMMAND_OPTIONS)
        extra = {name: os.environ[name] for name in self.forwards if name in os.environ} | dict(
            options.get("env") or {}
        )
        return make_request(
            argv,
            cwd=self._guest_cwd(options.get("cwd")),
            env={**environment, **encode_env(extra)} if extra else environment,
            stdin=options.get("stdin"),
            timeout=options.get("timeout"),
            grace=options.get("grace", 0.0),
            max_output=options.get("max_output", DEFAULT_OUTPUT_CAP),
            pty=pty,
            streamed=options.get("on_output") is not None,
            limits=options.get("limits"),
        )

    def oom_kills(self) -> int:
        return cgroups.oom_kills(self.memory_group)

    def result(self, call: ActiveCall, oom_kills_before: int) -> ExecResult:
        try:
            return call.result(
                provider=self.provider,
                isolation=self.isolation,
                policy=self.policy,
                diagnostics=self.diagnostics,
                oom_killed=self.oom_kills() > oom_kills_before,
            )
        except CommandNotFound as error:
            raise self._with_host_hint(error) from None

    def annotate(self, error: ProofboxError) -> ProofboxError:
        """Add the provider and its diagnostics to an error from the box."""
        error.details.setdefault("provider", self.provider)
        error.details.setdefault("diagnostics", msgspec.to_builtins(dict(self.diagnostics)))
        return error

    def guest_path(self, host: Path) -> str | None:
        for place, guest in self.places:
            if host.is_relative_to(place):
                return str(Path(guest) / host.relative_to(place))
        return None

    def _guest_cwd(self, cwd: str | os.PathLike[str] | None) -> str:
        if cwd is None:
            return self.guest_project
        host = resolve_cwd(self.project, cwd)
        guest = self.guest_path(host)
        if guest is None:
            raise PathRefused(f"cwd {host} is not visible in the box", op="exec", details={"cwd": str(host)})
        return guest

    def _with_host_hint(self, error: CommandNotFound) -> CommandNotFound:
        """Add a hint if the command exists on the host: a missing mount is the most common problem of a first run."""
        found = find_program(str(error.details.get("command", "")))
        if found is None or self.guest_path(Path(found)) is not None:
            return error
        folder = Path(found).parent.parent
        return CommandNotFound(
            error.message,
            op=error.op,
            fix_hints=[
                f"on the host it is {found}, outside the box: add --mount {folder}:{folder}:ro",
                *error.fix_hints,
            ],
            details=error.details,
        )


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
            raise RequestInvalid(f"{name} is one string, not a list", op="start", fix_hints=[f"write {name}=[…]"])
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
    check_values(policy)
    return policy


def _megabytes(option: Size | None, default: Size | None, name: str) -> int | None:
    size = default if option is None else option
    return None if size is None else megabytes(size, name)


def _first(option: Option | None, default: Option | None) -> Option | None:
    return default if option is None else option  # 0 and "" are values, and are refused later
