"""Records `proofbox demo` in a real terminal and writes an animated SVG, docs/demo.svg.

    scripts/record [--output FILE] [--columns N] [--rows N]

The output, its colours and its order are real; pauses are shortened. The picture needs no external fonts or scripts.
Viewers that prefer reduced motion, or do not support animations, show the last screen.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import os
import platform
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from screen import Cell, Row, Screen

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "proofbox demo"

LONGEST_PAUSE = 1.2  # seconds: longer pauses are shortened to this
TYPING = 0.06  # seconds per letter of the command
LAST = 8.0  # seconds that the last screen stays
STEP = 0.12  # seconds: output closer together is one frame

ADVANCE, LEADING, SIZE = 8.43, 19, 14  # px: a column, a row, a letter
MARGIN, BAR = 16, 34
COLOURS = ("#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4")
BRIGHT = ("#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc")
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"


class Piece(NamedTuple):
    seconds: float
    """Seconds since the start."""
    data: bytes


class Frame(NamedTuple):
    seconds: float
    """How many seconds it is shown."""
    picture: tuple[Row, ...]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/record", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs/demo.svg", metavar="FILE")
    parser.add_argument("--columns", type=int, default=80, metavar="N")
    parser.add_argument("--rows", type=int, default=28, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-record-") as home:
        env = {"HOME": home, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
        code, pieces = capture(COMMAND.split(), options.columns, options.rows, env, home)
    if code != 0:
        sys.stdout.buffer.write(b"".join(piece.data for piece in pieces))
        print(f"record: {COMMAND} ended with {code}", file=sys.stderr)
        return 1
    picture = render(frames(pieces, options.columns, options.rows), options.columns, options.rows, COMMAND)
    for word in {str(ROOT), os.path.expanduser("~"), platform.node(), home}:
        if len(word) > 4 and word in picture:  # a shorter one is any word
            print(f"record: {word!r} names this machine and would be in the recording", file=sys.stderr)
            return 1
    options.output.write_text(picture)
    print(f"{options.output}: {len(picture) // 1000} kB")
    return 0


def capture(words: Sequence[str], columns: int, rows: int, env: dict[str, str], cwd: str) -> tuple[int, list[Piece]]:
    """Run a program in a new terminal and return its output with timestamps."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd, start_new_session=True
    ) as process:
        os.close(slave)
        began, pieces = time.monotonic(), []
        while True:
            select.select([master], [], [])
            try:
                data = os.read(master, 65536)
            except OSError:  # EIO: the other side is closed
                break
            if not data:
                break
            pieces.append(Piece(time.monotonic() - began, data))
    os.close(master)
    return process.returncode, pieces


def frames(pieces: Sequence[Piece], columns: int, rows: int) -> list[Frame]:
    """Return the frames: the typed command, then each change of the screen, with shortened pauses."""
    screen = Screen(columns, rows)
    found = []
    screen.feed(b"$ ")
    for letter in COMMAND:
        found.append(Frame(TYPING, screen.picture()))
        screen.feed(letter.encode())
    found.append(Frame(0.5, screen.picture()))
    screen.feed(b"\r\n")
    for index, piece in enumerate(pieces):
        screen.feed(piece.data)
        after = pieces[index + 1].seconds if index + 1 < len(pieces) else piece.seconds + LAST
        stays = min(after - piece.seconds, LONGEST_PAUSE) if index + 1 < len(pieces) else LAST
        picture = screen.picture()
        if found[-1].picture == picture or (found[-1].seconds < STEP and index):
            found[-1] = Frame(found[-1].seconds + stays, picture)
        else:
            found.append(Frame(stays, picture))
    return found


