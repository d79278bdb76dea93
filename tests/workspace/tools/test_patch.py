"""Patches written by git are applied exactly; any other text is refused or changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proofbox.errors import FileTooLarge, PatchRefused, ProofboxError
from proofbox.workspace.tools.environments import files
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.environments.memory import MemoryEnvironment
from proofbox.workspace.tools.environments.patch import apply_hunks, parse

lines = st.lists(
    st.sampled_from(["a", "b", "c", "", " x", "-y", "+z", "@@ -1 +1 @@", "--- a", "\\ n", "é", "w\r"]), max_size=12
)
contents = st.tuples(lines, st.sampled_from(["\n", ""])).map(lambda p: ("\n".join(p[0]) + p[1]).encode())
raw = st.one_of(contents, contents.map(lambda data: data + b"\xff\xfe\n"))
paths = st.sampled_from(["f", "g", "d/f", "d/e/g", "with space", "ta\tb", 'quo"te', "ünï", "a/x", "b/x"])
trees = st.dictionaries(paths, st.tuples(raw, st.booleans()), max_size=4)
Tree = dict[str, tuple[bytes, bool]]


def fill(root: Path, tree: Tree) -> None:
    for path, (data, executable) in tree.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        place.chmod(0o755 if executable else 0o644)


def content(root: Path) -> Tree:
    files = (path for path in root.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {str(p.relative_to(root)): (p.read_bytes(), bool(p.stat().st_mode & 0o100)) for p in files}


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(old=trees, new=trees, context=st.sampled_from([0, 1, 3]))
def test_git_patches_are_applied_exactly(
    old: Tree, new: Tree, context: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("git")
    repo, target = place / "repo", place / "target"
    target.mkdir()
    fill(repo, old)
    fill(target, old)
    repo.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> bytes:
        return subprocess.run(["git", *words], cwd=repo, env=env, check=True, capture_output=True).stdout

    git("init", "-q")
    git("add", "-A")
    tree = git("write-tree").decode().strip()
    for each in repo.iterdir():
        if each.name != ".git":
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    fill(repo, new)
    git("add", "-A")
    diff = git("diff", "--cached", "-M", f"-U{context}", "--no-color", "--text", tree)
    handles = DirectoryTree(target)
    env_ = FileTools(handles)
    try:
        if diff:
            env_.apply_patch(diff.decode("utf-8", "surrogateescape"))
    finally:
        handles.close()
    assert content(target) == new


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    env = MemoryEnvironment({"a": "one\ntwo\n"})
    try:
        env.apply_patch(text)
    except ProofboxError:
        assert env.read_file("a").content == "one\ntwo\n"


pieces = st.sampled_from(
    [
        *("--- a/f\n", "+++ b/f\n", "--- /dev/null\n", "+++ /dev/null\n", "@@ -1 +1 @@\n", "@@ -1,2 +1 @@\n", "-one\n"),
        *("+two\n", " one\n", "\\ No newline\n", "diff --git a/f b/f\n", "new file mode 100644\n", "rename from f\n"),
        *(
            "rename to ../x\n",
            "deleted file mode 120000\n",
            "GIT binary patch\n",
            "@@ -0,0 +1 @@\n",
            "@@ -9999999999 @@\n",
        ),
    ]
)


@given(st.lists(pieces, max_size=10).map("".join))
def test_malformed_patches_change_all_files_or_none(text: str) -> None:
    env = MemoryEnvironment({"f": "one\n"})
    before = env.list_files_recursive()
    try:
        done = env.apply_patch(text)
    except ProofboxError:
        assert env.list_files_recursive() == before
        assert env.read_file("f").content == "one\n"
    else:
        assert done.files


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "no file"),
        ("@@ -1 +1 @@\n-a\n+b\n", "belongs to no file"),
        ("--- a/f\n", r"expected \+\+\+"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n", "ends in the middle"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n*a\n", "start with a space"),
        ("diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n", "mode 120000"),
        ("diff --git a/f b/f\nBinary files a/f and b/f differ\n", "binary"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "twice"),
        ('--- "a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n', "closing quote"),
    ],
)
def test_refusal_states_the_reason(patch: str, reason: str) -> None:
    with pytest.raises(PatchRefused, match=reason):
        parse(patch)


def test_line_without_newline_must_be_the_last() -> None:
    [patch] = parse("--- f\n+++ f\n@@ -1 +1,2 @@\n+b\n\\ No newline at end of file\n a\n")
    with pytest.raises(PatchRefused, match="without a newline"):
        apply_hunks(b"a\n", patch)


@pytest.mark.parametrize("other", ["./x", "link", "d/../x"])
def test_patch_with_two_spellings_of_one_file_is_refused(tmp_path: Path, other: str) -> None:
    fill(tmp_path, {"x": (b"one\ntwo\n", False), "d/y": (b"", False)})
    (tmp_path / "link").symlink_to("x")
    patch = f"--- x\n+++ x\n@@ -1 +1 @@\n-one\n+ONE\n--- {other}\n+++ {other}\n@@ -2 +2 @@\n-two\n+TWO\n"
    with pytest.raises(PatchRefused, match="twice"):
        FileTools(DirectoryTree(tmp_path)).apply_patch(patch)
    assert (tmp_path / "x").read_bytes() == b"one\ntwo\n"


def test_reading_a_line_after_a_huge_hole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_OFFSET", 1 << 20)
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "lines").write_bytes(b"a\n" * (1 << 18) + b"last\n")
    tools = FileTools(DirectoryTree(tmp_path))
    with pytest.raises(FileTooLarge):
        tools.read_file("hole", first_line=2)
    assert tools.read_file("lines", first_line=(1 << 18) + 1).content == "last\n"
