"""Writes the reference from the code: what `proofbox contract --json` says, and the public names.

scripts/reference            write docs/reference/ and SCHEMAS.md
scripts/reference --check    exit 1, with the difference, where one of them is stale
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import reference_schemas
import reference_sdk

from proofbox.agents.contract import RuntimeCapabilities
from proofbox.cli import COMMANDS, GROUPS
from proofbox.cli.commands.setup.contract import CodeFacts, ContractDocument, make_contract
from proofbox.cli.describe import CommandFacts, ParameterFacts

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "<!-- Made by scripts/reference from the code. Change that, not this. -->\n\n"

CLI = """# Command line

Every command takes `--json`: one JSON document on stdout, logs on stderr. A failure is a `proofbox.error/1` with a
`code` ([errors](errors.md)) and `fix_hints`. Shapes are in [schemas](schemas.md). `proofbox contract --json` has all
of this for programs, and `proofbox COMMAND --help` for people.
"""
RUNTIMES = """# Agent runtimes

What each runtime supports, as `proofbox runtime list` and `proofbox contract --json` state it, and the settings of its
table `[runtimes.ID]`. A capability that depends on the agent's program is refused with `RUNTIME_CAPABILITY_UNSUPPORTED`
if the program lacks it. [Agents](../agents.md) explains them.
"""
ERRORS = """# Errors

Every error that proofbox raises on purpose has a code, which never changes its meaning, an exit code, and fix hints.
With `--json` it is a `proofbox.error/1` on stdout; in Python, a `proofbox.ProofboxError` with `code`, `message`, `op`,
`fix_hints`, `retryable` and `details`. *Retryable*: trying again may succeed. Hints here are the defaults of the code;
an error that knows more says that instead.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/reference", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare, and exit 1 on a difference")
    options = parser.parse_args()
    pages = make_pages()
    stale = [name for name, text in pages.items() if _now(name) != text]
    for name in stale:
        if options.check:
            lines = _now(name).splitlines(True), pages[name].splitlines(True)
            sys.stdout.writelines(difflib.unified_diff(*lines, f"{name} now", f"{name} by the code", n=1))
        else:
            (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / name).write_text(pages[name])
    if options.check and stale:
        print(f"reference: stale: {', '.join(stale)}; run scripts/reference", file=sys.stderr)
        return 1
    print(f"reference: {len(pages)} files, {len(stale)} {'stale' if options.check else 'written'}", file=sys.stderr)
    return 0


def make_pages() -> dict[str, str]:
    contract = make_contract()
    pages = {
        "docs/reference/cli.md": cli_page(contract),
        "docs/reference/errors.md": errors_page(contract),
        "docs/reference/runtimes.md": runtimes_page(contract),
        "docs/reference/sdk.md": reference_sdk.page(),
        "SCHEMAS.md": reference_schemas.page(contract),
    }
    return {name: NOTICE + re.sub(r"\n{3,}", "\n\n", text.rstrip()) + "\n" for name, text in pages.items()}


def _now(name: str) -> str:
    try:
        return (ROOT / name).read_text()
    except FileNotFoundError:
        return ""


# The agent runtimes


def runtimes_page(contract: ContractDocument) -> str:
    """Return the capabilities of all runtimes side by side, and the settings of each."""
    found = contract.strategies
    names = RuntimeCapabilities.__struct_fields__
    lines = [RUNTIMES, f"| | {' | '.join(f'`{id}`' for id in found)} |", f"|---|{'---|' * len(found)}"]
    for name in names:
        cells = ["yes" if getattr(facts.capabilities, name) else "no" for facts in found.values()]
        lines.append(f"| {name.removeprefix('supports_')} | {' | '.join(cells)} |")
    for id, facts in found.items():
        lines += ["", f"## {id}", "", f"{facts.title}.", ""]
        members = facts.settings["$defs"][facts.settings["$ref"].rpartition("/")[2]].get("properties", {})
        if members:
            lines += ["| setting | default | meaning |", "|---|---|---|"]
        for name, member in members.items():
            default = json.dumps(member["default"]) if member.get("default") is not None else ""
            lines.append(f"| `{name}` | {f'`{default}`' if default else ''} | {_cell(member.get('description', ''))} |")
    return "\n".join(lines)


