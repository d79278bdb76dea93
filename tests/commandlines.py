"""Find proofbox command lines in text, and check that they parse, without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from proofbox.cli.app import find_command, function_of
from proofbox.cli.parameters import CommandSignature
from proofbox.cli.parser import bind

CONTROL = frozenset("();<>|&")
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"^    (?:\$ )?(proofbox .*)$", re.MULTILINE)
INLINE = re.compile(r"`(proofbox [^`]+)`")


def in_markdown(text: str) -> Iterator[str]:
    """Yield every command line on a page: in shell blocks, indented, and inline."""
    for block in BLOCK.finditer(text):
        for line in re.sub(r"\\\n\s*", " ", block[1]).splitlines():
            if "proofbox" in line:
                yield line.strip().removeprefix("$ ")
    outside = BLOCK.sub("", text)
    for found in (*INDENTED.finditer(outside), *INLINE.finditer(outside)):
        yield re.split(r"\s{2,}#|\s{3,}", found[1])[0]


def invocations(line: str) -> list[list[str]]:
    """Return the arguments of each `proofbox` call on a shell line, which may join several commands."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= CONTROL:
            found.append([])
        else:
            found[-1].append(word)
    return [words[1:] for words in found if words and words[0] == "proofbox"]


def refuse_unknown(words: list[str]) -> None:
    """Raise UsageError unless the command exists, and its flags and required arguments parse."""
    if not words or words[-1] in ("--help", "--version"):
        return
    command = find_command(words)
    assert command is not None, f"no command: {' '.join(words)}"
    bind(CommandSignature(function_of(command)), words[len(command.path.split()) :])
