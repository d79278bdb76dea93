"""A bundle is replaced while it is read: readers get the bundle that was checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from proofbox import BundleWriter, load_bundle
from proofbox.errors import BundleCorrupt, BundleError
from proofbox.evidence.bundle.reader import as_bundle, load_visiting
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.check import BundleCheck, check_bundle


def point(link: Path, target: Path) -> None:
    """Make `link` name `target`, in one step."""
    beside = link.with_name(link.name + ".new")
    beside.symlink_to(target)
    beside.rename(link)


def made(out: Path, output: str) -> Path:
    with BundleWriter.create(out) as run:
        run.write_json("result.json", {"output": output})
        with run.nested("attempts/a") as inner:
            inner.write_json("result.json", {"output": output})
    return run.path


def test_a_loaded_bundle_is_read_where_it_was_checked(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one", "one"), made(tmp_path / "other", "other")
    point(tmp_path / "link", one)
    bundle = load_bundle(tmp_path / "link")
    point(tmp_path / "link", other)
    assert bundle.read_json("result.json") == {"output": "one"}
    assert bundle.nested["attempts/a"].read_json("result.json") == {"output": "one"}
    other.rename(tmp_path / "elsewhere")
    assert bundle.read_json("attempts/a/result.json") == {"output": "one"}


@pytest.mark.parametrize("flipped", ["bundle", "nested"])
def test_swapped_directories_never_mix_two_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flipped: str
) -> None:
    one, other = made(tmp_path / "one", "one"), made(tmp_path / "other", "other")
    link = tmp_path / "link"
    really_open = os.open
    when = total = 1
    while when <= total:
        opened = 0

        def counted_open(*args: Any, at: int = when, **options: Any) -> int:
            nonlocal opened
            opened += 1
            if opened == at:
                if flipped == "bundle":
                    point(link, other)
                else:
                    (one / "attempts").rename(tmp_path / "held")
                    (other / "attempts").rename(one / "attempts")
            return really_open(*args, **options)

        point(link, one)
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", counted_open)
            try:
                bundle = load_bundle(link)
                output = [bundle.read_json("result.json"), bundle.nested["attempts/a"].read_json("result.json")]
            except BundleError:
                output = []
        total = opened
        if flipped == "nested" and opened >= when:
            (one / "attempts").rename(other / "attempts")
            (tmp_path / "held").rename(one / "attempts")
            assert output in ([], [{"output": "one"}, {"output": "one"}])
        assert output in ([], [{"output": "one"}] * 2, [{"output": "other"}] * 2), f"a flip before open {when}"
        when += 1
    assert total > 5


def test_promotion_uses_the_loaded_bundle(tmp_path: Path) -> None:
    one, other = made(tmp_path / "one", "one"), made(tmp_path / "other", "other")
    point(tmp_path / "link", one)
    bundle = load_bundle(tmp_path / "link")
    point(tmp_path / "link", other)
    promotion = emit_promotion(bundle, output=tmp_path / "packet.json")
    assert promotion.document["bundle"]["index"]["sha256"] == bundle.index_sha256


def test_visit_reads_what_was_checked_and_opens_no_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path / "out", "one")
    really_open, opened = os.open, list[str]()
    read = []

    def noted_open(path: Any, *args: Any, **options: Any) -> int:
        opened.append(os.path.basename(path))
        return really_open(path, *args, **options)

    def visit(outer: BundleCheck, place: str, inner: BundleCheck) -> None:
        (run / place / "result.json").write_text("changed")
        bundle = as_bundle(inner)
        read.append((outer.index_sha256, place, bundle.read_json("result.json"), bundle))

    monkeypatch.setattr(os, "open", noted_open)
    bundle = load_visiting(run, visit)
    assert [each[:3] for each in read] == [(bundle.index_sha256, "attempts/a", {"output": "one"})]
    assert opened.count("result.json") == 2  # of the run, and of its attempt
    with pytest.raises(BundleCorrupt, match="has changed"):
        read[0][3].read_bytes("result.json")
    assert not any(found.contents for _, found in check_bundle(str(run), chains=True).every())


def test_bundle_that_is_not_the_listed_one_is_not_visited(tmp_path: Path) -> None:
    run, other = made(tmp_path / "out", "one"), made(tmp_path / "other", "other")
    (run / "attempts").rename(tmp_path / "held")
    (other / "attempts").rename(run / "attempts")
    visited: list[str] = []
    with pytest.raises(BundleCorrupt):
        load_visiting(run, lambda outer, place, inner: visited.append(place))
    assert visited == []


def test_equal_documents_are_parsed_once_and_wrong_ones_are_refused_each_time(tmp_path: Path) -> None:
    large = "x" * 5000
    outputs = {"a": "one", "b": "one", "c": "wrong", "d": "two", "e": "wrong", "f": "one", "g": large, "h": large}
    with BundleWriter.create(tmp_path) as run:
        for name, output in outputs.items():
            with run.nested(f"attempts/{name}") as inner:
                inner.write_json("result.json", {"output": output})
    parsed: list[str] = []

    def parse(document: dict[str, str]) -> tuple[str, ...]:
        parsed.append(document["output"])
        if document["output"] == "wrong":
            raise ValueError(document["output"])
        return (document["output"],)

    read: dict[str, Any] = {}

    def visit(_: BundleCheck, place: str, inner: BundleCheck) -> None:
        bundle = as_bundle(inner)
        try:
            read[place] = bundle.read_as("result.json", parse)
        except ValueError as error:
            read[place] = str(error)
        assert bundle.read_as("result.json", len) == 1  # results of another function are kept apart

    bundle = load_visiting(run.path, visit)
    assert read == {f"attempts/{name}": "wrong" if name in "ce" else (output,) for name, output in outputs.items()}
    assert parsed == ["one", "wrong", "two", "wrong", large, large]
    (run.path / "attempts/a/result.json").write_text("changed")
    with pytest.raises(BundleCorrupt, match="has changed"):
        bundle.nested["attempts/a"].read_as("result.json", parse)


def test_little_content_waits_in_memory_to_be_visited(tmp_path: Path) -> None:
    names = [f"attempts/{number:02}" for number in range(60)]
    with BundleWriter.create(tmp_path) as run:
        for name in names:
            with run.nested(name) as inner:
                inner.write_bytes("output.txt", name.encode() * 10_000)
    visited, sizes = list[str](), list[int]()

    def visit(outer: BundleCheck, place: str, inner: BundleCheck) -> None:
        assert as_bundle(inner).read_bytes("output.txt") == place.encode() * 10_000
        visited.append(place)
        sizes.append(sum(len(data) for each in outer.nested.values() for data in each.contents.values()))

    load_visiting(run.path, visit)
    assert visited == names
    assert 2_000_000 < max(sizes) < 5_000_000  # of more than six million bytes
