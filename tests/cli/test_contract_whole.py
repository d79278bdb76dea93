"""The contract is complete: `proofbox contract` lists every schema and code of the source exactly once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import proofbox
from proofbox.cli.commands.setup.contract import ContractDocument, make_contract
from proofbox.cli.glossary import NOUNS
from proofbox.cli.output import EXIT_CODES, PASSING_EXIT_CODES

PACKAGE = Path(proofbox.__file__).parent
SCHEMA = re.compile(r"\bproofbox\.[a-z_.-]+/[0-9]+")
CODE = re.compile(r"""^    code(?:: ClassVar\[str\])? = "([A-Z_]+)"$""", re.MULTILINE)


@cache
def contract() -> ContractDocument:
    return make_contract()


def in_source(pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the matches in the source, each with the file where it first occurs."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for match in pattern.finditer(path.read_text()):
            found.setdefault(match[1] if pattern.groups else match[0], str(path.relative_to(PACKAGE)))
    return found


def test_contract_lists_every_schema_in_the_source() -> None:
    found = in_source(SCHEMA)
    assert len(found) > 90  # the pattern still works
    lacking = {name: where for name, where in found.items() if name not in {**contract().schemas, **contract().stored}}
    assert not lacking


def test_contract_lists_every_code_in_the_source() -> None:
    found = in_source(CODE)
    assert len(found) > 100
    assert not {code: where for code, where in found.items() if code not in contract().codes}


def test_each_schema_belongs_to_one_document() -> None:
    assert not contract().schemas.keys() & contract().stored.keys()


def test_every_printed_schema_is_printed_by_a_command() -> None:
    printed = {name for facts in contract().commands.values() for name in (*facts.prints, *facts.streams)}
    assert contract().schemas.keys() - printed == {"proofbox.error/1"}


def test_only_protocol_commands_print_no_document() -> None:
    silent = {path for path, facts in contract().commands.items() if not facts.prints}
    assert silent == {"mcp serve", "mcp proxy", "run"}


def test_streaming_commands_have_jsonl_and_a_schema() -> None:
    by_flag = {
        path for path, facts in contract().commands.items() if any(each.name == "--jsonl" for each in facts.parameters)
    }
    assert (
        by_flag
        == {path for path, facts in contract().commands.items() if facts.streams}
        == {"suite run", "suite resume", "campaign run", "campaign resume", "campaign canary"}
    )


def test_every_exit_code_of_an_error_is_explained() -> None:
    known = EXIT_CODES | PASSING_EXIT_CODES
    assert not {code: facts.exit_code for code, facts in contract().codes.items() if facts.exit_code not in known}


def members() -> dict[str, list[str]]:
    """Return every document member with its descriptions."""
    found: dict[str, list[str]] = {}
    for schema in (*contract().schemas.values(), *(each.json_schema for each in contract().stored.values())):
        for definition in schema.get("$defs", {}).values():
            for name, member in definition.get("properties", {}).items():
                found.setdefault(name, []).append(member.get("description", ""))
    return found


def test_glossary_entries_are_used_and_members_described() -> None:
    found = members()
    assert not set(NOUNS) - found.keys()
    texts = [text for name, each in found.items() if name not in ("schema", "schema_version") for text in each]
    assert sum(map(bool, texts)) / len(texts) > 0.75


def test_stored_documents_have_a_location_and_meaning() -> None:
    for name, facts in contract().stored.items():
        assert len(facts.at) > 8, name
        assert len(facts.meaning) > 20, name
        assert facts.json_schema, name
