"""Reading, writing, removing and listing files, and staying inside the root."""

from __future__ import annotations

from proofbox.errors import ArgumentsInvalid, FileAbsent, FileKindRefused, FileTooLarge, ToolPathRefused
from proofbox.workspace.tools.conformance.fixture import ToolFixture, check, paths_of, refused, same
from proofbox.workspace.tools.contract import LARGEST_FILE, READ_LIMIT

OUTSIDE = ("..", "../x", "a/../../x", "/etc/passwd", "/", "../" * 50 + "etc/passwd", "a/../..")
NO_PATHS = ("", "\0", "a\0b", "x" * 5000, "a/" + "y" * 300, "\ud800")


@check
def written_files_are_read_back(fixture: ToolFixture) -> None:
    env = fixture.env
    written = env.write_file("deep/er/file", "one\ntwo\n")
    same((written.created, written.size, written.path), (True, 8, "deep/er/file"))
    same(env.read_file("deep/er/file").content, "one\ntwo\n")
    same(env.write_file("deep/er/file", b"\xff\x00x").created, False)
    exact = env.read_file("./deep//er/../er/file")
    same((exact.data, exact.content, exact.path), (b"\xff\x00x", "�\x00x", "deep/er/file"))
    same(env.read_file(f"{env.root}/deep/er/file").data, b"\xff\x00x")
    same(env.write_file("empty", "").size, 0)
    same(env.read_file("empty").data, b"")


@check
def line_ranges_are_read(fixture: ToolFixture) -> None:
    env = fixture.env
    env.write_file("f", "1\n22\n333\n4444")
    same((env.read_file("f", first_line=2, max_lines=2).content), "22\n333\n")
    same(env.read_file("f", first_line=2, max_lines=2).truncated, True)
    same(env.read_file("f", first_line=4).content, "4444")
    same((env.read_file("f", first_line=4).truncated, env.read_file("f").truncated), (False, False))
    same(env.read_file("f", first_line=9).content, "")
    env.write_file("f", "1\n" + "x" * READ_LIMIT)
    part = env.read_file("f")
    same((part.content, part.truncated, part.size), ("1\n", True, READ_LIMIT + 2))
    part = env.read_file("f", first_line=2)
    same((part.content, part.truncated), ("x" * READ_LIMIT, False))
    env.write_file("g", "x" * (READ_LIMIT + 1))
    same((env.read_file("g").content, env.read_file("g").truncated), ("x" * READ_LIMIT, True))
    refused(ArgumentsInvalid, env.read_file, "f", first_line=0)


@check
def paths_outside_the_root_are_refused(fixture: ToolFixture) -> None:
    env = fixture.env
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


@check
def missing_and_irregular_files_are_reported(fixture: ToolFixture) -> None:
    env = fixture.env
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
    same(env.read_file("d/f").content, "x")


@check
def large_files_are_refused(fixture: ToolFixture) -> None:
    refused(FileTooLarge, fixture.env.write_file, "f", b"x" * (LARGEST_FILE + 1))
    refused(FileAbsent, fixture.env.read_file, "f")
    refused(ArgumentsInvalid, fixture.env.write_file, "f", "\ud800")


@check
def removed_files_are_absent(fixture: ToolFixture) -> None:
    env = fixture.env
    env.write_file("d/f", "x")
    same(env.remove_file("d/f").path, "d/f")
    refused(FileAbsent, env.read_file, "d/f")
    same(paths_of(env.list_directory()), ["d"])


@check
def listings_are_sorted_and_bounded(fixture: ToolFixture) -> None:
    env = fixture.env
    for path in ("b/x", "b-c", "b.d", "a", "b/c/d/e", "Z", "ä"):
        env.write_file(path, "12")
    listing = env.list_directory()
    same(paths_of(listing), ["Z", "a", "b", "b-c", "b.d", "ä"])
    same([(e.type, e.size) for e in listing.entries[1:3]], [("file", 2), ("directory", 0)])
    same(paths_of(env.list_directory("b")), ["b/c", "b/x"])
    same(paths_of(env.list_files_recursive()), ["Z", "a", "b-c", "b.d", "b/c/d/e", "b/x", "ä"])
    same(paths_of(env.list_files_recursive("b", depth=1)), ["b/x"])
    few = env.list_files_recursive(max_entries=2)
    same((paths_of(few), few.truncated), (["Z", "a"], True))
    same(paths_of(env.list_files_recursive(max_entries=7)), paths_of(env.list_files_recursive()))
    same(env.list_files_recursive(max_entries=7).truncated, False)
