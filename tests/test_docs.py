"""The documentation site is complete, loads nothing from other hosts, and names only things that exist."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
from blocks import blocks
from diagrams import Diagram, Misfit, draw, every_diagram

import proofbox
from proofbox.cli import COMMANDS, GROUPS
from proofbox.cli.commands.setup.contract import make_contract
from proofbox.sandbox import conformance as sandbox_conformance

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCES = ROOT / "src/proofbox"
DIAGRAMS = every_diagram()


def build(place: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "zensical", "build", "--strict"]
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, timeout=100)


class References(HTMLParser):
    """Collects the references of a page as (attribute, address)."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and (name in ("src", "srcset", "data") or (name == "href" and tag == "link")):
                self.loads.append(value)
            elif value and name == "href" and tag == "a":
                self.leads.append(value)


@pytest.mark.needs("zensical")
def test_site_builds_strictly_from_local_files_only(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))  # one per page, and the 404 page
    wrong = [f"{page.relative_to(site)}: {each}" for page in pages for each in wrong_references(page, site)]
    assert not wrong, "\n".join(wrong)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//|@import", sheet.read_text()), sheet

    # A broken page fails the build, which re-renders only this page. (A missing picture does not fail it;
    # `wrong_references` checks those.)
    (tmp_path / "docs/broken.md").write_text("# x\n\n[a](no-such-page.md) [b](tutorial.md#no-such-anchor)\n")
    broken = build(tmp_path)
    assert broken.returncode != 0
    assert "page does not exist" in broken.stdout + broken.stderr
    assert "anchor does not exist" in broken.stdout + broken.stderr


def wrong_references(page: Path, site: Path) -> Iterator[str]:
    found = References()
    found.feed(page.read_text())
    for address in found.loads:
        if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
            yield f"loads {address}"
    for address in found.loads + found.leads:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or not parts.path:
            continue
        # The 404 page is served at any path, so its references start at the root.
        start = site if page.name == "404.html" else page.parent
        target = start / unquote(parts.path).lstrip("/")
        if not target.exists():
            yield f"leads to {address}, which is not there"


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=lambda page: page.stem)
def test_links_of_top_level_pages_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    local = [unquote(urlsplit(link).path) for link in links if not urlsplit(link).scheme and not link.startswith("#")]
    assert not [path for path in local if not (ROOT / path).exists()]


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert there - named == set()
    assert named - there == set()


def test_design_notes_state_context_decision_and_consequences() -> None:
    expected = ["Context", "Decision", "Consequences"]
    for note in (DOCS / "design").glob("*.md"):
        parts = re.findall(r"^(?:## |\*\*)(Context|Decision|Consequences)\b", note.read_text(), re.MULTILINE)
        assert parts, note.name
        assert parts == expected * (len(parts) // 3), note.name


# Diagrams


def test_committed_diagrams_are_up_to_date() -> None:
    drawn = {f"{diagram.name}.svg": draw(diagram) for diagram in DIAGRAMS}
    kept = {path.name: path.read_text() for path in (DOCS / "diagrams").glob("*.svg")}
    assert kept == drawn, "redraw them: scripts/docs diagrams"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_diagram_is_self_contained_and_names_existing_files(diagram: Diagram) -> None:
    root = ET.fromstring(draw(diagram))  # noqa: S314 (our own)
    assert root.attrib["aria-label"] == diagram.alt
    texts = "".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    assert not re.search(r"https?:", texts)
    assert not [element for element in root.iter() if element.tag.endswith(("image", "style", "script", "use"))]
    for box in diagram.box:
        x, y, width, height = box.at
        assert x + width <= diagram.size[0], box.title
        assert y + height <= diagram.size[1], box.title
        for name in (part for each in box.names for part in each.split(" · ")):
            assert exists(name), f"{diagram.name}: {box.title}: there is no {name}"
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    assert f"diagrams/{diagram.name}.svg" in pages


def exists(name: str) -> bool:
    if name.startswith("proofbox "):
        return name.removeprefix("proofbox ") in {*GROUPS, *(command.path for command in COMMANDS)}
    if "/" in name or name.endswith((".py", ".c")):
        return any(str(path).endswith(f"/{name.rstrip('/')}") for path in SOURCES.rglob("*"))
    return any(f'"{name}"' in path.read_text() for path in SOURCES.rglob("*.py"))


def test_text_too_long_for_its_box_is_an_error() -> None:
    first = DIAGRAMS[0]
    narrow = first._replace(box=(first.box[0]._replace(title="far too long " * 5),), arrow=())
    with pytest.raises(Misfit):
        draw(narrow)


# References from the pages to the source tree


def test_threat_table_names_existing_checks_and_tests() -> None:
    table = (DOCS / "security.md").read_text().partition("## Threats")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and not row.startswith(("| threat", "|---"))]
    assert len(rows) >= 15
    known = known_checks()
    for row in rows:
        threat, attacker, stopped_by, shown_by, _ = row.strip("|").split(" | ")
        names = re.findall(r"`([^`]+)`", shown_by)
        assert all((threat.strip(), attacker.strip(), stopped_by.strip(), names)), row
        assert not set(names) - known, row


def test_table_of_received_files_names_existing_tests() -> None:
    table = (DOCS / "security.md").read_text().partition("## Received files")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and not row.startswith(("| received", "|---"))]
    assert len(rows) >= 12
    known = known_checks()
    for row in rows:
        received, opened_by, effect, shown_by = row.strip("|").split(" | ")
        names = re.findall(r"`([^`]+)`", shown_by)
        assert all((received.strip(), opened_by.strip(), effect.strip(), names)), row
        assert not set(names) - known, row


def known_checks() -> set[str]:
    found = {check.name for check in sandbox_conformance.CHECKS}
    for path in (ROOT / "tests").rglob("test_*.py"):
        found |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    return found


def test_python_on_the_pages_uses_public_names() -> None:
    """The tutorial and the guides are run; on the other pages, at least the names are checked."""
    found = [block for page in DOCS.glob("*.md") for block in blocks(page.read_text()) if block.language == "python"]
    assert found
    for block in found:
        for node in ast.walk(ast.parse(block.body)):
            if isinstance(node, ast.ImportFrom) and node.module == "proofbox":
                assert {name.name for name in node.names} <= set(proofbox.__all__), block.body
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "proofbox":
                assert node.attr in proofbox.__all__, block.body


def test_commands_on_the_in_depth_pages_exist() -> None:
    """These pages show placeholders and cannot be run, so their commands and flags are checked instead."""
    commands = msgspec.to_builtins(make_contract().commands)
    wrong = []
    for page in DOCS.glob("*.md"):
        for line in re.findall(r"^    proofbox (.*)$", page.read_text(), re.MULTILINE):
            words = line.partition("  #")[0].partition(" -- ")[0].split()
            names = [" ".join(words[:count]) for count in (3, 2, 1)]
            command = next((name for name in names if name in commands), None)
            if command is None:
                wrong.append(f"{page.name}: there is no such command: {line}")
                continue
            flags = {parameter["name"] for parameter in commands[command]["parameters"]}
            wrong += [f"{page.name}: {command} has no {word}" for word in words if unknown(word, flags)]
    assert not wrong, "\n".join(wrong)


def unknown(word: str, flags: set[str]) -> bool:
    flag = word.strip("[]").partition("=")[0]
    return flag.startswith("--") and flag not in flags
