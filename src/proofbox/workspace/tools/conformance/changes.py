"""Edits and patches are exact, and change everything or nothing."""

from __future__ import annotations

from proofbox.errors import EditRefused, PatchRefused, ProofboxError
from proofbox.sandbox.conformance.check import Failed
from proofbox.workspace.tools.conformance.fixture import ToolFixture, check, paths_of, refused, same


@check
def edits_replace_exact_text(fixture: ToolFixture) -> None:
    env = fixture.env
    env.write_file("f", "a\nb.b\nb.b\r\nc\n")
    refused(EditRefused, env.edit_file, "f", "b.b", "x")
    refused(EditRefused, env.edit_file, "f", "b?b", "x")
    refused(EditRefused, env.edit_file, "f", "", "x")
    refused(EditRefused, env.edit_file, "f", "a", "a")
    done = env.edit_file("f", "b.b\r\n", "new\\1\n")
    same((done.replacements, done.first_line, done.path), (1, 3, "f"))
    same(env.read_file("f").data, b"a\nb.b\nnew\\1\nc\n")
    env.write_file("f", "aaaa")
    refused(EditRefused, env.edit_file, "f", "aaa", "x")
    same(env.edit_file("f", "aa", "b", replace_all=True).replacements, 2)
    same(env.read_file("f").data, b"bb")


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


@check
def patches_change_every_file(fixture: ToolFixture) -> None:
    env = fixture.env
    env.write_file("mod", "one\ntwo\nthree\nfour\nfive")
    refused(PatchRefused, env.apply_patch, "--- mod\n+++ mod\n@@ -5 +5,2 @@\n five\n+six\n")
    env.write_file("mod", "one\ntwo\nthree\nfour\nfive\n")
    env.write_file("gone", "x\n")
    env.write_file("old name", "kept")
    done = env.apply_patch(_PATCH)
    same([(f.path, f.kind) for f in done.files][:3], [("mod", "modified"), ("gone", "deleted"), ("sub/new", "added")])
    same((done.files[3].path, done.files[3].old_path), ("new name", "old name"))
    same(env.read_file("mod").data, b"one\n2\nthree\nfour\nfive\nsix")
    same(env.read_file("sub/new").data, b"hello\nworld\n")
    same(env.read_file("new name").data, b"kept")
    same(paths_of(env.list_files_recursive()), ["mod", "new name", "sub/new"])


@check
def unsuitable_patches_change_nothing(fixture: ToolFixture) -> None:
    env = fixture.env
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
            same(env.read_file(path).content, content)
        same(paths_of(env.list_files_recursive()), sorted(files))


@check
def moved_hunks_apply_unless_ambiguous(fixture: ToolFixture) -> None:
    env = fixture.env
    patch = "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n"
    env.write_file("f", "0\n0\na\nb\n")
    env.apply_patch(patch)
    same(env.read_file("f").content, "0\n0\na\nB\n")
    env.write_file("f", "0\na\nb\na\nb\n")
    refused(PatchRefused, env.apply_patch, patch)
