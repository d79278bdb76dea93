"""A request to run one command, checked and encoded before anything is sent."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from proofbox.errors import RequestInvalid
from proofbox.sandbox import DEFAULT_OUTPUT_CAP
from proofbox.sandbox.client import wire
from proofbox.sandbox.options import COMMAND_OPTIONS, ExecOptions, refuse_unknown

if TYPE_CHECKING:
    from proofbox.sandbox.box_handle import BoxHandle

Stdin = bytes | str | BinaryIO | None

# Limits of one process, by the name that a caller uses. Limits of a whole box (memory, pids, CPU) are in its policy.
RLIMITS = {
    "address_space": resource.RLIMIT_AS,
    "core": resource.RLIMIT_CORE,
    "cpu_seconds": resource.RLIMIT_CPU,
    "file_size": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,
}

_TEXT = (str, bytes)  # `str | bytes` would create an object with each check

# Maximum output in flight to a streaming reader: a larger window only hides that the reader is slow.
STREAM_WINDOW = 1 << 20


class CommandSettings(msgspec.Struct, frozen=True):
    """How a command runs: its directory, streams and limits, checked and encoded."""

    cwd: bytes
    stdin: bytes | BinaryIO | None
    timeout: float | None
    grace: float
    cap: int
    streamed: bool
    encoded: bytes


class CommandRequest(msgspec.Struct, frozen=True):
    """The request to the box agent for one command, without its id."""

    program: bytes
    settings: CommandSettings
    encoded: bytes
    """The command as the box agent reads it."""


def make_request(argv: Sequence[str | bytes], settings: CommandSettings, env: wire.EncodedVariables) -> CommandRequest:
    if isinstance(argv, _TEXT):
        raise RequestInvalid(
            "the command is a string, but must be a list of arguments",
            op="exec",
            fix_hints=["pass a list: ['ls', '-l']", "or give the string to a shell: --shell, ['sh', '-c', text]"],
        )
    if not argv:
        raise RequestInvalid("no command was given", op="exec", fix_hints=["put it after --: proofbox exec -- ls -l"])
    arguments = [_bytes(argument, "an argument") for argument in argv]
    encoded = wire.command(settings.encoded, arguments, env)
    if len(encoded) > wire.MAX_COMMAND:
        raise RequestInvalid(
            f"argv and environment take {len(encoded):,} bytes; the limit is {wire.MAX_COMMAND:,}",
            op="exec",
            fix_hints=["pass large data with --stdin or in a file in the project"],
        )
    return CommandRequest(arguments[0], settings, encoded)


def make_settings(
    cwd: str,
    *,
    stdin: Stdin = None,
    timeout: float | None = None,
    grace: float = 0.0,
    max_output: int = DEFAULT_OUTPUT_CAP,
    pty: tuple[int, int] | None = None,
    streamed: bool = False,
    limits: Mapping[str, int] | None = None,
) -> CommandSettings:
    if timeout is not None and not 0 < timeout < 10**6:
        raise RequestInvalid(f"invalid timeout: {timeout} s", op="exec", fix_hints=["give seconds greater than 0"])
    if not 0 <= grace < 10**6:
        raise RequestInvalid(f"invalid grace: {grace} s", op="exec", fix_hints=["give 0 or more seconds"])
    if not 1 <= max_output < 2**62:
        raise RequestInvalid(f"invalid max_output: {max_output}", op="exec", fix_hints=["give 1 or more bytes"])
    directory = _bytes(cwd, "cwd")
    encoded = wire.settings(
        cwd=directory,
        want=(0 if pty is None else wire.ExecFlag.PTY) + (0 if stdin is None else wire.ExecFlag.STDIN),
        timeout_ms=_milliseconds(timeout),
        grace_ms=_milliseconds(grace),
        caps=(0, 0) if streamed else (max_output, max_output),
        window=STREAM_WINDOW if streamed else 0,
        size=pty or (0, 0),
        limits=_limits(limits) if limits else {},
    )
    return CommandSettings(
        cwd=directory,
        stdin=stdin.encode() if isinstance(stdin, str) else stdin,
        timeout=timeout,
        grace=grace,
        cap=max_output,
        streamed=streamed,
        encoded=encoded,
    )


class RequestBuilder:
    """Builds the requests of one session. The parts that its commands have in common are checked and encoded once."""

    def __init__(self, inside: BoxHandle) -> None:
        self._inside = inside
        self._usual = make_settings(inside.guest_project)
        self._environment = encode_env(inside.environment)

    def build(
        self, argv: Sequence[str | bytes], options: ExecOptions, pty: tuple[int, int] | None = None
    ) -> CommandRequest:
        inside = self._inside
        if not options and pty is None and not inside.forwards:  # the most common call, and it should be a fast one
            return make_request(argv, self._usual, self._environment)
        refuse_unknown(options, COMMAND_OPTIONS)
        extra = dict(options.get("env") or {})
        if inside.forwards:
            extra = {name: os.environ[name] for name in inside.forwards if name in os.environ} | extra
        settings = make_settings(
            inside.guest_cwd(options.get("cwd")),
            stdin=options.get("stdin"),
            timeout=options.get("timeout"),
            grace=options.get("grace", 0.0),
            max_output=options.get("max_output", DEFAULT_OUTPUT_CAP),
            pty=pty,
            streamed=options.get("on_output") is not None,
            limits=options.get("limits"),
        )
        environment = self._environment
        if extra:
            environment = wire.EncodedVariables({**environment, **encode_env(extra)})
        return make_request(argv, settings, environment)


def check_ttl(ttl: float) -> None:
    """Check how long a session may be idle, before anything is started for it."""
    if not 0 < ttl < 10**9:
        raise RequestInvalid(f"invalid ttl: {ttl} s", op="session start", fix_hints=["give seconds greater than 0"])


def encode_env(env: Mapping[str, str]) -> wire.EncodedVariables:
    """Check and encode variables. A session does this once for the base environment of its commands."""
    return wire.EncodedVariables(_variable(name, value) for name, value in env.items())


def parse_env(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `K=V` from a command line; `K` alone takes the caller's value, so that secrets need not be in argv."""
    env: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            if name not in os.environ:
                raise RequestInvalid(
                    f"--env {name}: the variable is not set",
                    op="exec",
                    fix_hints=[f"write --env {name}=VALUE, or export it"],
                )
            value = os.environ[name]
        env[name] = value
    return env


