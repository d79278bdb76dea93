"""Help, laid out for the width of the terminal. `proofbox --help` must start fast: this module imports nothing else."""

from __future__ import annotations

import os

from proofbox.cli import COMMANDS, GROUPS, Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proofbox.cli.parameters import CommandInput, CommandSignature

WIDEST = 120
"""Longer lines are hard to read, however wide the terminal is."""
NARROWEST = 40
SECTIONS = {
    "run": "Run",
    "agents": "Agents and suites",
    "workspaces": "Workspaces",
    "evidence": "Evidence",
    "delivery": "Delivery",
    "setup": "Setup",
}
"""Sections of the list of commands, by the package that holds the commands."""
EXAMPLES_OF_ALL = """\
  proofbox exec -- ls -l
  proofbox exec --json --timeout 60 -- pytest -q
  proofbox session start
  proofbox runtime try --prompt TEXT --workspace DIR --out RECORD
  proofbox verify out"""
EXAMPLES = "For example:"
"""Starts the examples in the docstring of a command."""
NO_BREAK = "\0"  # a space at which a line is not broken
VALUES = {"text": "TEXT", "integer": "N", "number": "NUMBER", "path": "PATH", "switch": ""}


def root_help() -> str:
    sections: dict[str, dict[str, str]] = {title: {} for title in SECTIONS.values()}
    seen: set[str] = set()
    for command in COMMANDS:
        name, _, rest = command.path.partition(" ")
        if name not in seen:
            seen.add(name)
            title = SECTIONS[command.target.partition(".")[0]]
            sections[title][name] = GROUPS[name] if rest else command.summary
    width = max(len(name) for name in seen)
    parts = ["Usage: proofbox COMMAND [OPTIONS]", "Run coding agents in a box, and keep the proof."]
    parts += [f"{title}:\n{_table(rows.items(), width)}" for title, rows in sections.items()]
    parts += [_wrapped("Every command accepts --json (one document on stdout) and --help.")]
    return "\n\n".join([*parts, f"Examples:\n{EXAMPLES_OF_ALL}"])


def group_help(group: str) -> str:
    named = [(command.path.partition(" "), command.summary) for command in COMMANDS]
    rows = [(rest, summary) for (name, _, rest), summary in named if name == group]
    return "\n\n".join(
        [
            f"Usage: proofbox {group} COMMAND [OPTIONS]",
            _wrapped(GROUPS[group]),
            f"Commands:\n{_table(rows)}",
            _wrapped(f"For options and examples: proofbox {group} COMMAND --help"),
        ]
    )


def command_help(command: Command, docstring: str, signature: CommandSignature) -> str:
    description, examples = split_docstring(docstring)
    first, *others = description.split("\n\n")
    summary = first.partition(f": proofbox {command.path} ")[0]
    parts = [_wrapped(f"Usage: {usage(command, description, signature)}", " " * 9)]
    parts += [_wrapped(summary if summary == first else f"{summary}."), *map(_wrapped, others)]
    arguments = [(each.name, _meaning(each)) for each in signature.inputs if each.kind == "argument"]
    options = [(_label(each), _meaning(each)) for each in signature.inputs if each.kind == "flag"]
    parts += [f"Arguments:\n{_table(arguments)}"] if arguments else []
    parts += [f"Options:\n{_table(options)}", "\n".join(["Examples:", *(f"  {line}" for line in examples)])]
    return "\n\n".join(parts)


def split_docstring(docstring: str) -> tuple[str, tuple[str, ...]]:
    """Split a command's docstring into its description, without indentation, and its examples."""
    first, *others = docstring.strip().splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in others if line), default=0)
    words, _, examples = "\n".join([first, *(line[indent:] for line in others)]).partition(EXAMPLES)
    return words.strip(), tuple(line.strip() for line in examples.splitlines() if line.strip())


def usage(command: Command, description: str, signature: CommandSignature) -> str:
    """Return the form of the command line: stated in the first line of the description, or made from the signature."""
    start = f"proofbox {command.path}"
    stated = description.partition("\n")[0].partition(f": {start} ")[2]
    if stated:
        return f"{start} {stated}"
    required = [_label(each) for each in signature.inputs if each.kind == "flag" and each.required]
    arguments = [each for each in signature.inputs if each.kind == "argument"]
    named = [each.name if each.required else f"[{each.name}]" for each in arguments]
    return " ".join([start, *required, "[OPTIONS]", *named])


def _label(option: CommandInput) -> str:
    value = "|".join(option.choices) or VALUES[option.type]
    return " ".join([", ".join(option.declared.names), *([value] if value else [])])


def _meaning(each: CommandInput) -> str:
    if each.required:
        return f"{each.declared.help} [required]"
    if each.default in (None, False, (), ""):
        return each.declared.help
    default = f"{each.default:g}" if isinstance(each.default, float) else each.default
    return f"{each.declared.help} [default:{NO_BREAK}{default}]"


def _table(rows: Iterable[tuple[str, str]], width: int = 0) -> str:
    """Format names and their meanings in two columns. A name that is too long has its line to itself."""
    rows = list(rows)
    column = min(max(width, *(len(name) for name, _ in rows), 0), max(12, _columns() // 3))
    lines: list[str] = []
    for name, meaning in rows:
        indent = " " * (column + 4)
        if len(name) > column:
            lines += [f"  {name}", *_lines(meaning, indent, indent)]
        else:
            lines += _lines(meaning, f"  {name:<{column}}  ", indent)
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    """Wrap a paragraph. An indented paragraph is an excerpt of a file, which keeps its lines."""
    if text.startswith(" "):
        return text
    return "\n".join(_lines(text, "", indent))


def _lines(text: str, start: str, indent: str) -> Iterator[str]:
    """Break text into lines that fit the terminal."""
    line, empty, width = start, True, _columns()
    for word in (each.replace(NO_BREAK, " ") for each in text.split()):
        if not empty and len(line) + 1 + len(word) > width:
            yield line
            line, empty = indent, True
        line, empty = line + word if empty else f"{line} {word}", False
    yield line.rstrip()


def _columns() -> int:
    """Return the width to format help for: that of COLUMNS or the terminal, or 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and len(given) < 5:
        width = int(given)
    else:
        try:
            width = os.get_terminal_size(1).columns
        except OSError:
            width = 0
    return min(max(width or 80, NARROWEST), WIDEST)
