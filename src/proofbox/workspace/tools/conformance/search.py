"""Search results are the same for every engine, and unsupported patterns are refused."""

from __future__ import annotations

from proofbox.errors import ArgumentsInvalid, PatternRefused
from proofbox.workspace.tools.conformance.fixture import ToolFixture, check, found_in, refused, same


@check
def matching_text_is_found(fixture: ToolFixture) -> None:
    env = fixture.env
    env.write_file("a.py", "import os\n\ndef main():\n    pass\n")
    env.write_file("lib/b.py", "def other(): pass\r\n")
    env.write_file("lib/c.txt", "def no newline")
    env.write_file("x.bin", b"def\0main")
    env.write_file(".git/config", "def in git\n")
    env.write_file(".hidden", "def hidden\n")
    same(found_in(env.search_text("def ")), [(".hidden", 1), ("a.py", 3), ("lib/b.py", 1), ("lib/c.txt", 1)])
    same(found_in(env.search_text(r"^def \w+\(", glob="*.py")), [("a.py", 3), ("lib/b.py", 1)])
    same(found_in(env.search_text("DEF", "lib", ignore_case=True)), [("lib/b.py", 1), ("lib/c.txt", 1)])
    same(found_in(env.search_text("(", literal=True, glob="lib/**")), [("lib/b.py", 1)])
    same(found_in(env.search_text("def", ".git")), [(".git/config", 1)])
    same(found_in(env.search_text("def", "a.py")), [("a.py", 3)])
    same(found_in(env.search_text("^$")), [("a.py", 2)])
    few = env.search_text("def", max_matches=2)
    same((found_in(few), few.truncated), ([(".hidden", 1), ("a.py", 3)], True))
    same(env.search_text("def", max_matches=4).truncated, False)
    [match] = env.search_text("main", context=2).matches
    same((match.text, match.before, match.after), ("def main():", ("import os", ""), ("    pass",)))


@check
def patterns_outside_the_dialect_are_refused(fixture: ToolFixture) -> None:
    env = fixture.env
    for pattern in ("(?=x)", r"(a)\1", "(?i)x", "a\nb", "[[:alpha:]]", "a**", "(", ")", "[", "{", "*", r"\n", ""):
        refused(PatternRefused, env.search_text, pattern)
    refused(ArgumentsInvalid, env.search_text, "x", glob="[a")
