"""The programs in README.md run as printed; the first prints what README.md shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
MOST_LINES = 30


@pytest.mark.needs("bubblewrap")
def test_program_that_runs_a_suite_prints_what_the_readme_shows(tmp_path: Path) -> None:
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```\n", README.read_text(), re.DOTALL | re.MULTILINE)
    ((program, output),) = found
    assert "proofbox.run_suite(" in program
    assert len(program.splitlines()) <= MOST_LINES
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == output


@pytest.mark.needs("bubblewrap")
def test_program_with_boxes_workspaces_and_bundles_runs_as_printed(tmp_path: Path) -> None:
    (program,) = re.findall(
        r"^Boxes, workspaces.*?^```python\n(.*?)^```\n", README.read_text(), re.DOTALL | re.MULTILINE
    )
    project = tmp_path / "project"
    project.mkdir()
    (project / "hello.txt").write_text("hello\n")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("bubblewrap 0 False 1")
    assert (project / "evidence").is_dir()