def render(found: Sequence[Frame], columns: int, rows: int, title: str) -> str:
    """Draw the frames side by side in a strip that moves behind a window. Repeated lines are drawn once."""
    width, height = round(columns * ADVANCE) + 2 * MARGIN, rows * LEADING + BAR + MARGIN
    names: dict[Row, str] = {}
    for frame in found:
        for row in filter(None, frame.picture):
            names.setdefault(row, f"r{len(names)}")
    total = sum(frame.seconds for frame in found)
    last = -(len(found) - 1) * width
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
            ' role="img">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{style(found, width, total)}</style>",
            f'<defs><clipPath id="window"><rect width="{width}" height="{height}" rx="9"/></clipPath>',
            *(f'<g id="{name}">{line(row)}</g>' for row, name in names.items()),
            "</defs>",
            f'<g clip-path="url(#window)"><rect class="back" width="{width}" height="{height}"/>',
            f'<g id="reel" transform="translate({last} 0)">',
            *(screenful(frame, index * width, names) for index, frame in enumerate(found)),
            "</g>",
            f'<rect class="bar" width="{width}" height="{BAR - 8}"/>',
            *(f'<circle cx="{20 + 20 * n}" cy="13" r="6" fill="{COLOURS[c]}"/>' for n, c in enumerate((1, 3, 2))),
            f'<text class="title" x="{width / 2:g}" y="17" text-anchor="middle">{html.escape(title)}</text>',
            "</g></svg>\n",
        ]
    )


def style(found: Sequence[Frame], width: int, total: float) -> str:
    stops, at = [], 0.0
    for index, frame in enumerate(found):
        stops.append(f"{at / total * 100:.3f}%{{transform:translateX({-index * width}px)}}")
        at += frame.seconds
    return "".join(
        [
            ".back{fill:#0d1117}.bar{fill:#21262d}",
            f"text{{font:{SIZE}px {FONT};fill:#c9d1d9;white-space:pre}}.title{{font-size:12px;fill:#8b949e}}",
            ".b{font-weight:bold;fill:#f0f6fc}.d{opacity:.6}.i{font-style:italic}.u{text-decoration:underline}",
            *(f".c{n}{{fill:{colour}}}" for n, colour in enumerate(COLOURS + BRIGHT)),
            "#reel{animation:play ",
            f"{total:.2f}s steps(1,end) infinite}}",
            "@keyframes play{",
            *stops,
            f"100%{{transform:translateX({-(len(found) - 1) * width}px)}}}}",
            "@media (prefers-reduced-motion:reduce){#reel{animation:none}}",
        ]
    )


def screenful(frame: Frame, x: int, names: dict[Row, str]) -> str:
    uses = (
        f'<use href="#{names[row]}" x="{x}" y="{index * LEADING + BAR}"/>'
        for index, row in enumerate(frame.picture)
        if row
    )
    return "".join(uses)


def line(row: Row) -> str:
    """Draw each run of text in one style at its column, with a fixed width that does not depend on the font."""
    return "".join(stretch(column, cells) for column, cells in stretches(row))


def stretches(row: Row) -> Iterator[tuple[int, list[Cell]]]:
    """Yield each run of visible text with its column, without surrounding blanks."""
    at = 0
    for look, group in groupby(row, key=lambda cell: cell.style):
        cells = list(group)
        seen = [index for index, cell in enumerate(cells) if cell.text != " " or look.underlined]
        if seen:
            yield at + seen[0], cells[seen[0] : seen[-1] + 1]
        at += len(cells)


def stretch(column: int, cells: Sequence[Cell]) -> str:
    look = cells[0].style
    names = [name for name, on in zip("bdiu", (look.bold, look.dim, look.italic, look.underlined), strict=True) if on]
    names += [] if look.colour is None else [f"c{look.colour}"]
    attribute = f' class="{" ".join(names)}"' if names else ""
    x, length = MARGIN + column * ADVANCE, len(cells) * ADVANCE
    text = html.escape("".join(cell.text for cell in cells), quote=False)
    return f'<text x="{x:.1f}" y="{SIZE}" textLength="{length:.1f}"{attribute}>{text}</text>'


if __name__ == "__main__":
    sys.exit(main())
