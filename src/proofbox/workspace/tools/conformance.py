"""The conformance suite of tool environments: the same checks for every one, plain functions that raise `Failed`.

    report = run_conformance(lambda guard: MyEnvironment(guard=guard))

An environment that has no directory of the host, or no commands, says so by `host` and by raising CommandsUnavailable;
the checks that need them are then `not_applicable`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from proofbox.errors import (
    ArgumentsInvalid,
    CapabilityDenied,
    CommandsUnavailable,
    EditRefused,
    FileAbsent,
    FileKindRefused,
    FileTooLarge,
    PatchRefused,
    PatternRefused,
    ProofboxError,
    ToolPathRefused,
)
from proofbox.sandbox.conformance.check import Failed, NotApplicable, Result, expect
from proofbox.workspace.tools.contract import LARGEST_FILE, Listing, SearchResult, ToolEnvironment
from proofbox.workspace.tools.tree import Access, AllowAll, Guard

E = TypeVar("E", bound=ProofboxError)
OUTSIDE = ("..", "../x", "a/../../x", "/etc/passwd", "/", "../" * 50 + "etc/passwd", "a/../..")
NO_PATHS = ("", "\0", "a\0b", "x" * 5000, "a/" + "y" * 300, "\ud800")


class World(NamedTuple):
    """An environment whose root is empty, and its root on the host if it has one there."""

    env: ToolEnvironment
    host: str | None = None


Make = Callable[[Guard], AbstractContextManager[World]]
Check = Callable[[World], None]
CHECKS: dict[str, Check] = {}
GUARDED: dict[str, Check] = {}


class Fence:
    """The guard that guarded checks run under: nothing called `secret` can be read, nothing in `fixed` changed."""

    def check(self, access: Access, path: str) -> None:
        names = path.split("/")
        if "secret" in names or (access in ("write", "delete") and names[0] == "fixed"):
            raise CapabilityDenied(f"{access} {path}", op="fence", details={"rule": "fence", "kind": f"fs.{access}"})

    def visible(self, path: str) -> bool:
        return "secret" not in path.split("/")


def run_conformance(make: Make, only: Collection[str] | None = None) -> list[Result]:
    """Every check, or those named, each in a world of its own. Whatever goes wrong in one is in its result."""
    checks: list[tuple[str, Check, Guard]] = [(name, check, AllowAll()) for name, check in CHECKS.items()]
    checks += [(name, check, Fence()) for name, check in GUARDED.items()]
    return [_run(name, check, make, guard) for name, check, guard in checks if only is None or name in only]


def _run(name: str, check: Check, make: Make, guard: Guard) -> Result:
    try:
        with make(guard) as world:
            check(world)
    except Failed as error:
        return Result(name, "tools", "failed", str(error))
    except NotApplicable as error:
        return Result(name, "tools", "not_applicable", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Result(name, "tools", "failed", f"{type(error).__name__} at {where.name}:{where.lineno}: {error}")
    return Result(name, "tools", "passed")


def _check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", "-")] = function
    return function


def _guarded(function: Check) -> Check:
    GUARDED[function.__name__.replace("_", "-")] = function
    return function


def refused(kind: type[E], attempt: Callable[..., object], *args: Any, **options: Any) -> E:
    try:
        given = attempt(*args, **options)
    except kind as error:
        expect(error.message and "\x1b" not in error.message, f"{error.code} says {error.message!r}")
        return error
    except ProofboxError as error:
        raise Failed(f"{args!r:.200}: {error.code} ({error.message}) instead of {kind.code}") from None
    raise Failed(f"{args!r:.200}: not refused with {kind.code} but {given!r:.200}")


def _same(given: object, due: object) -> None:
    expect(given == due, f"{given!r:.500} instead of {due!r:.500}")


def _paths(listing: Listing) -> list[str]:
    return [entry.path for entry in listing.entries]


def _found(result: SearchResult) -> list[tuple[str, int]]:
    return [(match.path, match.line) for match in result.matches]


def _host(world: World) -> str:
    if world.host is None:
        raise NotApplicable("it has no directory of the host")
    return world.host


# Files.


@_check
def what_is_written_is_read(world: World) -> None:
    env = world.env
    written = env.write_file("deep/er/file", "one\ntwo\n")
    _same((written.created, written.size, written.path), (True, 8, "deep/er/file"))
    _same(env.read_file("deep/er/file").content, "one\ntwo\n")
    _same(env.write_file("deep/er/file", b"\xff\x00x").created, False)
    exact = env.read_file("./deep//er/../er/file")
    _same((exact.data, exact.content, exact.path), (b"\xff\x00x", "�\x00x", "deep/er/file"))
    _same(env.read_file(f"{env.root}/deep/er/file").data, b"\xff\x00x")
    _same(env.write_file("empty", "").size, 0)
    _same(env.read_file("empty").data, b"")


@_check
def lines_are_read_from_and_to(world: World) -> None:
    env = world.env
    env.write_file("f", "1\n22\n333\n4444")
    _same((env.read_file("f", first_line=2, max_lines=2).content), "22\n333\n")
    _same(env.read_file("f", first_line=2, max_lines=2).truncated, True)
    _same(env.read_file("f", first_line=4).content, "4444")
    _same((env.read_file("f", first_line=4).truncated, env.read_file("f").truncated), (False, False))
    _same(env.read_file("f", first_line=9).content, "")
    part = env.read_file("f", max_bytes=6)
    _same((part.content, part.truncated, part.size), ("1\n22\n", True, 13))
    env.write_file("g", "x" * 100)
    _same((env.read_file("g", max_bytes=10).content, env.read_file("g", max_bytes=10).truncated), ("x" * 10, True))
    refused(ArgumentsInvalid, env.read_file, "f", first_line=0)


@_check
def nothing_is_outside(world: World) -> None:
    env = world.env
    env.write_file("a/b", "x")
    for path in OUTSIDE:
        for tool in (env.read_file, env.remove_file, env.list_directory, env.list_files_recursive):
            refused(ToolPathRefused, tool, path)
        refused(ToolPathRefused, env.write_file, path, "x")
        refused(ToolPathRefused, env.edit_file, path, "a", "b")
        refused(ToolPathRefused, env.search_text, "x", path)
    for path in NO_PATHS:
        refused(ToolPathRefused, env.read_file, path)
        refused(ToolPathRefused, env.write_file, path, "x")


@_check
def what_is_not_there_or_no_file_is_said(world: World) -> None:
    env = world.env
    env.write_file("d/f", "x")
    for tool in (env.read_file, env.remove_file, env.list_directory, env.list_files_recursive):
        refused(FileAbsent, tool, "none")
        refused(FileAbsent, tool, "d/none")
        refused(FileAbsent, tool, "none/../d")
    refused(FileAbsent, env.edit_file, "none", "a", "b")
    refused(FileAbsent, env.search_text, "x", "none")
    refused(FileKindRefused, env.read_file, "d")
    refused(FileKindRefused, env.read_file, "d/f/g")
    refused(FileKindRefused, env.remove_file, "d")
    refused(FileKindRefused, env.list_directory, "d/f")
    refused(FileKindRefused, env.write_file, "d", "x")
    refused(FileKindRefused, env.write_file, ".", "x")
    refused(FileKindRefused, env.write_file, "d/f/g", "x")
    _same(env.read_file("d/f").content, "x")


@_check
def what_is_too_large_is_refused(world: World) -> None:
    refused(FileTooLarge, world.env.write_file, "f", b"x" * (LARGEST_FILE + 1))
    refused(FileAbsent, world.env.read_file, "f")
    refused(ArgumentsInvalid, world.env.write_file, "f", "\ud800")


@_check
def what_is_removed_is_gone(world: World) -> None:
    env = world.env
    env.write_file("d/f", "x")
    _same(env.remove_file("d/f").path, "d/f")
    refused(FileAbsent, env.read_file, "d/f")
    _same(_paths(env.list_directory()), ["d"])


@_check
def listings_are_sorted_and_bounded(world: World) -> None:
    env = world.env
    for path in ("b/x", "b-c", "b.d", "a", "b/c/d/e", "Z", "ä"):
        env.write_file(path, "12")
    listing = env.list_directory()
    _same(_paths(listing), ["Z", "a", "b", "b-c", "b.d", "ä"])
    _same([(e.type, e.size) for e in listing.entries[1:3]], [("file", 2), ("directory", 0)])
    _same(_paths(env.list_directory("b")), ["b/c", "b/x"])
    _same(_paths(env.list_files_recursive()), ["Z", "a", "b-c", "b.d", "b/c/d/e", "b/x", "ä"])
    _same(_paths(env.list_files_recursive("b", depth=1)), ["b/x"])
    few = env.list_files_recursive(max_entries=2)
    _same((_paths(few), few.truncated), (["Z", "a"], True))
    _same(_paths(env.list_files_recursive(max_entries=7)), _paths(env.list_files_recursive()))
    _same(env.list_files_recursive(max_entries=7).truncated, False)


# Changes.


@_check
def an_edit_is_exact(world: World) -> None:
    env = world.env
    env.write_file("f", "a\nb.b\nb.b\r\nc\n")
    refused(EditRefused, env.edit_file, "f", "b.b", "x")
    refused(EditRefused, env.edit_file, "f", "b?b", "x")
    refused(EditRefused, env.edit_file, "f", "", "x")
    refused(EditRefused, env.edit_file, "f", "a", "a")
    done = env.edit_file("f", "b.b\r\n", "new\\1\n")
    _same((done.replacements, done.first_line, done.path), (1, 3, "f"))
    _same(env.read_file("f").data, b"a\nb.b\nnew\\1\nc\n")
    env.write_file("f", "aaaa")
    refused(EditRefused, env.edit_file, "f", "aaa", "x")
    _same(env.edit_file("f", "aa", "b", replace_all=True).replacements, 2)
    _same(env.read_file("f").data, b"bb")


_PATCH = """\
words before
diff --git a/mod b/mod
index 1..2 100644
--- a/mod
+++ b/mod
@@ -1,3 +1,3 @@ heading
 one
