"""Malformed input files, and every command that reads such a file."""

from __future__ import annotations

import io
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

from bad_lines import ANSWERED, REFUSED, Line

DEEP = 100_000


def bad_contents() -> dict[str, bytes]:
    """Return contents that are invalid for every reader: not a document, a key or an archive."""
    chance = random.Random(1)  # noqa: S311 (reproducible on purpose)
    return {
        "empty": b"",
        "blank": b" \n\t\n",
        "nul": b"\0" * 64,
        "binary": chance.randbytes(2000),
        "latin-1": "schéma = 'é'\n".encode("latin-1"),
        "utf-16": '{"schema": "x"}'.encode("utf-16"),
        "half a document": b'{"schema_version": "proofbox.promotion/1", "pa',
        "half a table": b'[suite]\nid = "x',
        "deep lists": b"[" * DEEP,
        "deep objects": b'{"a":' * DEEP,
        "deep tables": b"x = " + b"[" * DEEP + b"]" * DEEP,
        "deep keys": b"[" + b".".join([b"a"] * 3000) + b"]\n",
        "a long number": b'{"schema_version": ' + b"9" * 6000 + b"}",
        "a long number in a table": b"[suite]\nid = " + b"9" * 6000 + b"\n",
        "a huge float": b'{"schema_version": 1e999999}',
        "not a number": b"[suite]\nid = nan\n",
        "a date": b"[suite]\nid = 2020-01-01\n",
        "a list": b"[]",
        "a string": b'"x"',
        "null": b"null",
        "an empty object": b"{}",
        "another version": b'{"schema_version": "proofbox.nothing/99", "schema": "proofbox.nothing/99"}',
        "another version in a table": b'schema_version = "proofbox.nothing/99"\n[suite]\nid = "x"\n',
        "wrong types": b'{"schema_version": [], "payload": 7, "signatures": {}, "appId": {}, "run_id": []}',
        "wrong types in a table": b'suite = "x"\nmission = 7\nimage = [1]\nprovider = {}\nmemory = "much"\n',
        "a lone surrogate": b'{"schema_version": "\\ud800", "appId": "\\ud800"}',
        "twice": b'{"schema_version": "a", "schema_version": "b"}',
        "escapes": b'{"schema_version": "\\u001b[2J\\u202e"}',
        "a key": b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        "a key of another kind": b"-----BEGIN PUBLIC KEY-----\n" + b"QUJD" * 20 + b"\n-----END PUBLIC KEY-----\n",
        "one long line": b"x" * 1_000_000,
    }


def bad_archives() -> dict[str, bytes]:
    def archive(*names: str, content: bytes = b"x") -> bytes:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as made:
            for name in names:
                made.writestr(zipfile.ZipInfo(name), content)
        return held.getvalue()

    good = archive("a.txt", "b.txt")
    return {
        "half an archive": good[: len(good) // 2],
        "no directory": good[:-30],
        "out of it": archive("../../etc/evil"),
        "absolute": archive("/etc/evil"),
        "twice the same": good + good,
        "a wrong length": good.replace(b"x", b"yy", 1),
        "long names": archive("n" * 60_000),
        "not utf-8": archive("a.txt").replace(b"a.txt", b"\xff\xfe\xfd.t"),
        "git": archive(".git/config"),
        "changed inside": bytes(byte ^ (0xFF if 30 < at < 40 else 0) for at, byte in enumerate(good)),
    }


READERS = {
    "suite lint X.toml": REFUSED,
    "suite lint X.json": REFUSED,
    "suite run X.toml --strategies scripted": REFUSED,
    "verify X.json": REFUSED,
    "verify X.promotion.json --key key.pub": REFUSED,
    "promotion verify X.json": REFUSED,
    "promotion verify packet.json --key X.pub": REFUSED,
    "promotion emit out --policy X.json --output e.json": REFUSED,
    "promotion emit out --sign X.pem --output e.json": REFUSED,
    "key show X.pub": REFUSED,
    "bundle show X": REFUSED,
    "images list --catalogue X.toml": ANSWERED,
    "images pull small --catalogue X.toml": REFUSED,
    "backend spec X.json --enterprise-id e --data backend": REFUSED,
    "workspace tools project --capabilities X.toml": ANSWERED,
    "workspace tools project --capabilities X.json": ANSWERED,
    "runtime try --prompt go --workspace folder --strategy scripted --script X.toml": ANSWERED,
    "runtime try --prompt-file X --workspace folder --strategy absent-agent": REFUSED,
    "attempt fork X forked --step 0 --prompt go --out record": REFUSED,
    "deliver plan --app-id a --source X.zip --timeout 0.1": REFUSED,
    "deliver pr --app-id a --source folder --packet X.json --timeout 0.1": REFUSED,
}
# Files at fixed paths: the path, and the commands that read it.
PLACES = {
    "project/.proofbox/config.toml": [
        "exec --project project --provider off -- true",
        "init --project project --trust",
    ],
    "project/.proofbox/images.lock": ["images pull small --project project --catalogue images.toml"],
    ".proofbox/config.toml": ["runtime list", "suite run suite.toml --out out-2 --strategies absent-agent"],
    "home/config/proofbox/config.toml": ["exec --project folder --provider off -- true", "runtime list"],
    "home/config/proofbox/images.toml": ["images list", "images default"],
    ".env": ["deliver plan --app-id a --source folder --timeout 0.1"],
    "out/LATEST": ["verify out", "suite report out", "bundle list out", "attempt list", "gc out", "validate out"],
    "RUN/index.json": ["verify out", "bundle show out", "validate out", "report out", "promotion emit out --output e"],
    "RUN/ledger.db": ["suite report out", "attempt show ok.1", "attempt interrupt ok.1", "gc out --dry-run"],
    "RUN/attempts/ok.1.e1/index.json": ["verify out", "attempt show ok.1", "report out"],
    "RUN/attempts/ok.1.e1/outcome.json": ["attempt explain ok.1", "attempt show ok.1", "validate out"],
}


def lines_for_reader(reader: str, place: Path) -> Iterator[Line]:
    contents = bad_contents() | (bad_archives() if ".zip" in reader else {})
    for why, content in contents.items():
        name = f"bad-{why.replace(' ', '-')}"
        words = [word.replace("X", name, 1) if word.startswith("X") else word for word in reader.split()]
        (file,) = (word for word in words if word.startswith(name))
        (place / file).write_bytes(content)
        yield Line(f"{why} for {reader}", (*words, "--json"), READERS[reader])


def lines_for_pipes(place: Path) -> Iterator[Line]:
    """Yield a line for each reader with a named pipe that has no writer."""
    for reader in READERS:
        words = [word.replace("X", "pipe", 1) if word.startswith("X") else word for word in reader.split()]
        (file,) = (word for word in words if word.startswith("pipe"))
        if not (place / file).exists():
            os.mkfifo(place / file)
        yield Line(f"a pipe for {reader}", (*words, "--json"), REFUSED)


def lines_for_place(name: str) -> Iterator[Line]:
    for words in PLACES[name]:
        head, dashes, command = words.partition(" -- ")
        codes = frozenset({0, 125}) if command else ANSWERED
        yield Line(f"{name} is malformed", (*head.split(), "--json", *(dashes + command).split()), codes)
