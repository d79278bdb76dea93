"""A short command loads only what it needs and ends without delay, and still ends properly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Modules that take long to load and that running a command in a box does not need.
UNNEEDED = (
    *("anyio", "argparse", "asyncio", "base64", "cryptography", "dataclasses", "difflib", "email", "hashlib"),
    *("http.client", "httpx2", "importlib.metadata", "inspect", "json", "logging", "secrets", "shutil", "ssl"),
    *("stamina", "starlette", "tempfile", "tomllib", "typing_extensions", "urllib.request", "uvicorn"),
    *("proofbox.agents", "proofbox.evidence", "proofbox.lab", "proofbox.workspace"),
    *("proofbox.sandbox.images", "proofbox.sandbox.providers.docker", "proofbox.cli.help"),
)


def run(script: str, *argv: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


@pytest.mark.parametrize("provider", ["off", pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))])
def test_running_a_command_loads_nothing_unneeded(provider: str, tmp_path: Path) -> None:
    script = (
        "import sys; from proofbox.cli import main; code = main(sys.argv[1:]);"
        f"print(sorted(set({UNNEEDED!r}) & set(sys.modules))); sys.exit(code)"
    )
    line = ["exec", "--provider", provider, "--project", str(tmp_path), "--", "true"]
    run(script, *line)  # the first use of a provider on a machine tries it out, in a temporary directory
    assert run(script, *line) == "[]\n"


def test_typing_extensions_can_be_imported_later() -> None:
    """msgspec is loaded without it, and other packages need it."""
    script = (
        "import sys; from proofbox.cli import import_msgspec; import_msgspec();"
        "assert 'typing_extensions' not in sys.modules; import msgspec, typing_extensions;"
        "print(msgspec.json.decode(b'[1]', type=list[int]))"
    )
    assert run(script) == "[1]\n"


def test_exit_handlers_run_and_output_is_written() -> None:
    script = (
        "import atexit; from proofbox import cli; atexit.register(print, 'handler');"
        "cli.main = lambda: print('output') or 7; cli.entry()"
    )
    assert run(script, code=7) == "output\nhandler\n"


def test_exit_waits_for_threads() -> None:
    """This thread waits until the main thread has ended, so it is never finished too early for the test."""
    script = (
        "import threading; from proofbox import cli; main = threading.main_thread();"
        "threading.Thread(target=lambda: (main.join(), print('thread', flush=True))).start();"
        "cli.main = lambda: print('output') or 3; cli.entry()"
    )
    assert run(script, code=3) == "output\nthread\n"