-two
+2
 three
@@ -5 +5,2 @@
 five
+six
\\ No newline at end of file
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
diff --git a/sub/new b/sub/new
new file mode 100755
--- /dev/null
+++ b/sub/new
@@ -0,0 +1,2 @@
+hello
+world
diff --git a/old name b/new name
similarity index 100%
rename from old name
rename to new name
"""


@_check
def a_patch_changes_every_file(world: World) -> None:
    env = world.env
    env.write_file("mod", "one\ntwo\nthree\nfour\nfive")
    refused(PatchRefused, env.apply_patch, "--- mod\n+++ mod\n@@ -5 +5,2 @@\n five\n+six\n")
    env.write_file("mod", "one\ntwo\nthree\nfour\nfive\n")
    env.write_file("gone", "x\n")
    env.write_file("old name", "kept")
    done = env.apply_patch(_PATCH)
    _same([(f.path, f.kind) for f in done.files][:3], [("mod", "modified"), ("gone", "deleted"), ("sub/new", "added")])
    _same((done.files[3].path, done.files[3].old_path), ("new name", "old name"))
    _same(env.read_file("mod").data, b"one\n2\nthree\nfour\nfive\nsix")
    _same(env.read_file("sub/new").data, b"hello\nworld\n")
    _same(env.read_file("new name").data, b"kept")
    _same(_paths(env.list_files_recursive()), ["mod", "new name", "sub/new"])


@_check
def a_patch_that_does_not_fit_changes_nothing(world: World) -> None:
    env = world.env
    files = {"mod": "one\ntwo\nthree\nfour\nfive\n", "gone": "y\n", "old name": "kept"}
    for path, content in files.items():
        env.write_file(path, content)
    hostile = (_PATCH, _PATCH.replace("b/sub/new", "b/../out"), _PATCH.replace("+++ b/mod", "+++ b/mod/x"))
    for patch in (*hostile, "", "no patch", "--- a/mod\n+++ b/mod\n", "--- a/mod\n+++ b/mod\n@@ -1 +1 @@\n-x\n"):
        try:
            env.apply_patch(patch)
        except ProofboxError:
            pass
        else:
            raise Failed(f"applied: {patch!r:.200}")
        for path, content in files.items():
            _same(env.read_file(path).content, content)
        _same(_paths(env.list_files_recursive()), sorted(files))


@_check
def a_hunk_may_have_moved_but_not_be_ambiguous(world: World) -> None:
    env = world.env
    patch = "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n"
    env.write_file("f", "0\n0\na\nb\n")
    env.apply_patch(patch)
    _same(env.read_file("f").content, "0\n0\na\nB\n")
    env.write_file("f", "0\na\nb\na\nb\n")
    refused(PatchRefused, env.apply_patch, patch)


# Search.


@_check
def text_is_found(world: World) -> None:
    env = world.env
    env.write_file("a.py", "import os\n\ndef main():\n    pass\n")
    env.write_file("lib/b.py", "def other(): pass\r\n")
    env.write_file("lib/c.txt", "def no newline")
    env.write_file("x.bin", b"def\0main")
    env.write_file(".git/config", "def in git\n")
    env.write_file(".hidden", "def hidden\n")
    _same(_found(env.search_text("def ")), [(".hidden", 1), ("a.py", 3), ("lib/b.py", 1), ("lib/c.txt", 1)])
    _same(_found(env.search_text(r"^def \w+\(", glob="*.py")), [("a.py", 3), ("lib/b.py", 1)])
    _same(_found(env.search_text("DEF", "lib", ignore_case=True)), [("lib/b.py", 1), ("lib/c.txt", 1)])
    _same(_found(env.search_text("(", literal=True, glob="lib/**")), [("lib/b.py", 1)])
    _same(_found(env.search_text("def", ".git")), [(".git/config", 1)])
    _same(_found(env.search_text("def", "a.py")), [("a.py", 3)])
    _same(_found(env.search_text("^$")), [("a.py", 2)])
    few = env.search_text("def", max_matches=2)
    _same((_found(few), few.truncated), ([(".hidden", 1), ("a.py", 3)], True))
    _same(env.search_text("def", max_matches=4).truncated, False)
    [match] = env.search_text("main", context=2).matches
    _same((match.text, match.before, match.after), ("def main():", ("import os", ""), ("    pass",)))


@_check
def patterns_outside_the_dialect_are_refused(world: World) -> None:
    env = world.env
    for pattern in ("(?=x)", r"(a)\1", "(?i)x", "a\nb", "[[:alpha:]]", "a**", "(", ")", "[", "{", "*", r"\n", ""):
        refused(PatternRefused, env.search_text, pattern)
    refused(ArgumentsInvalid, env.search_text, "x", glob="[a")


# Commands.


def _shell(world: World) -> ToolEnvironment:
    try:
        world.env.run_command("true")
    except CommandsUnavailable as error:
        raise NotApplicable(error.message) from None
    return world.env


@_check
def a_command_is_a_result_however_it_ends(world: World) -> None:
    env = _shell(world)
    done = env.run_command("echo out; echo err >&2; exit 7")
    _same((done.exit_code, done.stdout, done.stderr, done.timed_out), (7, "out\n", "err\n", False))
    _same(env.run_command(["printf", "%s", "a b"]).stdout, "a b")
    _same(env.run_command("cat", stdin="given").stdout, "given")
    _same(env.run_command("echo $V", env={"V": "1"}).stdout, "1\n")
    late = env.run_command("sleep 60", timeout=0.3)
    _same((late.timed_out, late.exit_code), (True, 124))
    much = env.run_command("head -c 100000 /dev/zero", max_output=1000)
    expect(much.truncated and len(much.stdout) <= 1200, "output is bounded")
    expect(len(much.text(500).encode()) <= 500, "the text for the model is bounded")
    refused(ProofboxError, env.run_command, ["no-such-program-here"])


@_check
def commands_and_tools_see_the_same_files(world: World) -> None:
    env = _shell(world)
    env.write_file("sub/f", "from the tool")
    _same(env.run_command("cat f && echo more > made", cwd="sub").stdout, "from the tool")
    _same(env.read_file("sub/made").content, "more\n")
    env.write_file("run", "#!/bin/sh\necho ran\n", executable=True)
    _same(env.run_command(["./run"]).stdout, "ran\n")
    env.edit_file("run", "ran", "again")
    _same(env.run_command(["./run"]).stdout, "again\n")
    env.write_file("sub/made", "replaced")
    _same(env.run_command("echo x >> sub/made; cat sub/made").stdout, "replacedx\n")
    refused(ProofboxError, env.run_command, "pwd", cwd="..")


# Links.


@_check
def links_lead_no_further_than_the_root(world: World) -> None:
    host, env = _host(world), world.env
    env.write_file("d/f", "inside")
    for name, target in {
        "out": "/etc",
        "up": "../..",
        "loop": "loop",
        "file": "/etc/passwd",
        "gone": "../gone",
    }.items():
        os.symlink(target, f"{host}/{name}")
    for name, target in {"in": "d", "abs": f"{host}/d", "d/back": "../d/f", "new": "d/made"}.items():
        os.symlink(target, f"{host}/{name}")
    _same(env.read_file("in/f").path, "d/f")
    _same(env.read_file("abs/f").content, "inside")
    _same(env.read_file("d/back").content, "inside")
    _same(env.write_file("new", "x").path, "d/made")
    _same(env.read_file("in/../d/f").content, "inside")
    for path in ("out/passwd", "file", "loop", "up/x", "gone", "out"):
        refused(ToolPathRefused, env.read_file, path)
        refused(ToolPathRefused, env.write_file, path, "x")
    _same(
        [e.path for e in env.list_directory().entries if e.type == "symlink"],
        sorted(["abs", "file", "gone", "in", "loop", "new", "out", "up"]),
    )
    _same(_found(env.search_text("root|inside|x")), [("d/f", 1), ("d/made", 1)])
    _same(env.remove_file("file").path, "file")
    expect(os.path.exists("/etc/passwd"), "a link was removed, not what it leads to")
    _same(_paths(env.list_files_recursive("in")), ["d/back", "d/f", "d/made"])


@_check
def what_is_no_file_never_hangs(world: World) -> None:
    host, env = _host(world), world.env
    os.mkfifo(f"{host}/pipe")
    refused(FileKindRefused, env.read_file, "pipe")
    refused(FileKindRefused, env.write_file, "pipe", "x")
    _same([e.type for e in env.list_directory().entries], ["other"])
    _same(_found(env.search_text("x")), [])
    _same(env.remove_file("pipe").path, "pipe")


@_check
def names_that_are_not_text_are_kept(world: World) -> None:
    host, env = _host(world), world.env
    name = os.fsdecode(b"n\xff")
    with open(os.fsencode(host) + b"/n\xff", "w") as file:
        file.write("found\n")
    [entry] = env.list_directory().entries
    _same((entry.path, entry.path_b64), ("n\\xff", "bv8="))
    _same(env.read_file(name).content, "found\n")
    [match] = env.search_text("found").matches
    _same(match.path_b64, "bv8=")


# Guards.


@_guarded
def what_a_guard_denies_is_not_opened(world: World) -> None:
    env = world.env
    for attempt in (env.read_file, env.remove_file):
        refused(CapabilityDenied, attempt, "a/secret")
        refused(CapabilityDenied, attempt, "a/./secret")
    refused(CapabilityDenied, env.write_file, "secret/x", "x")
    refused(CapabilityDenied, env.write_file, "fixed/x", "x")
    refused(CapabilityDenied, env.list_directory, "secret")
    refused(CapabilityDenied, env.search_text, "x", "secret")
    refused(CapabilityDenied, env.apply_patch, "--- /dev/null\n+++ b/fixed/n\n@@ -0,0 +1 @@\n+x\n")
    refused(FileAbsent, env.read_file, "fixed/x")


@_guarded
def what_a_guard_hides_is_not_listed_or_found(world: World) -> None:
    host = _host(world)
    for name in ("a/secret", "a/plain", "secret/deep"):
        os.makedirs(os.path.dirname(f"{host}/{name}"), exist_ok=True)
        with open(f"{host}/{name}", "w") as file:
            file.write("needle\n")
    os.symlink("secret", f"{host}/link")
    os.symlink("a/secret", f"{host}/to")
    env = world.env
    _same(_paths(env.list_files_recursive()), ["a/plain", "link", "to"])
    _same(_found(env.search_text("needle")), [("a/plain", 1)])
    refused(CapabilityDenied, env.read_file, "link/deep")
    refused(CapabilityDenied, env.read_file, "to")
    refused(CapabilityDenied, env.write_file, "to", "x")