def _variable(name: str, value: str) -> tuple[bytes, bytes]:
    raw = _bytes(name, "the name of an environment variable")
    if not raw or b"=" in raw:
        raise RequestInvalid(
            f"{name!r} is not a valid name of an environment variable", op="exec", fix_hints=["write NAME=VALUE"]
        )
    return raw, _bytes(value, f"the environment variable {name}")


def _bytes(value: str | bytes, what: str) -> bytes:
    if not isinstance(value, _TEXT):
        raise RequestInvalid(
            f"{what} is a {type(value).__name__}, not text", op="exec", fix_hints=["pass a str or bytes"]
        )
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError:
        raise RequestInvalid(
            f"{what} contains characters that can't be encoded", op="exec", fix_hints=["pass it as bytes"]
        ) from None
    if b"\0" in raw:
        raise RequestInvalid(
            f"{what} contains a NUL byte, which can't be passed to a program",
            op="exec",
            fix_hints=["pass such data with --stdin"],
        )
    return raw


def _limits(limits: Mapping[str, int]) -> dict[int, int]:
    unknown = sorted(set(limits) - set(RLIMITS))
    if unknown:
        raise RequestInvalid(f"unknown limit {unknown[0]!r}", op="exec", fix_hints=[f"known: {', '.join(RLIMITS)}"])
    for name, value in limits.items():
        if not isinstance(value, int) or not 0 <= value < 2**64:
            raise RequestInvalid(
                f"invalid limit {name}: {value!r}", op="exec", fix_hints=["give a whole number, 0 or more"]
            )
    return {RLIMITS[name]: value for name, value in limits.items()}


def _milliseconds(seconds: float | None) -> int:
    return max(1, round(seconds * 1000)) if seconds else 0
