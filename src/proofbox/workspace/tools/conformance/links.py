"""Links, pipes and names that are not valid text."""

from __future__ import annotations

import os

from proofbox.errors import FileKindRefused, ToolPathRefused
from proofbox.sandbox.conformance.check import expect
from proofbox.workspace.tools.conformance.fixture import ToolFixture, check, found_in, host_of, paths_of, refused, same


@check
def links_do_not_lead_outside_the_root(fixture: ToolFixture) -> None:
    host, env = host_of(fixture), fixture.env
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
    same(env.read_file("in/f").path, "d/f")
    same(env.read_file("abs/f").content, "inside")
    same(env.read_file("d/back").content, "inside")
    same(env.write_file("new", "x").path, "d/made")
    same(env.read_file("in/../d/f").content, "inside")
    for path in ("out/passwd", "file", "loop", "up/x", "gone", "out"):
        refused(ToolPathRefused, env.read_file, path)
        refused(ToolPathRefused, env.write_file, path, "x")
    same(
        [e.path for e in env.list_directory().entries if e.type == "symlink"],
        sorted(["abs", "file", "gone", "in", "loop", "new", "out", "up"]),
    )
    same(found_in(env.search_text("root|inside|x")), [("d/f", 1), ("d/made", 1)])
    same(env.remove_file("file").path, "file")
    expect(os.path.exists("/etc/passwd"), "the link was removed, not its target")
    same(paths_of(env.list_files_recursive("in")), ["d/back", "d/f", "d/made"])


@check
def irregular_files_never_block(fixture: ToolFixture) -> None:
    host, env = host_of(fixture), fixture.env
    os.mkfifo(f"{host}/pipe")
    refused(FileKindRefused, env.read_file, "pipe")
    refused(FileKindRefused, env.write_file, "pipe", "x")
    same([e.type for e in env.list_directory().entries], ["other"])
    same(found_in(env.search_text("x")), [])
    same(env.remove_file("pipe").path, "pipe")


@check
def undecodable_names_are_kept(fixture: ToolFixture) -> None:
    host, env = host_of(fixture), fixture.env
    name = os.fsdecode(b"n\xff")
    with open(os.fsencode(host) + b"/n\xff", "w") as file:
        file.write("found\n")
    [entry] = env.list_directory().entries
    same((entry.path, entry.path_b64), ("n\\xff", "bv8="))
    same(env.read_file(name).content, "found\n")
    [match] = env.search_text("found").matches
    same(match.path_b64, "bv8=")
