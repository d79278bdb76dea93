"""The public names have the types that their users rely on, as a type checker sees the installed package."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import proofbox

ROOT = Path(__file__).resolve().parents[2]
USES = Path(__file__).with_name("sdk_uses.py")


def test_uses_of_the_public_names_have_the_stated_types() -> None:
    argv = [sys.executable, "-m", "mypy", "--warn-unused-ignores", str(USES)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_function_is_used() -> None:
    text = USES.read_text()
    functions = [name for name in proofbox.__all__ if inspect.isroutine(getattr(proofbox, name))]
    assert functions
    assert [name for name in functions if f"proofbox.{name}(" not in text] == []
