"""README's tour does what README says, to the letter."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.needs("bubblewrap", "debian")
def test_readme_s_tour_gives_the_output_it_shows() -> None:
    done = subprocess.run([ROOT / "scripts/tour", "--check"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("bubblewrap", "debian")
def test_the_tour_for_people_shows_every_step() -> None:
    done = subprocess.run([ROOT / "scripts/tour"], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n$ ") == 13
    assert "Traceback" not in done.stdout + done.stderr
