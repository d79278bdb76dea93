"""A short command loads only what it needs and ends without delay, and still ends properly."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

# Modules that take long to load and that running a command in a box does not need.
UNNEEDED = (
    *("anyio", "argparse", "asyncio", "base64", "cryptography", "ctypes", "dataclasses", "difflib", "email"),
    *("hashlib", "http.client", "httpx2", "importlib.metadata", "inspect", "ipaddress", "json", "logging"),
    *("msgspec.inspect", "platform", "secrets", "shutil", "ssl", "stamina", "starlette", "tempfile", "termios"),
    *("textwrap", "tomllib", "typing_extensions", "urllib.parse", "urllib.request", "uvicorn"),
    *("proofbox.agents", "proofbox.evidence", "proofbox.lab", "proofbox.workspace"),
    *("proofbox.errors.evidence", "proofbox.errors.lab", "proofbox.errors.workspace"),
    *("proofbox.sandbox.containers", "proofbox.sandbox.egress", "proofbox.sandbox.images"),
    *("proofbox.sandbox.machines", "proofbox.sandbox.providers.docker", "proofbox.cli.help"),
)


def run(script: str, *argv: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, "-c", script, *argv], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout


@pytest.mark.parametrize(
    ("words", "collects"),
    [("report out", False), ("report out --html x", True), ("report out --html=x", True), ("view out", True)],
)
def test_only_commands_without_pages_collect_no_garbage(words: str, collects: bool) -> None:
    script = (
        "import gc, sys; from proofbox.cli import collect_rarely; collect_rarely(sys.argv[1:]); print(gc.isenabled())"
    )
    assert run(script, *words.split()) == f"{collects}\n"


NEEDS_BUBBLEWRAP = pytest.mark.needs("bubblewrap")


@pytest.mark.parametrize(
    "provider",
    ["off", pytest.param("bubblewrap", marks=NEEDS_BUBBLEWRAP), pytest.param("auto", marks=NEEDS_BUBBLEWRAP)],
)
def test_running_a_command_loads_nothing_unneeded(provider: str, tmp_path: Path) -> None:
    script = (
        "import sys; from proofbox.cli import main; code = main(sys.argv[1:]);"
        f"print(sorted(set({UNNEEDED!r}) & set(sys.modules))); sys.exit(code)"
    )
    line = ["exec", "--provider", provider, "--project", str(tmp_path), "--", "true"]
    run(script, *line)  # the first use of a provider on a machine tries it out, in a temporary directory
    assert run(script, *line) == "[]\n"


@NEEDS_BUBBLEWRAP
def test_client_of_a_session_loads_nothing_that_starts_boxes(tmp_path: Path) -> None:
    script = (
        "import sys; from proofbox.cli import main; code = main(sys.argv[1:]);"
        "starting = {'subprocess', 'proofbox.sandbox.selection', 'proofbox.sandbox.providers.bubblewrap'};"
        "print(sorted(starting & set(sys.modules))); sys.exit(code)"
    )
    started = run(script, "session", "start", "--provider", "bubblewrap", "--project", str(tmp_path))
    id, loaded, *_ = started.splitlines()
    assert "subprocess" in loaded
    try:
        assert run(script, "session", "exec", id, "--", "echo", "on") == "on\n[]\n"
    finally:
        stopped = run(script, "session", "stop", id)
    assert stopped.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", [["validate"], ["report"], ["attempt", "list"], ["gc"]])
def test_reading_a_run_loads_nothing_that_talks_to_servers_or_looks_for_plugins(
    command: list[str], tmp_path: Path
) -> None:
    script = (
        "import sys; from proofbox.cli import main; main(sys.argv[1:]);"
        "unneeded = {'http.client', 'importlib.metadata', 'ssl', 'urllib.request'};"
        "print(sorted(unneeded & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_everything_of_the_preloaded_libraries_can_be_used() -> None:
    """Parts of them are loaded when they are used, and other packages can import these parts."""
    script = (
        "import sys; from proofbox.cli.preloading import preload; preload();"
        "later = {'msgspec.inspect', 'platform', 'textwrap', 'typing_extensions', 'urllib.parse'};"
        "assert not later & set(sys.modules);"
        "import msgspec, pathlib, uuid; print(msgspec.json.decode(b'[1]', type=list[int]));"
        "print(pathlib.Path('/a b').as_uri(), msgspec.json.schema(int), msgspec.inspect.type_info(int));"
        "import platform, textwrap, typing_extensions, urllib.parse, msgspec.inspect;"
        "print(platform.python_implementation(), textwrap.dedent('  x'), urllib.parse.quote('a b'));"
        "print(uuid.uuid1().version, msgspec.inspect.type_info(str))"
    )
    assert run(script).splitlines() == [
        "[1]",
        "file:///a%20b {'type': 'integer'} IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None)",
        f"{platform.python_implementation()} x a%20b",
        "1 StrType(min_length=None, max_length=None, pattern=None)",
    ]


def test_only_classes_without_a_docstring_load_inspect() -> None:
    script = (
        "import sys; from proofbox.cli.preloading import preload_dataclasses; preload_dataclasses();"
        "from dataclasses import dataclass, make_dataclass; dataclass(type('A', (), {'__doc__': 'One.'}));"
        "print('inspect' in sys.modules, make_dataclass('B', ['b']).__doc__, 'inspect' in sys.modules)"
    )
    assert run(script) == "False B(b: 'typing.Any') True\n"


def test_preloading_leaves_loaded_modules_as_they_are() -> None:
    script = (
        "import platform, textwrap, urllib.parse; from proofbox.cli.preloading import preload; preload();"
        "import sys; print([sys.modules[each.__name__] is each for each in (platform, textwrap, urllib.parse)])"
    )
    assert run(script) == "[True, True, True]\n"


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
