"""The commands in AGENTS.md and the skill are valid, and the skill's recipes work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import commandlines
import pytest

from proofbox.cli import COMMANDS
from proofbox.cli.output import EXIT_CODES, PASSING_EXIT_CODES
from proofbox.errors import error_classes

ROOT = Path(__file__).resolve().parent.parent
SKILL = ROOT / "skills/proofbox/SKILL.md"
PAGES = [SKILL, ROOT / "AGENTS.md", ROOT / "ARCHITECTURE.md"]
RECIPE = re.compile(r"<!-- run -->\n```sh\n(.*?)```\n", re.DOTALL)
PLACEHOLDERS = {"proofbox COMMAND --help"}


def lines() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = re.sub(r"<<'END'\n.*?\nEND\n", "\n", page.read_text(), flags=re.DOTALL)
        for line in commandlines.in_markdown(text):
            yield page.name, line


@pytest.mark.parametrize(("page", "line"), [pytest.param(*each, id=f"{each[0]}: {each[1][:60]}") for each in lines()])
def test_every_command_line_parses(page: str, line: str) -> None:
    mentioned = {command.path for command in COMMANDS}  # a command's name alone, in running text
    for words in commandlines.invocations(line):
        if line not in PLACEHOLDERS and " ".join(words) not in mentioned:
            commandlines.refuse_unknown(words)


def test_commands_are_found_on_every_page() -> None:
    """The patterns find commands on each page, and most command groups in the skill."""
    found = list(lines())
    assert {page for page, _ in found} == {page.name for page in PAGES}
    groups = {words[0] for _, line in found for words in commandlines.invocations(line)}
    known = {command.path.split()[0] for command in COMMANDS}
    assert groups <= known | {"COMMAND"}
    assert len(groups & known) >= 15


def test_skill_lists_every_exit_code() -> None:
    text = SKILL.read_text()
    listed = {int(code): meaning for code, meaning in re.findall(r"^\| (\d+) \| ([^|]+?) \|", text, re.MULTILINE)}
    assert listed.keys() == EXIT_CODES.keys()
    assert all(words.partition(":")[0] in listed[code] for code, words in EXIT_CODES.items())
    assert all(str(code) in text for code in PASSING_EXIT_CODES)
    passing = re.search(r"^(`exec`.*) end as the command inside does", text, re.MULTILINE)
    assert passing is not None
    assert set(re.findall(r"`([^`]+)`", passing[1])) == {each.path for each in COMMANDS if each.passes_exit_code}


def test_error_codes_on_the_pages_exist() -> None:
    known = {kind.code for kind in error_classes()}
    areas = {code.partition("_")[0] for code in known}
    listed = {
        word
        for page in PAGES
        for word in re.findall(r"`([A-Z]+_[A-Z_]+)`", page.read_text())
        if word.partition("_")[0] in areas and not word.startswith(("PROOFBOX_DEBUG", "PROOFBOX_STRATEGIES"))
    }
    assert listed
    assert listed <= known


def test_skill_has_a_name_and_a_description() -> None:
    head = SKILL.read_text().split("---\n")[1]
    assert re.search(r"^name: proofbox$", head, re.MULTILINE)
    description = head.partition("description: >-\n")[2]
    assert 100 < len(description) < 1024


@pytest.mark.needs("bubblewrap", "git", "limits")
@pytest.mark.timeout(300)
def test_skill_recipes_work(tmp_path: Path) -> None:
    """Run all recipes in order in one shell, because they depend on each other."""
    recipes = RECIPE.findall(SKILL.read_text())
    assert len(recipes) >= 8
    project = tmp_path / "project"
    project.mkdir()
    (project / "hello.txt").write_text("hello\n")
    users = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("STATE", "CACHE", "CONFIG")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = "\n".join(["set -eu", *recipes])
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=project,
        env={**os.environ, **users, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert '"pr_url":"http' in done.stdout
    assert not [line for line in done.stdout.splitlines() if '"proofbox.error/1"' in line]
