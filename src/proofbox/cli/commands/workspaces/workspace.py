"""`workspace`: a directory with history."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, columns, show, write_json
from proofbox.cli.parameters import Parameter
from proofbox.cli.progress import passing_line, watched
from proofbox.core.plurals import counted
from proofbox.core.text import one_line, printable
from proofbox.errors import UsageError, WorkspaceCorrupt, WorkspacePathRefused
from proofbox.workspace.model import Change, Collected, Forgotten, HistoryVerification, SkippedPath, Snapshot, Status

if TYPE_CHECKING:
    from proofbox.workspace.timeline.unified_diff import DiffLine
    from proofbox.workspace.workspace import Workspace

_COLOURS = {"file": "1", "hunk": "36", "added": "32", "removed": "31", "note": "33"}
_SHOWN = 20

Directory = Annotated[Path, Parameter(help="The workspace's directory.")]
SnapshotName = Annotated[str, Parameter(help="A snapshot's id, a prefix of it, a name, or HEAD.")]


class WorkspaceDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace/1"
    workspace: str
    path: str


class SnapshotDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.snapshot/1"
    snapshot: Snapshot


class LogDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_log/1"
    snapshots: tuple[Snapshot, ...]


class StatusDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_status/1"
    status: Status
    """The files compared with the latest snapshot."""


class DiffDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_diff/1"
    changes: tuple[Change, ...]


class RollbackDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.rollback/1"
    id: str
    """The snapshot that was restored."""
    before: str
    """A snapshot of the state before the rollback; roll back to it to undo."""
    restored: tuple[Change, ...]
    """The differences between the two."""
    irreversible_effects: tuple[str, ...]
    """Commands since that snapshot that could reach outside the workspace, where nothing is undone."""
    warning: str
    """A warning if anything is `left`; otherwise empty."""
    left: tuple[SkippedPath, ...]
    """Paths that are in no snapshot and were in the way; they were not changed."""


class VerifyDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_verification/1"
    verification: HistoryVerification
    """The result of reading the whole history."""
    error: ErrorBody | None = None


class WorkspaceGcDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_gc/1"
    collected: Collected
    """What was deleted."""


class ForgetDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.workspace_forget/1"
    forgotten: Forgotten
    """The workspace whose history was deleted."""


def init(
    directory: Directory = Path(),
    /,
    *,
    ignore: Annotated[
        tuple[str, ...], Parameter(name="--ignore", help="A path that is never recorded. Repeatable.")
    ] = (),
    json: flags.Json = False,
) -> int:
    """Start recording a directory's history. The history is stored outside the directory.

    For example:
      proofbox workspace init project --ignore .venv
    """
    from proofbox.workspace.workspace import Workspace

    with Workspace.init(directory, ignore=ignore) as made:
        document = WorkspaceDocument(workspace=made.id, path=str(made.path))
    show(document, lambda: printable(f"{document.path} is a workspace now"), as_json=json)
    return 0


def snapshot(
    directory: Directory = Path(),
    /,
    *,
    message: Annotated[str, Parameter(name=["--message", "-m"], help="A description of this state.")] = "",
    sealed: Annotated[bool, Parameter(name="--sealed", help="Read every file, and sync to disk.")] = False,
    json: flags.Json = False,
) -> int:
    """Record the current state of the files.

    For example:
      proofbox workspace snapshot project -m "before the refactoring"
    """
    with _opened(directory, json=json) as workspace:
        taken = workspace.snapshot(message, sealed=sealed)
    lines = [f"{taken.id} {taken.changed} changed", *_left("not in it", taken.skipped)]
    lines += _left("changed while it was read", taken.unstable)
    show(SnapshotDocument(snapshot=taken), lambda: "\n".join(lines), as_json=json)
    return 0


def log(
    directory: Directory = Path(),
    /,
    *,
    limit: Annotated[int | None, Parameter(name=["--limit", "-n"], help="Show only the latest N entries.")] = None,
    json: flags.Json = False,
) -> int:
    """List the history, newest first.

    For example:
      proofbox workspace log project -n 20
    """
    from proofbox.workspace.workspace import Workspace

    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}", op="workspace log", fix_hints=["--limit 20"])
    with Workspace.open(directory, track=False) as workspace:
        found = tuple(reversed(workspace.history()))[:limit]
    show(LogDocument(snapshots=found), lambda: _history(found), as_json=json)
    return 0


def status(directory: Directory = Path(), /, *, json: flags.Json = False) -> int:
    """Show what has changed since the latest snapshot.

    For example:
      proofbox workspace status project
    """
    with _opened(directory, json=json) as workspace:
        found = workspace.status()
    lines = [printable(found.unfinished)] if found.unfinished else []
    lines.append(f"since {found.head[:12]}:" if found.head else "no snapshot yet")
    lines += [_changes(found.changes) or "nothing changed", *_left("in no snapshot", found.skipped)]
    show(StatusDocument(status=found), lambda: "\n".join(lines), as_json=json)
    return 0


def diff(
    directory: Directory = Path(),
    a: Annotated[str | None, Parameter(help="The old state. Default: the latest snapshot.")] = None,
    b: Annotated[str | None, Parameter(help="The new state. Default: the current files.")] = None,
    /,
    *,
    json: flags.Json = False,
) -> int:
    """Show the differences between two snapshots, or a snapshot and the files. With --json, list only the paths.

    For example:
      proofbox workspace diff project
      proofbox workspace diff project 3f2a 91c0
    """
    from proofbox.workspace.timeline.unified_diff import unified

    if not directory.exists():
        given = shlex.join(["proofbox", "workspace", "diff", ".", str(directory), *filter(None, (a, b))][:6])
        raise WorkspacePathRefused(
            f"{directory} does not exist",
            op="workspace diff",
            fix_hints=[f"if it is a snapshot, give the directory first: {given}"],
        )
    with _opened(directory, json=json) as workspace:
        if json:
            write_json(DiffDocument(changes=tuple(workspace.diff(a, b))))
            return 0
        lines = workspace.compare(a, b, unified)
    for text in map(_coloured, lines) if _in_colour() else (line.text for line in lines):
        print(text)
    if not lines:
        print("no difference")
    return 0


def rollback(directory: Directory, snapshot_id: SnapshotName, /, *, json: flags.Json = False) -> int:
    """Restore the files of a snapshot. The current files are recorded first, so a rollback can be undone.

    For example:
      proofbox workspace rollback project 3f2a
    """
    with _opened(directory, json=json) as workspace:
        done = workspace.rollback(snapshot_id)
    document = RollbackDocument(
        id=done.id,
        before=done.before,
        restored=done.restored,
        irreversible_effects=done.irreversible_effects,
        warning=done.warning,
        left=done.left,
    )
    lines = [f"{len(done.restored)} restored; to undo, roll back to {done.before[:12]}", done.warning]
    lines += _left("left", done.left)
    show(document, lambda: printable("\n".join(line for line in lines if line)), as_json=json)
    return 0


def fork(
    directory: Directory,
    snapshot_id: SnapshotName,
    dest: Annotated[Path, Parameter(help="The new directory.")],
    /,
    *,
    json: flags.Json = False,
) -> int:
    """Create a new workspace with the files of a snapshot.

    For example:
      proofbox workspace fork project HEAD experiment
    """
    from proofbox.workspace.workspace import Workspace

    with (
        Workspace.open(directory, track=False) as workspace,
        workspace.fork(snapshot_id, dest) as made,
    ):
        document = WorkspaceDocument(workspace=made.id, path=str(made.path))
    show(document, lambda: printable(document.path), as_json=json)
    return 0


def verify(directory: Directory = Path(), /, *, json: flags.Json = False) -> int:
    """Verify the stored history by hashing all of it.

    For example:
      proofbox workspace verify project
    """
    from proofbox.workspace.workspace import Workspace

    with Workspace.open(directory, track=False) as workspace:
        found = workspace.verify()
    amount = f"{counted(found.snapshots, 'snapshot')}, {counted(found.objects, 'object')}"
    lines = [f"{'valid' if found.sound else 'DAMAGED'}: {amount}"]
    error = None if found.sound else WorkspaceCorrupt(counted(len(found.problems), "problem"), op="workspace verify")
    show(
        VerifyDocument(ok=found.sound, verification=found, error=ErrorBody.of(error) if error else None),
        lambda: printable("\n".join([*lines, *found.problems])),
        as_json=json,
    )
    return 0 if found.sound else 1


def gc(
    directory: Directory = Path(),
    /,
    *,
    keep: Annotated[int | None, Parameter(name="--keep", help="Keep the latest N entries, and named ones.")] = None,
    json: flags.Json = False,
) -> int:
    """Delete stored data that no snapshot needs; with --keep, also old snapshots.

    For example:
      proofbox workspace gc project --keep 100
    """
    from proofbox.workspace.workspace import Workspace

    with Workspace.open(directory, track=False) as workspace:
        found = workspace.gc(keep=keep)
    dropped = f"{counted(found.snapshots_dropped, 'snapshot')} and {counted(found.objects_dropped, 'object')} dropped"
    text = f"{dropped}, {found.bytes_freed} bytes freed"
    show(WorkspaceGcDocument(collected=found), lambda: text, as_json=json)
    return 0


def adopt(directory: Directory = Path(), /, *, json: flags.Json = False) -> int:
    """Attach a history to the directory that has replaced its workspace, after a restore from a backup or a deletion.

    For example:
      proofbox workspace adopt project
      proofbox workspace rollback project HEAD
    """
    from proofbox.workspace.workspace import Workspace

    with Workspace.adopt(directory, track=False) as workspace:
        document = WorkspaceDocument(workspace=workspace.id, path=str(workspace.path))
    show(document, lambda: printable(f"{document.path} is attached to its history again"), as_json=json)
    return 0


def forget(directory: Directory, /, *, json: flags.Json = False) -> int:
    """Delete a directory's history and effect log, but not its files. The directory need not exist any more.

    For example:
      proofbox workspace forget project
    """
    from proofbox.workspace.timeline.maintenance import forget as drop

    found = drop(directory)
    text = f"{found.path} is no longer a workspace"
    if found.shared:
        text += "; snapshots that its forks share are still stored"
    show(ForgetDocument(forgotten=found), lambda: printable(text), as_json=json)
    return 0


@contextmanager
def _opened(directory: Path, *, json: bool) -> Iterator[Workspace]:
    """Open a workspace for a scan of all files, and show the number of files read at a terminal."""
    from proofbox.workspace.workspace import Workspace

    with (
        passing_line(shown=watched(as_json=json)) as show_line,
        Workspace.open(directory, track=False, on_progress=lambda count: show_line(f"{count} files read")) as workspace,
    ):
        yield workspace


def _in_colour() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _coloured(line: DiffLine) -> str:
    colour = _COLOURS.get(line.kind)
    return f"\x1b[{colour}m{line.text}\x1b[0m" if colour else line.text


def _left(what: str, found: tuple[SkippedPath, ...]) -> list[str]:
    lines = [one_line(f"{what}: {each.path} ({each.reason})") for each in found[:_SHOWN]]
    return lines + ([f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])


def _history(found: tuple[Snapshot, ...]) -> str:
    rows = [("SNAPSHOT", "CREATED", "KIND", "CHANGED", "MESSAGE")]
    rows += [(s.id[:12], s.created_at[:19] + "Z", s.kind, str(s.changed), s.message[:80]) for s in found]
    return columns(rows)


def _changes(found: tuple[Change, ...]) -> str:
    lines = (f"{c.kind:<9} {c.path}" + (f" (was {c.old_path})" if c.old_path else "") for c in found)
    return "\n".join(map(one_line, lines))
