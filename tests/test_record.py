"""Terminal recordings draw what was shown, and treat all output as plain text."""

from __future__ import annotations

import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import record
from capabilities import ROOT
from record import Frame, Piece, capture, frames, render
from screen import Screen

SVG = "{http://www.w3.org/2000/svg}"


def seen(data: bytes, columns: int = 20, rows: int = 4) -> list[str]:
    screen = Screen(columns, rows)
    screen.feed(data)
    return ["".join(cell.text for cell in row) for row in screen.picture()]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\r\ntwo", ["one", "two", "", ""]),
        (b"a\r\nb\r\nc\r\nd\r\ne", ["b", "c", "d", "e"]),
        (b"abc\rX", ["Xbc", "", "", ""]),
        (b"abc\b\bX", ["aXc", "", "", ""]),
        (b"a\tb", ["a       b", "", "", ""]),
        (b"x" * 25, ["x" * 20, "x" * 5, "", ""]),
        (b"one\r\ntwo\x1b[1A\rX\x1b[2B\rY", ["Xne", "two", "Y", ""]),
        (b"abcdef\x1b[3D\x1b[K", ["abc", "", "", ""]),
        (b"abc\r\ndef\x1b[H\x1b[Jx", ["x", "", "", ""]),
        (b"abc\r\ndef\x1b[2K\x1b[1G!", ["abc", "!", "", ""]),
        (b"\x1b[2;3Hx", ["", "  x", "", ""]),
        (b"\x1b[99;99Hx\x1b[99A\x1b[99Dy", ["y", "", "", " " * 19 + "x"]),
        (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", ["ab", "", "", ""]),
        (b"\x1b[?25la\x1b[?2004hb\x1b(Bc\x1b7d\x1b[>4;1me", ["abcde", "", "", ""]),
        (b"a\x00\x07\x1fb\x7f\x1b[9999999999Cc", ["ab" + " " * 17 + "c", "", "", ""]),
        ("é \N{COMBINING ACUTE ACCENT}漢字x".encode(), ["é ́漢字x", "", "", ""]),
        (b"\xff\xfeok", ["��ok", "", "", ""]),
    ],
)
def test_the_screen_shows_what_a_terminal_would(data: bytes, lines: list[str]) -> None:
    assert seen(data) == lines
    screen = Screen(20, 4)
    for byte in data:  # however it comes, it is the same
        screen.feed(bytes([byte]))
    assert ["".join(cell.text for cell in row) for row in screen.picture()] == lines


def test_colours_and_text_styles() -> None:
    screen = Screen(20, 1)
    screen.feed(b"\x1b[1;31mR\x1b[22mr\x1b[39mp\x1b[38;5;2mg\x1b[38;2;1;2;3mt\x1b[96mC\x1b[0;2;3;4mx\x1b[m.")
    looks = [cell.style for cell in screen.picture()[0]]
    assert [look.colour for look in looks] == [1, 1, None, 2, None, 14, None, None]
    assert [look.bold for look in looks] == [True, *[False] * 7]
    assert (looks[6].dim, looks[6].italic, looks[6].underlined) == (True, True, True)
    assert looks[7] == looks[2]


HOSTILE = b"</text></svg><script>alert(1)</script>&amp;\"'\x1b]0;<b>\x07\x1b[31m<red>\x1b[0m\r\nlast"


def test_hostile_text_is_only_text() -> None:
    found = frames([Piece(0.1, HOSTILE)], 60, 4)
    picture = render(found, 60, 4, "a <title>")
    root = ET.fromstring(picture)  # noqa: S314 (our own)
    kinds = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert kinds == {"svg", "title", "style", "defs", "clipPath", "rect", "g", "text", "use", "circle"}
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert "</text></svg><script>alert(1)</script>&amp;\"'" in texts
    (red,) = (element for element in root.iter(f"{SVG}text") if element.text == "<red>")
    assert red.get("class") == "c1"
    assert not re.search(r"\b(href|src)=\"(?!#)|@import|url\((?!#)|\bon\w+=", picture)


def test_a_program_at_a_terminal_is_captured_with_its_times(tmp_path: Path) -> None:
    program = "import os, sys; print(os.get_terminal_size(), sys.stdout.isatty()); sys.stderr.write('err'); sys.exit(3)"
    code, pieces = capture([sys.executable, "-c", program], 33, 9, dict(os.environ), str(tmp_path))
    output = b"".join(piece.data for piece in pieces)
    assert code == 3
    assert output == b"os.terminal_size(columns=33, lines=9) True\r\nerr"
    assert [piece.seconds for piece in pieces] == sorted(piece.seconds for piece in pieces)


def test_pauses_are_shortened_and_close_frames_merged() -> None:
    pieces = [Piece(0.0, b"a"), Piece(0.01, b"b"), Piece(0.02, b"c"), Piece(60.0, b"d")]
    found = frames(pieces, 20, 3)[len(record.COMMAND) + 1 :]
    texts = ["".join(cell.text for cell in frame.picture[1]) for frame in found]
    assert texts == ["abc", "abcd"]
    assert found[0].seconds <= record.LONGEST_PAUSE + 0.1
    assert found[-1].seconds == record.LAST


def test_without_motion_the_last_screen_is_shown() -> None:
    first, last = Screen(10, 1), Screen(10, 1)
    first.feed(b"first")
    last.feed(b"last")
    picture = render([Frame(1, first.picture()), Frame(2, last.picture())], 10, 1, "t")
    width = int(re.findall(r'width="(\d+)"', picture)[0])
    assert f'<g id="reel" transform="translate({-width} 0)">' in picture
    assert "@media (prefers-reduced-motion:reduce){#reel{animation:none}}" in picture
    assert "animation:play 3.00s steps(1,end) infinite" in picture


def test_committed_recording_is_valid_and_names_no_machine() -> None:
    picture = (ROOT / "docs/demo.svg").read_text()
    assert len(picture) < 200_000
    texts = [element.text or "" for element in ET.fromstring(picture).iter(f"{SVG}text")]  # noqa: S314 (our own)
    assert any("pulls/1" in text for text in texts)
    assert "All files were deleted; --keep DIR keeps them." in texts
    assert not [text for text in texts if re.search(r"/tmp/|/root/|/home/|/work/", text)]
