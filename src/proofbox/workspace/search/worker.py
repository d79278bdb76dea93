"""The search in pure Python, run as a separate program: `MOST PATTERN` on the first line of stdin, then the text.

It prints the numbers of the matching lines. It imports nothing from proofbox and opens no files.
"""

from __future__ import annotations

import re
import sys


def main() -> None:
    head = sys.stdin.buffer.readline().decode("ascii")
    most, _, pattern = head.removesuffix("\n").partition(" ")
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    find = re.compile(pattern, re.MULTILINE).search
    found: list[int] = []
    number, at = 1, 0
    while len(found) < int(most) and at < len(text) and (match := find(text, at)):
        begin = match.start()
        if begin == len(text):  # a trailing newline does not start another line
            break
        number += text.count("\n", at, begin)
        found.append(number)
        at = text.find("\n", begin) + 1
        number += 1
        if not at:
            break
    print(*found)


if __name__ == "__main__":
    main()
