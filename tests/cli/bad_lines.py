"""Generate bad command lines from the real command tree, reproducibly for a given seed.

A line states the exit codes it may end with. Meaningless lines must be refused as usage errors; lines with unusual
values may succeed or fail. None may end with an internal error (exit 4) or a stack trace.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from proofbox.cli import COMMANDS, GROUPS, Command
from proofbox.cli.app import function_of
from proofbox.cli.parameters import CommandInput, CommandSignature

USAGE = frozenset({2})
REFUSED = frozenset({1, 2, 3})
ANSWERED = REFUSED | {0}
# Commands that pass on an exit code: proofbox's own failures are 125; 126 and 127 are as in a shell.
PASSED_ON = {USAGE: frozenset({125}), REFUSED: frozenset({125, 126, 127})}


class Line(NamedTuple):
    why: str
    words: tuple[str, ...]
    codes: frozenset[int]

    @property
    def as_json(self) -> bool:
        return "--json" in self.options

    @property
    def options(self) -> tuple[str, ...]:
        return self.words[: self.words.index("--")] if "--" in self.words else self.words


class Good(NamedTuple):
    """A command line that works in the test's directory, as a base for mutations."""

    positional: tuple[str, ...] = ()
    flags: Mapping[str, str | None] = types.MappingProxyType({})
    command: tuple[str, ...] = ()
    """The arguments after `--`."""


DELIVERY = {"--app-id": "shop", "--backend-url": "http://127.0.0.1:9", "--timeout": "0.2"}
GOOD = {
    "exec": Good(flags={"--provider": "off", "--project": "project"}, command=("true",)),
    "up": Good(flags={"--provider": "off", "--project": "project"}, command=("true",)),
    "init": Good(flags={"--project": "project", "--memory": "64", "--force": None}),
    "doctor": Good(flags={"--provider": "apple-vm"}),
    "session start": Good(flags={"--provider": "apple-vm"}),
    "session exec": Good(("ses-none",), command=("true",)),
    "session show": Good(("ses-none",)),
    "session stop": Good(("ses-none",)),
    "images pull": Good(("small",), {"--catalogue": "images.toml", "--project": "project"}),
    "images list": Good(flags={"--catalogue": "images.toml"}),
    "images default": Good(flags={"--catalogue": "images.toml"}),
    "verify": Good(("out",)),
    "bundle list": Good(("out",)),
    "bundle show": Good(("out",)),
    "bundle verify": Good(("out",)),
    "bundle reindex": Good(("out",), {"--strict": None}),
    "bundle push": Good(("out", "store")),
    "bundle pull": Good(("store", "pulled")),
    "promotion emit": Good(("out",), {"--output": "again.json"}),
    "promotion verify": Good(("packet.json",), {"--key": "key.pub"}),
    "key new": Good(("another",)),
    "key show": Good(("key.pub",)),
    "workspace init": Good(("folder",)),
    "workspace rollback": Good(("project", "HEAD")),
    "workspace fork": Good(("project", "HEAD", "forked")),
    "workspace diff": Good(("project", "HEAD", "HEAD")),
    "workspace call": Good(("project", "read_file"), {"--args": '{"path": "hello.txt"}'}),
    "mcp serve": Good(flags={"--workspace": "absent"}),
    "suite lint": Good(("suite.toml",)),
    "suite run": Good(("suite.toml",), {"--out": "out-2", "--strategies": "absent-agent"}),
    "attempt show": Good(("ok.1",), {"--run": "out"}),
    "attempt explain": Good(("ok.1",), {"--run": "out"}),
    "attempt interrupt": Good(("ok.1",), {"--run": "out"}),
    "runtime check": Good(("absent-agent",)),
    "runtime try": Good(flags={"--prompt": "go", "--workspace": "project", "--strategy": "absent-agent"}),
    "attempt diff": Good(("absent",)),
    "attempt fork": Good(("absent",), {"--step": "0", "--prompt": "go", "--out": "record"}),
    "run": Good(command=("true",)),
    "mcp proxy": Good(command=("true",)),
    "deliver spec": Good(flags={**DELIVERY, "--enterprise-id": "e-1"}),
    "deliver plan": Good(flags={**DELIVERY, "--source": "folder"}),
    "deliver init": Good(flags={**DELIVERY, "--source": "folder"}),
    "deliver pr": Good(flags={**DELIVERY, "--source": "folder"}),
    "view": Good(("out",), {"--host": "203.0.113.1", "--port": "0"}),
    "backend serve": Good(flags={"--host": "203.0.113.1", "--port": "0", "--data": "backend"}),
    "backend spec": Good(("spec.json",), {"--enterprise-id": "e-1", "--data": "backend"}),
    "demo": Good(flags={"--keep": "folder"}),
    "completion": Good(("bash",)),
    **{f"workspace {name}": Good(("project",)) for name in ("snapshot", "log", "status", "verify", "gc", "adopt")},
    "workspace forget": Good(("folder",)),
    **{f"workspace {name}": Good(("project",)) for name in ("effects", "tools")},
    **{f"suite {name}": Good(("out",)) for name in ("resume", "report")},
    **{name: Good(("out",)) for name in ("validate", "report", "gc", "attempt list")},
}