# The command line


def cli_page(contract: ContractDocument) -> str:
    lines = [
        CLI,
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in contract.exit_codes.items()),
        "",
        "Commands that run another (marked *passes the exit code* below) end as it does, except:",
        "",
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in contract.passing_exit_codes.items()),
        "",
    ]
    for title, paths in _chapters():
        lines += [f"## {title}", "", *([GROUPS[title], ""] if title in GROUPS else [])]
        lines += ["| command | what it does |", "|---|---|"]
        lines += [f"| [`{path}`](#{_slug('proofbox ' + path)}) | {contract.commands[path].summary} |" for path in paths]
        lines.append("")
        for path in paths:
            lines += [*_command(path, contract.commands[path]), ""]
    return "\n".join(lines)


def _chapters() -> list[tuple[str, list[str]]]:
    """Return single commands first, then the groups in order."""
    chapters: dict[str, list[str]] = {"Commands": []}
    for command in COMMANDS:
        first, _, rest = command.path.partition(" ")
        chapters.setdefault(first if rest else "Commands", []).append(command.path)
    return list(chapters.items())


def _command(path: str, facts: CommandFacts) -> Iterator[str]:
    yield from (f"### proofbox {path}", "", facts.description, "", f"    {facts.usage}", "")
    arguments = [each for each in facts.parameters if each.kind == "argument"]
    flags = [each for each in facts.parameters if each.kind == "flag"]
    for title, found in (("argument", arguments), ("flag", flags)):
        if found:
            yield from (f"| {title} | type | default | meaning |", "|---|---|---|---|")
            yield from (_parameter(each) for each in found)
            yield ""
    yield from ("```sh", *facts.examples, "```", "")
    printed = [f"[`{name}`](schemas.md#{_slug(name)})" for name in facts.prints]
    streamed = [f"[`{name}`](schemas.md#{_slug(name)})" for name in facts.streams]
    words = [f"Prints {' or '.join(printed)}." if printed else "Prints no document, except for errors."]
    words += [f"With `--jsonl`, each line is {' or '.join(streamed)}."] if streamed else []
    words += ["Passes the exit code."] if facts.passes_exit_code else []
    yield " ".join(words)


def _parameter(each: ParameterFacts) -> str:
    names = ", ".join(f"`{name}`" for name in (each.name, *each.aliases))
    kind = " \\| ".join(f"`{choice}`" for choice in each.choices) or each.type
    kind += ", repeated" if each.repeated else ""
    default = "required" if each.required else "" if each.default is None else f"`{each.default}`"
    return f"| {names} | {kind} | {default} | {_cell(each.help)} |"


# Errors


def errors_page(contract: ContractDocument) -> str:
    codes = contract.codes
    root = next(code for code, facts in codes.items() if facts.parent is None)
    lines = [
        ERRORS,
    ]
    plain = [code for code, facts in codes.items() if facts.parent == root and not _cases(code, codes)]
    lines += ["## Everywhere", "", *_table([root, *plain], codes), ""]
    for area in (code for code, facts in codes.items() if facts.parent == root and code not in plain):
        lines += [
            f"## {area.partition('_')[0]}_…",
            "",
            codes[area].meaning,
            "",
            *_table([area, *_cases(area, codes)], codes),
            "",
        ]
    return "\n".join(lines)


def _cases(code: str, codes: dict[str, CodeFacts]) -> list[str]:
    return [found for child, facts in codes.items() if facts.parent == code for found in (child, *_cases(child, codes))]


def _table(names: Sequence[str], codes: dict[str, CodeFacts]) -> Iterator[str]:
    yield from ("| code | exit | retryable | meaning | what to do |", "|---|---|---|---|---|")
    for code in names:
        facts = codes[code]
        retryable, hints = "yes" if facts.retryable else "", "<br>".join(map(_cell, facts.hints))
        yield f"| `{code}` | {facts.exit_code} | {retryable} | {_cell(facts.meaning)} | {hints} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _slug(heading: str) -> str:
    return reference_schemas.slug(heading)


if __name__ == "__main__":
    sys.exit(main())
