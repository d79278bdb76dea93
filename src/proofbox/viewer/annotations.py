"""Notes and tags that people add to an attempt or a step: beside the bundle, never in it.

They are the only thing that the viewer writes. A file `RUN.notes.jsonl` holds the notes of a run and its attempts, one
per line; `proofbox gc` removes it with its run.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.documents import require_version, stored
from proofbox.core.files.locks import locked
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import ProofboxError, UsageError
from proofbox.evidence.bundle.paths import enclosing, read_bounded
from proofbox.lab.run.retention import NOTES_SUFFIX

SCHEMA: Final = "proofbox.annotation/1"
MAX_TEXT: Final = 4000
MAX_TAGS: Final = 10
MAX_TAG: Final = 40
MAX_BYTES: Final = 4 << 20
"""Maximum size of the notes of one run."""


@stored(SCHEMA, at="OUT/RUN.notes.jsonl, one per line")
class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A note on an attempt or a step, written by a person. It is not part of the evidence."""

    schema_version: str = SCHEMA
    path: str
    """The path of the bundle in the run's; empty for the run, or for an attempt made by hand."""
    step: int | None = None
    """The number of the step; null: the note is about the whole attempt."""
    text: str
    """What the person wrote."""
    tags: tuple[str, ...] = ()
    written_at: str
    """When it was written, in UTC."""


def notes_of(bundle: Path) -> list[Annotation]:
    """Return the notes on a bundle, oldest first. Lines that cannot be read are left out."""
    file, path = _place(bundle)
    try:
        lines = read_bounded(file, MAX_BYTES).splitlines()
    except OSError:
        return []
    found: list[Annotation] = []
    for line in lines:
        with contextlib.suppress(ProofboxError, msgspec.DecodeError):  # torn, or of another version
            note = parse_note(line)
            if note.path == path:
                found.append(note)
    return found


def parse_note(line: bytes) -> Annotation:
    """Parse a line of a file of notes. Raises VersionUnknown, or msgspec.DecodeError."""
    require_version(parse_json(line, dict), SCHEMA, Path(NOTES_SUFFIX))
    return parse_json(line, Annotation)


def add_note(bundle: Path, text: str, *, step: int | None, tags: str, clock: Clock | None = None) -> Annotation:
    """Append a note. `tags` are separated by commas or spaces. Raises UsageError beyond a limit."""
    words = tuple(dict.fromkeys(tags.replace(",", " ").split()))
    if not text.strip() or len(text) > MAX_TEXT or len(words) > MAX_TAGS or any(len(each) > MAX_TAG for each in words):
        limits = f"1 to {MAX_TEXT} characters, at most {MAX_TAGS} tags of {MAX_TAG} characters"
        raise UsageError(f"a note has {limits}", op="view")
    file, path = _place(bundle)
    now = isoformat((clock or SystemClock()).now())
    note = Annotation(path=path, step=step, text=text.strip(), tags=words, written_at=now)
    line = msgspec.json.encode(note) + b"\n"
    with locked(file):
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a torn line must not spoil this one
                line = b"\n" + line
            if size + len(line) > MAX_BYTES:
                raise UsageError(f"the notes of this run have reached {MAX_BYTES >> 20} MiB", op="view")
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return note


def _place(bundle: Path) -> tuple[Path, str]:
    """Return the file of the notes on a bundle, and the bundle's path in the outermost one."""
    outer = enclosing(bundle)
    inner = os.path.relpath(os.path.realpath(bundle), outer)
    return Path(f"{outer}{NOTES_SUFFIX}"), "" if inner == "." else inner