LETTERS = ("abc", "", "1,5", "--", "1 2", "½", "\udcff")
STRANGE_NUMBERS = ("-1", "0", "nan", "inf", "-inf", "1e400", "9" * 30, "9" * 5000, "1e-300", "٣")
PLACES = (
    "",
    "absent",
    "absent/below",
    "file.txt",
    "file.txt/below",
    "folder",
    "dangling",
    "loop",
    "loop/below",
    "n" * 300,
    "d/" * 2500,
    "new\nline",
    "\udcff\udcfe",
    "not-utf8-\udcff",
    "socket",
    "/dev/null",
    "/proc/self/mem",
    "~nobody-at-all/x",
    "-",
    "http://127.0.0.1:9/x",
)
CAN_NOT_BE_MADE = ("", "file.txt", "file.txt/below", "folder", "loop/below", "n" * 300, "d/" * 2500, "/dev/null")
STRANGE_WORDS = (
    "",
    " ",
    "\udcff",
    "a\nb",
    "\x1b[31m",
    "x" * 100_000,
    "..",
    "../../etc/passwd",
    "=",
    "a=",
    "=b",
    ":",
    ":::",
    "*",
    "[",
    "(",
    "%s%n",
    "{}",
    "it's",
    "null",
    "😀" * 300,
    "-",
    "s3://",
    "file:///",
)


@cache
def arguments(command: Command) -> tuple[CommandInput, ...]:
    return CommandSignature(function_of(command)).inputs


def assemble(command: Command, good: Good, *extra: str, as_json: bool = True) -> tuple[str, ...]:
    flags = [word for name, value in good.flags.items() for word in ((name,) if value is None else (name, value))]
    behind = ("--", *good.command) if good.command else ()
    return (*command.path.split(), *(["--json"] if as_json else []), *good.positional, *flags, *extra, *behind)


