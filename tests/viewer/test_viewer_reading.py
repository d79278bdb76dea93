"""Reading for display: terminals, parts of long artifacts, selections of long runs, timelines."""

from __future__ import annotations

import html
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from hostile import BIDI, TERMINAL
from hypothesis import given
from hypothesis import strategies as st
from viewer_fixtures import attempt_page

from proofbox import BundleWriter
from proofbox.core.text import printable
from proofbox.errors import BundleCorrupt
from proofbox.viewer import compare
from proofbox.viewer.ansi import styled
from proofbox.viewer.attempts import read_attempt
from proofbox.viewer.compare import compare_attempts
from proofbox.viewer.reading import EvidenceCache, OpenedEvidence, open_evidence
from proofbox.viewer.rendering import Renderer, assets, diff_lines, terminal
from proofbox.viewer.runs import AttemptRow, RunView
from proofbox.viewer.selection import ROWS, Query, run_values, select
from proofbox.viewer.timeline import PAGE, read_timeline

CLASSES = re.compile(r"(bold|faint|italic|underline|inverse|[fb]g(1[0-5]|[0-9])| )*")


@given(st.text(st.sampled_from("\x1b[0123456789;mKab<&\r\n\u202e\x00é"), max_size=80))
def test_terminal_text_is_complete_visible_and_has_known_classes(text: str) -> None:
    pieces = list(styled(text))
    plain = re.sub(r"\x1b\[[0-9;]{0,64}m", "", text.replace("\r\n", "\n"))
    shown = "".join(piece.text for piece in pieces)
    assert shown == "".join(printable(part) for part in re.split("(\n)", plain))
    assert all(CLASSES.fullmatch(piece.classes) for piece in pieces)
    assert "<a" not in terminal(text)


def test_colours_of_a_terminal_become_classes() -> None:
    assert [tuple(each) for each in styled("a\x1b[1;31mb\x1b[22;92mc\x1b[38;5;200md\x1b[48;5;3me\x1b[0mf")] == [
        ("", "a"),
        ("bold fg1", "b"),
        ("fg10", "c"),
        ("", "d"),
        ("bg3", "e"),
        ("", "f"),
    ]
    assert r"\x1b[2J" in terminal(TERMINAL)
    assert r"\u202e" in terminal(BIDI)
    assert diff_lines("+<b>\n-x") == '<span class="add">+&lt;b&gt;</span><span class="del">-x</span>'


