"""Notes on attempts: beside the bundle, bounded, and removed with their run."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

import proofbox
from proofbox import BundleWriter
from proofbox.core.clock import ManualClock
from proofbox.errors import BundlePathRefused, UsageError
from proofbox.evidence.bundle.paths import STATUS, enclosing, is_inside_bundle
from proofbox.viewer import annotations as module
from proofbox.viewer.annotations import add_note, notes_of


@pytest.fixture
def run(out: Path) -> Path:
    with BundleWriter.create(out, run_id="run-old") as made, made.nested("attempts/a.1.e1"):
        pass
    return made.path


def test_notes_are_beside_the_bundle_and_belong_to_one_attempt(run: Path) -> None:
    clock = ManualClock(datetime(2026, 1, 2, tzinfo=UTC))
    note = add_note(run / "attempts" / "a.1.e1", " look here ", step=2, tags="flaky, flaky reviewed", clock=clock)
    assert (note.path, note.step, note.text, note.tags) == ("attempts/a.1.e1", 2, "look here", ("flaky", "reviewed"))
    assert notes_of(run / "attempts" / "a.1.e1") == [note]
    assert notes_of(run) == []
    assert proofbox.verify(run).ok, "the bundle is unchanged"


def test_notes_are_bounded(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, tags in (("", ""), ("x" * 4001, ""), ("x", " ".join(map(str, range(11)))), ("x", "t" * 41)):
        with pytest.raises(UsageError):
            add_note(run, text, step=None, tags=tags)
    monkeypatch.setattr(module, "MAX_BYTES", 300)
    add_note(run, "x", step=None, tags="")
    with pytest.raises(UsageError, match="have reached"):
        add_note(run, "x" * 250, step=None, tags="")


def test_link_in_place_of_the_notes_is_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    Path(f"{run}.notes.jsonl").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        add_note(run, "x", step=None, tags="")
    assert (tmp_path / "target").read_text() == ""


def test_dangling_link_in_place_of_the_notes_creates_nothing(run: Path, tmp_path: Path) -> None:
    Path(f"{run}.notes.jsonl").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic"):
        add_note(run, "x", step=None, tags="")
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("line", [b'{"torn', b"[]", b"\xff", b'{"schema_version":"proofbox.annotation/99"}', b"{}\n"])
def test_line_that_cannot_be_read_hides_no_other_note(run: Path, line: bytes) -> None:
    first = add_note(run, "first", step=None, tags="")
    with Path(f"{run}.notes.jsonl").open("ab") as file:
        file.write(line)
    assert notes_of(run) == [first]
    add_note(run, "second", step=None, tags="")
    assert [note.text for note in notes_of(run)] == ["first", "second"]


def test_status_in_a_directory_further_up_does_not_move_the_notes(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "shared" / "mine" / "out", run_id="run-1") as made:
        made.nested("attempts/a.1.e1").commit()
    note = add_note(made.path, "mine", step=None, tags="")
    (tmp_path / "shared" / STATUS).write_text("{}")
    assert notes_of(made.path) == [note]
    assert enclosing(made.path / "attempts" / "a.1.e1") == str(made.path)
    assert is_inside_bundle(tmp_path / "shared" / "mine"), "anywhere below a status, for what must not be in a bundle"


def test_bundle_is_not_nested_deeper_than_its_run_is_searched(out: Path) -> None:
    with BundleWriter.create(out, run_id="run-deep") as made:
        with pytest.raises(BundlePathRefused, match="at most 2 directories"):
            made.nested("a/b/c")
        with made.nested("a/b") as inner:
            assert enclosing(inner.path) == str(made.path)


def test_gc_removes_the_notes_with_their_run(run: Path, out: Path) -> None:
    add_note(run, "old", step=None, tags="")
    with BundleWriter.create(out, run_id="run-new"):
        pass
    proofbox.collect_garbage(out, older_than=0)
    assert sorted(name for name in os.listdir(out) if name.startswith("run-")) == ["run-new"]
