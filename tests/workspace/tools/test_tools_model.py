"""Any sequence of calls gives the same results and errors on a directory and in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proofbox.errors import ProofboxError
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.environments.memory import MemoryTree

names = st.sampled_from(
    ["a", "b", "d", "d/a", "d/e", "d/e/f", "./a", "d/../a", "a/..", "none/../a", "d/..", "..", ".", "d//a/"]
)
texts = st.sampled_from(["", "one\n", "one\ntwo\n", "one\ntwo", "two\ntwo\n", b"\xff\n"])
words = st.sampled_from(["one", "two", "", "three", "two\n"])


def patch(kind: str, old: str, new: str) -> str:
    if kind == "add":
        return f"--- /dev/null\n+++ b/{new}\n@@ -0,0 +1 @@\n+one\n"
    if kind == "delete":
        return f"--- a/{old}\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
    if kind == "rename":
        return f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
    return f"--- a/{old}\n+++ b/{old}\n@@ -1 +1 @@\n-one\n+two\n"


patches = st.builds(patch, st.sampled_from(["add", "delete", "rename", "modify"]), names, names)
calls = st.one_of(
    st.tuples(st.just("write_file"), names, texts),
    st.tuples(st.just("remove_file"), names),
    st.tuples(st.just("read_file"), names),
    st.tuples(st.just("list_directory"), names),
    st.tuples(st.just("list_files_recursive"), names),
    st.tuples(st.just("edit_file"), names, words, words),
    st.tuples(st.just("apply_patch"), st.one_of(patches, st.tuples(patches, patches).map("".join))),
)


def outcome(env: FileTools, call: tuple[Any, ...]) -> object:
    tool: Callable[..., object] = getattr(env, call[0])
    try:
        return tool(*call[1:])
    except ProofboxError as error:
        return error.code


@given(made=st.lists(calls, max_size=12))
@example(made=[("write_file", "d/a", "one\n"), ("apply_patch", patch("rename", "d/a", "d/a/b"))])
@example(made=[("write_file", "d/e/f", "one\n"), ("write_file", "d/e", "x"), ("remove_file", "d")])
def test_directory_and_memory_behave_alike(
    made: list[tuple[Any, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = DirectoryTree(tmp_path_factory.mktemp("root"))
    try:
        directory, memory = FileTools(tree), FileTools(MemoryTree())
        for call in made:
            assert outcome(directory, call) == outcome(memory, call), call
        assert directory.list_files_recursive() == memory.list_files_recursive()
    finally:
        tree.close()