def lines_for(command: Command, seed: int, most: int) -> list[Line]:
    """Return at most `most` random lines for one command, meaningless ones first."""
    chance = random.Random(f"{seed} {command.path}")  # noqa: S311 (reproducible on purpose)
    meaningless, strange = list(_meaningless(command, chance)), list(_strange(command, chance))
    for each in (meaningless, strange):
        chance.shuffle(each)
    picked = meaningless[: most // 2]
    picked += strange[: most - len(picked)]
    return [_fitted(command, line) for line in picked]


def _fitted(command: Command, line: Line) -> Line:
    if not command.passes_exit_code:
        return line
    return line._replace(codes=PASSED_ON.get(line.codes, frozenset({0, 124, 125, 126, 127})))


def _meaningless(command: Command, chance: random.Random) -> Iterator[Line]:
    good = GOOD.get(command.path, Good())
    given = arguments(command)
    flags = [each for each in given if each.kind == "flag"]
    names = {name for each in flags for name in each.declared.names}

    def line(why: str, words: Sequence[str], codes: frozenset[int] = USAGE) -> Line:
        return Line(why, tuple(words), codes)

    for as_json in (True, False):
        yield line("no such flag", assemble(command, good, "--no-such-flag", as_json=as_json))
        yield line("no such flag", assemble(command, good, "--no-such-flag=\udcff\n", as_json=as_json))
        for _ in range(3):
            wrong = misspelt(chance.choice(flags).name, chance)
            if wrong not in names:
                yield line("misspelt", assemble(command, good, wrong, "x", as_json=as_json))
        for each in flags:
            if each.type == "switch":
                yield line("a value for a switch", assemble(command, good, f"{each.name}=maybe", as_json=as_json))
                continue
            bare = good._replace(command=())
            yield line("no value", assemble(command, bare, each.name, as_json=as_json))
            if each.type in ("integer", "number"):
                for value in LETTERS:
                    yield line("letters", assemble(command, good, f"{each.name}={value}", as_json=as_json))
            elif each.choices:
                for value in ("sometimes", "", "\udcff", f"{each.choices[0]} "):
                    yield line("none of those", assemble(command, good, f"{each.name}={value}", as_json=as_json))
        if not good.command:
            yield line("surplus", assemble(command, good, *["surplus"] * 5, as_json=as_json))
        for each in flags:
            if each.required:
                rest = {name: value for name, value in good.flags.items() if name not in each.declared.names}
                yield line("missing", assemble(command, good._replace(flags=rest), as_json=as_json))
        if any(each.required and each.kind == "argument" for each in given) and len(good.positional) > 0:
            yield line("missing", assemble(command, good._replace(positional=good.positional[:-1]), as_json=as_json))


def _strange(command: Command, chance: random.Random) -> Iterator[Line]:
    good = GOOD.get(command.path, Good())
    for index, _ in enumerate(good.positional):
        for value in (*PLACES, *STRANGE_WORDS):
            given = (*good.positional[:index], value, *good.positional[index + 1 :])
            yield Line("a strange argument", assemble(command, good._replace(positional=given)), ANSWERED)
    for each in arguments(command):
        if each.kind != "flag" or each.type == "switch":
            continue
        values = {"integer": STRANGE_NUMBERS, "number": STRANGE_NUMBERS, "path": PLACES}.get(each.type, STRANGE_WORDS)
        if command.path == "demo":  # with any other directory, the demo would run
            values = CAN_NOT_BE_MADE
        rest = {name: value for name, value in good.flags.items() if name not in each.declared.names}
        for value in values:
            words = assemble(command, good._replace(flags=rest), f"{each.name}={value}", as_json=chance.random() < 0.8)
            yield Line("a strange value", words, ANSWERED)
        if command.path != "demo":
            yield Line("given twice", assemble(command, good, f"{each.name}=1", f"{each.name}=2"), ANSWERED)


def misspelt(name: str, chance: random.Random) -> str:
    at = chance.randrange(2, max(3, len(name)))
    other = chance.choice("abcdefghijklmnopqrstuvwxyz-_=1")
    return chance.choice(
        [name[:at] + other + name[at:], name[:at] + name[at + 1 :], name.upper(), name + "s", "-" + name]
    )


def lines_without_a_command() -> list[Line]:
    groups = list(GROUPS)
    words = [
        ["exce"],
        ["Exec"],
        ["exec "],
        [""],
        ["-"],
        ["--"],
        ["--", "exec"],
        ["--json"],
        ["--jsn"],
        ["-x"],
        ["--help=maybe"],
        ["\udcff"],
        ["\x1b[2J"],
        ["x" * 100_000],
        ["help", "no-such-command"],
        ["exec.py"],
        ["proofbox"],
        *([group, "no-such-command"] for group in groups),
        *([group, ""] for group in groups),
        *([group, "--no-such-flag"] for group in groups),
        *([group, "--json"] for group in groups),
    ]
    return [Line("no command", tuple(each), USAGE) for each in words] + [
        Line("no command", ("--json", *each), USAGE) for each in words[:1]
    ]


def every_line(seed: int, most: int) -> list[Line]:
    return [line for command in COMMANDS for line in lines_for(command, seed, most)] + lines_without_a_command()
