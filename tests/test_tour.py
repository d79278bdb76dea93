"""The commands on the pages print exactly the shown output.

`scripts/tour` runs README, the tutorial and the guides: each page in a separate directory, every command in order, and
compares the output with the page. The number of skipped blocks per page is limited here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from blocks import RUN_ELSEWHERE, agrees, blocks, faults, steps, tour_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *(ROOT / path for path in ("README.md", "docs/tutorial.md", "docs/campaigns.md", "docs/probes.md")),
    *sorted((ROOT / "docs/guides").glob("*.md")),
]
# The number of blocks that a page may mark as not run; pages that are not listed may mark no blocks.
LEFT_OUT = {
    "tutorial.md": 1,  # the installation
    "sandbox-an-agent.md": 1,  # a real model
    "measure-a-cli.md": 1,  # a real model
    "migrate-to-a-native-strategy.md": 1,  # a real model
}

NEEDS = {"probes": "limits"}
"""Pages whose commands need more than bubblewrap."""
each_page = pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.needs(NEEDS[page.stem])] if page.stem in NEEDS else []) for page in PAGES],
    ids=lambda page: page.stem,
)


def tour(*words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "scripts/tour.py"), *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=340)


@pytest.mark.needs("bubblewrap", "debian", "git")
@pytest.mark.timeout(360)
@each_page
def test_page_commands_print_the_shown_output(page: Path) -> None:
    done = tour("--check", page)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 steps" not in done.stdout


@pytest.mark.needs("bubblewrap", "debian")
def test_the_tour_for_people_shows_every_step() -> None:
    text = tour_of((ROOT / "README.md").read_text())
    planned = [step for block in blocks(text) if block.runs for step in steps(block.body)]
    done = subprocess.run([ROOT / "scripts/tour"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(planned) >= 10
    assert done.stdout.count("\n$ ") == len(planned)
    assert "Traceback" not in done.stdout + done.stderr


@each_page
def test_every_shell_block_of_a_page_is_run(page: Path) -> None:
    assert not list(faults(page, page.read_text()))


@each_page
def test_number_of_skipped_blocks_is_limited(page: Path) -> None:
    left_out = [f"{page.name}:{each.line}: {each.not_run}" for each in blocks(page.read_text()) if each.not_run]
    assert len(left_out) <= LEFT_OUT.get(page.name, 0), "\n".join(left_out)


def test_most_blocks_are_run() -> None:
    every = [block for page in PAGES for block in blocks(page.read_text()) if block.language in ("console", "python")]
    run = [block for block in every if block.runs or block.title]
    assert len(run) >= 0.85 * len(every)


BAD_PAGES = {
    "indented": "Run:\n\n    proofbox exec -- true\n",
    "sh": "```sh\nproofbox exec -- true\n```\n",
    "another shell": "```zsh\nproofbox exec -- true\n```\n",
    "no language": "```\n$ proofbox exec -- true\n```\n",
    "text": "```text\n$ proofbox exec -- true\n```\n",
    "no prompt": "```console\nproofbox exec -- true\n```\n",
    "nothing shown": "```console\n$ proofbox exec -- true\n…\n```\n",
    "no end": "```console\n$ true\n",
    "in a list": "- so:\n\n  ```console\n  $ true\n  ```\n",
    "no reason": "<!-- not run: later -->\n```console\n$ true\n```\n",
    "no block": "<!-- not run: needs time -->\n```toml\nx = 1\n```\n",
}


@pytest.mark.parametrize("text", BAD_PAGES.values(), ids=BAD_PAGES)
def test_page_without_checkable_output_is_reported(text: str) -> None:
    assert list(faults(Path("page.md"), text))


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("", "said something\n", False),
        ("run-… is here\n", "run-01 is here\n", True),
        ("run-… is here\n", "run-01 is\nhere\n", False),
        ("first\n…\nlast\n", "first\n1\n2\nlast\n", True),
        ("first\n…\n", "other\n1\n", False),
        ("1 (a.b)\n", "1 (aXb)\n", False),
    ],
)
def test_output_matching(expected: str, output: str, same: bool) -> None:
    assert agrees(expected, output) is same


@pytest.mark.needs("bubblewrap")
def test_page_with_wrong_output_fails(tmp_path: Path) -> None:
    """The runner detects wrong output, silent failures and an exited shell, and ends background processes."""
    page = tmp_path / "page.md"
    page.write_text(
        '```toml title="made/here.txt"\nx = 1\n```\n\n'
        "```console\n$ cat made/here.txt\nx = 1\n$ sleep 600 &\n$ printf 'one\\ntwo'\n…\ntwo\n```\n\n"
        "```python\nimport os\n```\n\n```python\nassert os.sep == '/'\n```\n"
    )
    good = tour("--check", page)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "6 steps, 0 differ" in good.stdout
    for wrong in ("$ echo 1\n2\n", "$ false\n", "$ exit 0\n$ echo 1\n1\n"):
        page.write_text(f"```console\n{wrong}```\n")
        assert tour("--check", page).returncode == 1, wrong
    page.write_text("```python\nraise SystemExit(3)\n```\n")
    assert tour("--check", page).returncode == 1


def test_only_commands_tested_elsewhere_are_skipped() -> None:
    assert RUN_ELSEWHERE.match("./scripts/demo --codex")
    assert not RUN_ELSEWHERE.match("./scripts/setup")
    assert (ROOT / "tests/cli/test_demo.py").is_file()
