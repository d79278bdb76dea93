"""The directory that bad command lines run in, with valid inputs for every command and some invalid paths."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bad_lines import Line

from proofbox.cli import main
from proofbox.errors import error_classes

SUITE = """
[suite]
id = "small"
[[mission]]
id = "ok"
prompt = "say it"
verify = { commands = [{ run = "true" }] }
[[mission.script.step]]
say = "done"
"""
CATALOGUE = f"""
schema_version = "proofbox.images/1"
[[image]]
name = "small"
arch = "x86_64"
url = "http://127.0.0.1:9/small.tar.gz"
sha256 = "{"0" * 64}"
default = true
"""


@contextmanager
def made_world() -> Iterator[Path]:
    """Create a world-readable directory with everything that `bad_lines.GOOD` names, as the working directory."""
    top = Path(tempfile.mkdtemp(prefix="world-")).resolve()
    top.chmod(0o755)
    place = top / "two" / "down"  # a line may refer to its parent directories
    place.mkdir(parents=True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            enter(place, patch)
            furnish(place)
            yield place
    finally:
        shutil.rmtree(top)


def enter(place: Path, patch: pytest.MonkeyPatch) -> None:
    patch.chdir(place)
    for name in ("STATE", "CACHE", "CONFIG"):
        patch.setenv(f"XDG_{name}_HOME", str(place / "home" / name.lower()))


def furnish(place: Path) -> None:
    (place / "file.txt").write_text("hello\n")
    for name in ("folder", "project"):
        (place / name).mkdir()
        (place / name / "hello.txt").write_text("hello\n")
    (place / "dangling").symlink_to("nowhere")
    (place / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    (place / "suite.toml").write_text(SUITE)
    (place / "images.toml").write_text(CATALOGUE)
    (place / "spec.json").write_text(json.dumps({"appId": "shop", "appName": "Shop", "description": "a shop"}))
    for words in (
        ["workspace", "init", "project"],
        ["workspace", "snapshot", "project"],
        ["suite", "run", "suite.toml", "--out", "out", "--strategies", "scripted"],
        ["key", "new", "key"],
        ["promotion", "emit", "out", "--sign", "key", "--output", "packet.json"],
        ["bundle", "push", "out", "store"],
    ):
        assert main(words) == 0, words


@cache
def known_codes() -> frozenset[str]:
    return frozenset(each.code for each in error_classes())


def problems(line: Line, code: int, out: bytes, err: bytes) -> list[str]:
    """Return the problems in the result of a bad command line."""
    found = [] if code in line.codes else [f"exit {code}, not one of {sorted(line.codes)}"]
    marks = (
        b"Traceback",
        b'File "',
        *([b"PROOFBOX_INTERNAL"] if code else []),
    )  # a successful list of codes may contain it
    found += [f"{mark.decode()} is shown" for mark in marks if mark in out + err]
    if line.as_json and not (code == 0 and line.words[:2] == ("mcp", "serve")):  # its stdout carries the protocol
        found += problems_of_document(out, refused=code != 0)
    elif code in (2, 3, 4, 125) and b"code: " not in err:
        found.append("no code on stderr")
    if b"\x1b" in err:
        found.append("an escape on stderr")
    return found


def problems_of_document(out: bytes, *, refused: bool) -> list[str]:
    try:
        document: Mapping[str, Any] = json.loads(out)
    except ValueError as problem:
        return [f"stdout is not one JSON document: {problem}"]
    if not str(document.get("schema", "")).startswith("proofbox.") or not isinstance(document.get("ok"), bool):
        return ["the document has no schema, or no ok"]
    if document["ok"] or not refused:
        return []
    error = document.get("error")
    if not isinstance(error, dict):
        return ["refused, and the document has no error"]
    found = [] if error.get("code") in known_codes() else [f"an unknown code: {error.get('code')}"]
    return found + [f"no {name}" for name in ("message", "fix_hints") if not error.get(name)]


def described(line: Line, found: list[str], out: bytes, err: bytes) -> str:
    shown = [word if len(word) < 80 else f"{word[:40]}… ({len(word)})" for word in line.words]
    output = (out + err).decode(errors="replace")
    return f"{line.why}: {shown}\n    {'; '.join(found)}\n    {output[:600]}"