def contrast(one: str, two: str) -> float:
    """Return the contrast of two colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_every_combination_of_terminal_styles_is_readable(dark: bool) -> None:
    style = re.sub(r"/\*.*?\*/", "", assets()["viewer.css"].decode(), flags=re.DOTALL).replace("#fff;", "#ffffff;")
    light_part, _, dark_part = style.partition("prefers-color-scheme: dark")
    colours: dict[str, str] = {}
    for part in (light_part, dark_part.partition("\n}")[0] if dark else ""):
        colours |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
    names = ["inverse", *(f"{kind}{number}" for kind in ("fg", "bg") for number in range(16))]
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", style)
    for classes in itertools.product(["", "inverse"], ["", *names[1:17]], ["", *names[17:]]):
        text, ground = "ink", "paper"
        for selectors, body in rules:
            if {each.strip()[1:] for each in selectors.split(",")} & set(filter(None, classes)):
                text = (re.findall(r"\bcolor: var\(--([\w-]+)\)", body) or [text])[-1]
                ground = (re.findall(r"\bbackground: var\(--([\w-]+)\)", body) or [ground])[-1]
        assert contrast(colours[text], colours[ground]) >= 3, (classes, text, ground)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    with BundleWriter.create(tmp_path, run_id="run-long") as made:
        made.write_bytes("big.txt", b"".join(b"%d\n" % n for n in range(400_000)))
        with made.open_log("events.jsonl") as log:
            for number in range(1000):
                usage = {"event": "usage", "source": "gateway", "total": {"input_tokens": number * 10}}
                log.append({"at_ms": number * 1000.0 + (5000 if number > 700 else 0), "thread": "t", **usage})
    return made.path


def test_part_of_an_artifact_is_checked_as_a_whole(bundle: Path) -> None:
    evidence = open_evidence(bundle)
    assert evidence.part("big.txt", 0, 4) == b"0\n1\n"
    whole = (bundle / "big.txt").read_bytes()
    assert evidence.part("big.txt", len(whole) - 7, 100) == b"399999\n"
    (bundle / "big.txt").write_bytes(whole[:-2] + b"0\n")
    with pytest.raises(BundleCorrupt):
        evidence.part("big.txt", 0, 4)


def test_check_is_repeated_only_after_a_change(bundle: Path) -> None:
    cache = EvidenceCache()
    first = cache.open(bundle)
    assert cache.open(bundle) is first
    assert first.integrity == "valid"
    (bundle / "extra.txt").write_text("x")
    again = cache.open(bundle)
    assert (again.integrity, [each.code for each in again.findings]) == ("invalid", ["unlisted"])


def test_timeline_is_paged_and_shows_idle_time_and_model_requests(bundle: Path) -> None:
    evidence = open_evidence(bundle)
    first = read_timeline(evidence)
    assert (first.first, first.next, first.total, len(first.entries)) == (0, PAGE, 1000, PAGE)
    assert (first.entries[1].title, first.entries[1].facts) == (
        "Model request seen by the gateway",
        ("+10 tokens", "10 tokens in total"),
    )
    later = read_timeline(evidence, 650)
    idle = [entry for entry in later.entries if entry.kind == "idle"]
    assert [entry.title for entry in idle] == ["6.0 s without an event"]
    last = read_timeline(evidence, 1000 - PAGE)
    assert (last.next, last.entries[-1].line) == (None, 999)


def test_deep_events_of_a_forged_log_are_shown_without_their_depth(tmp_path: Path) -> None:
    lines = [
        b'{"event":"usage","item":"i","total":%b%b}\n' % (b"[" * depth, b"]" * depth) for depth in (2, 900, 100_000)
    ]
    with BundleWriter.create(tmp_path, run_id="run-deep") as made:
        made.write_bytes("events.jsonl", b"".join(lines) + b'{"event":"tool_call","item":"i"}\n')
        made.write_bytes("steps.jsonl", lines[-1])
    entries = read_timeline(open_evidence(made.path)).entries
    assert [entry.kind for entry in entries] == ["model", "model", "other", "tool"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_usage_grows_per_thread_which_lines_state_if_it_changes(tmp_path: Path, first: int) -> None:
    with BundleWriter.create(tmp_path, run_id="run-threads") as made, made.open_log("events.jsonl") as log:
        threads = [{"thread": "child"}, {"thread": "main"}, {"thread": "child"}, {}]
        for at_ms, (thread, tokens) in enumerate(zip(threads, [100, 10, 120, 135], strict=True)):
            log.append({"event": "usage", "at_ms": at_ms, "total": {"input_tokens": tokens}, **thread})
    shown = ["100 tokens in total", "10 tokens in total", "+20 tokens" if first == 0 else "120 tokens in total"]
    entries = read_timeline(open_evidence(made.path), first).entries
    assert [entry.facts[0] for entry in entries] == [*shown[first:], "+15 tokens"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_outputs_and_steps_are_joined_by_occurrence_of_their_id(tmp_path: Path, first: int) -> None:
    commands = ["pytest", "edit", "curl"]
    with BundleWriter.create(tmp_path, run_id="run-reuse") as made:
        with made.open_log("events.jsonl") as events, made.open_log("steps.jsonl") as steps:
            for number, command in enumerate(commands, 1):
                kind = "file_change" if command == "edit" else "tool_call"
                events.append({"event": kind, "at_ms": number, "item": "x", "tool": "command", "command": command})
                steps.append({"step": {"n": number, "kind": kind, "item": "x"}})
            events.append({"event": "item_started", "at_ms": 9, "item": "x", "command": "never ends"})
        with made.open_log("tool.calls.jsonl") as calls:
            for number in (1, 3):
                calls.append({"call": "x", "output_bytes": number})
    entries = read_timeline(open_evidence(made.path), first).entries
    joined = [(each.step.step.n, each.call and each.call.output_bytes) for each in entries if each.step]
    assert joined == [(1, 1), (2, None), (3, 3)][first:]
    assert entries[-1].text == "never ends", "not hidden by an earlier call with its id"


@pytest.mark.parametrize(("name", "command"), [("a b; id", "verify '{}'"), ("run-1\ntouch x\n", ""), ("a\x1b[2J", "")])
def test_command_to_copy_is_quoted_and_has_one_visible_line(tmp_path: Path, name: str, command: str) -> None:
    with BundleWriter.create(tmp_path, run_id="run-1") as made:
        made.write_json("attempt.json", {"schema_version": "proofbox.attempt/2", "attempt_id": "a", "states": []})
    place = made.path.rename(tmp_path / name)
    page = attempt_page(open_evidence(place))
    copied = [html.unescape(each) for each in re.findall('data-copy="([^"]*)"', page)]
    assert copied == ([f"proofbox {command.format(place)}"] if command else [])


def attempt(out: Path, name: str, *steps: dict[str, Any]) -> OpenedEvidence:
    with BundleWriter.create(out, run_id=name) as made, made.open_log("steps.jsonl") as log:
        for number, step in enumerate(steps, 1):
            line = {"step": {"n": number, "kind": "tool_call", "command": "make", **step}}
            log.append({**line, **{key: step.pop(key) for key in [*step] if key.startswith("diff")}})
            log.append({"turn_end": {"turn": "t"}})
    return open_evidence(made.path)


LEFT_OUT = {"diff_omitted": "it has 9999999 bytes"}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"diff_sha256": "d"}, {"diff_sha256": "d"}, True),
        ({"diff_sha256": "d"}, {"diff_sha256": "e"}, False),
        ({"changed": 5}, {"changed": 9000}, False),
        ({**LEFT_OUT, "snapshot_after": "a"}, {**LEFT_OUT, "snapshot_after": "a"}, True),
        ({**LEFT_OUT, "snapshot_after": "a"}, {**LEFT_OUT, "snapshot_after": "b"}, False),
        ({**LEFT_OUT, "snapshot_before": "a"}, {**LEFT_OUT, "snapshot_before": "b"}, False),
        ({"diff_sha256": "of a binary file", "snapshot_after": "a"}, {"diff_sha256": "of a binary file"}, False),
        ({"diff_sha256": "d", "snapshot_before": "a"}, {"diff_sha256": "d", "snapshot_before": "b"}, True),
        ({"status": 5}, {"status": 5}, False),
    ],
)
def test_steps_are_the_same_only_if_their_effects_are(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], same: bool
) -> None:
    found = compare_attempts(attempt(tmp_path, "first", dict(first)), attempt(tmp_path, "second", dict(second)))
    assert found.divergence == (None if same else 1)


def test_comparison_of_long_attempts_states_that_it_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MAX_STEPS", 3)
    for count, expected in ((3, False), (4, True)):
        steps: list[dict[str, Any]] = [{} for _ in range(count)]
        one = attempt(tmp_path, f"one-{count}", *steps)
        two = attempt(tmp_path, f"two-{count}", *steps[:-1], {"command": "curl evil" if expected else "make"})
        found = compare_attempts(one, two)
        assert (found.divergence, found.total, found.partial) == (None, 3, expected)
        sides = [{"at": "x", "evidence": each, "attempt": read_attempt(each)} for each in (one, two)]
        page = Renderer().render("compare.html", root="", found=found, sides=sides)
        assert ("The first 3 steps are the same" if expected else "All 3 steps are the same") in page


def rows(count: int) -> tuple[AttemptRow, ...]:
    outcomes = ("passed", "failed", "infra", "unverified")
    return tuple(
        AttemptRow(
            id=f"mission-{number % 1000}.{number}",
            mission=f"mission-{number % 1000}",
            replicate=number // 1000,
            path=f"attempts/mission-{number % 1000}.{number}.e1",
            outcome=outcomes[number % 4],
            claimed="success",
            reason="completed",
            strategy="codex_app_server",
            infra="WORKER_LOST" if number % 4 == 2 else "",
            parent=None,
            number=number,
            replaced=False,
            tokens=number * 7 % 5000,
            seconds=number % 60,
            calls=number % 9,
        )
        for number in range(count)
    )


def test_selection_filters_sorts_and_pages() -> None:
    every = rows(1000)
    found = select(every, Query.of({"outcome": "failed", "sort": "-tokens", "page": "2"}))
    assert (found.total, found.page, found.pages, len(found.rows)) == (250, 2, 5, ROWS)
    tokens = [row.tokens for row in found.rows]
    assert tokens == sorted(tokens, key=lambda value: -(value or 0))
    assert select(every, Query.of({"page": "99"})).page == 20
    assert select(every, Query.of({"q": "MISSION-77."})).total == 1
    assert select(every, Query.of({"claim": "contradicted"})).total == 250
    assert Query.of({"outcome": "<script>", "sort": "x", "page": "-1", "view": "?"}) == Query()
    assert Query.of({"q": "a", "page": "3"}).address(sort="-tokens") == {"q": "a", "sort": "-tokens"}


def test_page_of_a_run_with_10000_attempts_is_small() -> None:
    view = RunView("run-1", True, False, rows(10_000), 10_000, None, None)
    for query in (Query(), Query(view="grid")):
        text = Renderer().render("run.html", root="", **run_values("out/run-1", view, query))
        assert len(text.encode()) <= 30_000
