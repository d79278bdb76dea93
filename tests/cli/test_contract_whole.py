"""The contract leaves nothing out: what the source names, `proofbox contract` lists, and once."""

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
    """What the source says, and where it says it first."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for match in pattern.finditer(path.read_text()):
            found.setdefault(match[1] if pattern.groups else match[0], str(path.relative_to(PACKAGE)))
    return found


def test_every_schema_of_the_source_is_in_the_contract() -> None:
    found = in_source(SCHEMA)
    assert len(found) > 90  # the pattern still finds them
    lacking = {name: where for name, where in found.items() if name not in {**contract().schemas, **contract().stored}}
    assert not lacking


def test_every_code_of_the_source_is_in_the_contract() -> None:
    found = in_source(CODE)
    assert len(found) > 100
    assert not {code: where for code, where in found.items() if code not in contract().codes}


def test_a_schema_is_one_document() -> None:
    assert not contract().schemas.keys() & contract().stored.keys()


def test_every_printed_schema_is_printed_by_a_command() -> None:
    said = {name for facts in contract().commands.values() for name in (*facts.prints, *facts.streams)}
    assert contract().schemas.keys() - said == {"proofbox.error/1"}


def test_commands_that_print_nothing_are_those_that_speak_another_protocol() -> None:
    silent = {path for path, facts in contract().commands.items() if not facts.prints}
    assert silent == {"mcp serve", "mcp proxy", "run"}


def test_what_streams_has_the_flag_and_a_schema() -> None:
    by_flag = {
        path for path, facts in contract().commands.items() if any(each.name == "--jsonl" for each in facts.parameters)
    }
    assert (
        by_flag
        == {path for path, facts in contract().commands.items() if facts.streams}
        == {"suite run", "suite resume"}
    )


def test_every_exit_code_of_an_error_is_explained() -> None:
    known = EXIT_CODES | PASSING_EXIT_CODES
    assert not {code: facts.exit_code for code, facts in contract().codes.items() if facts.exit_code not in known}


def members() -> dict[str, list[str]]:
    """Every member that documents are made of, and what it is said to mean."""
    found: dict[str, list[str]] = {}
    for schema in (*contract().schemas.values(), *(each.json_schema for each in contract().stored.values())):
        for definition in schema.get("$defs", {}).values():
            for name, member in definition.get("properties", {}).items():
                found.setdefault(name, []).append(member.get("description", ""))
    return found


def test_nouns_are_used_and_most_members_are_explained() -> None:
    found = members()
    assert not set(NOUNS) - found.keys()
    texts = [text for name, said in found.items() if name not in ("schema", "schema_version") for text in said]
    assert sum(map(bool, texts)) / len(texts) > 0.75


def test_every_stored_document_says_where_and_what_it_is() -> None:
    for name, facts in contract().stored.items():
        assert len(facts.at) > 8, name
        assert len(facts.meaning) > 20, name
        assert facts.json_schema, name
