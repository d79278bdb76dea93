"""`exec`: run one command in a new box."""

from __future__ import annotations

import codecs
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import write_json
from proofbox.cli.parameters import Parameter
from proofbox.core.plurals import counted
from proofbox.core.text import printable
from proofbox.errors import NotFoundError, UsageError
from proofbox.sandbox import DEFAULT_OUTPUT_CAP

if TYPE_CHECKING:
    from proofbox.cli.commands.run.documents import DeniedHost
    from proofbox.sandbox.contract import Event, ExecResult, OnOutput, Output, RunningCommand
    from proofbox.sandbox.options import ExecOptions

MAX_DENIED = 20


class DeniedHosts:
    """The hosts that a box's allowlist denied, from its events. Requests to further hosts are only counted."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], int] = {}
        self._others = 0

    def __call__(self, event: Event) -> None:
        if (event.kind, event.phase) != ("network", "denied"):
            return
        detail = event.detail
        reason = str(detail.get("reason", "not on the allowlist"))
        key = (printable(str(detail["host"])), int(str(detail["port"])), reason)
        if key in self._found or len(self._found) < MAX_DENIED:
            self._found[key] = self._found.get(key, 0) + 1
        else:
            self._others += 1

    def facts(self) -> tuple[DeniedHost, ...]:
        from proofbox.cli.commands.run.documents import DeniedHost

        return tuple(DeniedHost(host, port, count, reason) for (host, port, reason), count in self._found.items())

    def print_to_stderr(self) -> None:
        for (host, port, reason), count in self._found.items():
            times = f", {count} times" if count > 1 else ""
            print(f"proofbox: denied {host}:{port} ({reason}{times})", file=sys.stderr)
        if self._others:
            print(f"proofbox: … and {counted(self._others, 'more request')} to other hosts", file=sys.stderr)
        if self._found:
            print("proofbox: to allow a host, add it to --network allow:HOST[:PORT],…", file=sys.stderr)


class CommandFlags(msgspec.Struct, frozen=True):
    """Flags of one command, in a new box or in a session."""

    cwd: flags.Cwd = None
    env: flags.Env = ()
    timeout: flags.Timeout = None
    stdin: flags.Stdin = None
    max_output: flags.MaxOutput = DEFAULT_OUTPUT_CAP
    shell: flags.Shell = None
    raw: flags.Raw = False

    def words(self, argv: tuple[str, ...]) -> list[str]:
        if (self.shell is None) == (not argv):
            raise UsageError(
                "no command was given: put it after --, or use --shell"
                if self.shell is None
                else "--shell and a command after -- cannot be combined",
                op="exec",
                fix_hints=["proofbox exec -- ls -l", "proofbox exec --shell 'ls -l | wc -l'"],
            )
        return ["/bin/sh", "-c", self.shell] if self.shell is not None else list(argv)

    @contextlib.contextmanager
    def options(self, *, as_json: bool) -> Iterator[ExecOptions]:
        """Yield the options of the call. Once the command has started, signals to this process are passed on to it."""
        with open_stdin(self.stdin) as source, contextlib.ExitStack() as stack:

            def forward_signals(running: RunningCommand) -> None:
                from proofbox.sandbox.client.signals import forwarding_signals

                stack.enter_context(forwarding_signals(running.signal))

            yield {
                "cwd": self.cwd,
                "env": self._env(),
                "timeout": self.timeout,
                "stdin": source,
                "max_output": self.max_output,
                "on_output": None if as_json else writer(self.raw),
                "on_start": forward_signals,
            }

    def _env(self) -> dict[str, str]:
        if not self.env:
            return {}
        from proofbox.sandbox.client.requests import parse_env

        return parse_env(self.env)


NO_FLAGS = CommandFlags()
CommandArgs = Annotated[CommandFlags, Parameter(name="*")]


def exec_(
    *argv: str,
    provider: flags.Provider = None,
    project: flags.Project = Path(),
    command: CommandArgs = NO_FLAGS,
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Run one command in a new box: proofbox exec [OPTIONS] -- COMMAND [ARG]...

    The exit code is the command's; 124 if it timed out, 126 if it cannot be executed, 127 if it was not found, and 125
    if proofbox failed. Without --json the output is streamed. Signals (Ctrl-C, TERM, HUP, QUIT, USR1, USR2, WINCH) are
    passed on to the command; the third Ctrl-C or TERM kills it.

    For example:
      proofbox exec -- python3 -m pytest -q
      proofbox exec --network full --timeout 60 --shell 'curl -s https://example.org | wc -c'
      proofbox exec --access overlay --memory 512 --json -- make test
    """
    from proofbox.sandbox.service import Sandboxes

    words, denied = command.words(argv), DeniedHosts()
    with Sandboxes(project, on_event=denied) as boxes, command.options(as_json=json) as options:
        result = boxes.exec(words, provider=provider, **box.options(), **options)
    return finish(result, denied, as_json=json)


def finish(result: ExecResult, denied: DeniedHosts | None = None, *, as_json: bool) -> int:
    if as_json:
        from proofbox.cli.commands.run.documents import ExecDocument

        write_json(ExecDocument.of(result, denied))
    else:
        if result.timed_out:
            print("proofbox: the command timed out and was killed, with all its child processes", file=sys.stderr)
        if result.usage.oom_killed:
            print("proofbox: the box reached its memory limit, and the kernel killed a process", file=sys.stderr)
        remark = result.diagnostics.get(result.provider)
        if remark is not None and remark.reason and sys.stderr is not None and sys.stderr.isatty():
            print(f"proofbox: {result.provider}: {remark.reason}", file=sys.stderr)
        if denied is not None:
            denied.print_to_stderr()
    return result.exit_code


@contextlib.contextmanager
def open_stdin(name: str | None) -> Iterator[BinaryIO | None]:
    if name is None:
        yield None
    elif name == "-":
        from proofbox.sandbox.client.terminal import own_stdin

        if sys.stdin is None:
            raise UsageError(
                "--stdin - was given, but stdin is closed", op="exec", fix_hints=["use --stdin FILE", "omit --stdin"]
            )
        with own_stdin() as own:  # a thread that blocks in sys.stdin's buffer would abort Python at exit
            yield own
    else:
        try:
            source = open(name, "rb")  # noqa: SIM115 (closed below; errors of the command must pass through)
        except (OSError, ValueError) as error:
            raise NotFoundError(
                f"cannot read --stdin {name!r}: {error}", op="exec", fix_hints=["check the path"]
            ) from None
        with source:
            yield source


def writer(raw: bool) -> OnOutput:
    """Return a function that passes on output as it arrives, escaped for a terminal unless `raw`."""
    streams = {"stdout": sys.stdout, "stderr": sys.stderr}
    plain = {name: raw or stream is None or not stream.isatty() for name, stream in streams.items()}
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in plain}

    def write(output: Output) -> None:
        target = streams[output.stream]
        if target is None:  # closed by the caller
            return
        if plain[output.stream]:
            target.buffer.write(output.data)
        else:
            target.write(printable(decoders[output.stream].decode(output.data)))
        target.flush()

    return write
