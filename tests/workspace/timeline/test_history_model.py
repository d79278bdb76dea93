"""Random edits, snapshots, rollbacks and forks against a plain model."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proofbox import Workspace

Tree = dict[bytes, tuple[str, int, bytes]]
NAMES = [b"a", b"b", b"sub", b".git", b".gitignore", b"odd \xff name", b"new\nline", "é".encode()]
names = st.sampled_from(NAMES)


def read_tree(root: bytes) -> Tree:
    """Return everything below a directory: kind, permission bits, content or target."""
    found: Tree = {}
    for place, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = os.path.join(place, name)
            st_ = os.lstat(path)
            key = os.path.relpath(path, root)
            if os.path.islink(path):
                found[key] = ("link", 0, os.readlink(path))
            elif os.path.isdir(path):
                found[key] = ("directory", st_.st_mode & 0o7777, b"")
            else:
                found[key] = ("file", st_.st_mode & 0o1777, Path(os.fsdecode(path)).read_bytes())
    return found


class History(RuleBasedStateMachine):
    tracked = True

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="ws-"))
        self.root = os.fsencode(self.base / "work")
        os.mkdir(self.root)
        self.kept: dict[str, Tree] = {}
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.workspace = Workspace.init(os.fsdecode(self.root))
        self.workspace.close()
        self.workspace = Workspace.open(os.fsdecode(self.root), track=self.tracked)

    def place(self, parts: list[bytes]) -> bytes:
        return os.path.join(self.root, *parts)

    @rule(
        parts=st.lists(names, min_size=1, max_size=3),
        content=st.binary(max_size=40),
        mode=st.sampled_from([0o644, 0o755, 0o600]),
    )
    def write(self, parts: list[bytes], content: bytes, mode: int) -> None:
        path = self.place(parts)
        parent = os.path.dirname(path)
        if any(
            os.path.islink(self.place(parts[:n])) or os.path.isfile(self.place(parts[:n])) for n in range(1, len(parts))
        ):
            return
        os.makedirs(parent, exist_ok=True)
        if os.path.isdir(path) and not os.path.islink(path):
            return
        if os.path.islink(path):
            os.unlink(path)
        Path(os.fsdecode(path)).write_bytes(content)
        os.chmod(path, mode)

    @rule(parts=st.lists(names, min_size=1, max_size=2))
    def remove(self, parts: list[bytes]) -> None:
        path = self.place(parts)
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        elif os.path.isdir(path):
            shutil.rmtree(path)

    @rule(one=st.lists(names, min_size=1, max_size=2), other=st.lists(names, min_size=1, max_size=2))
    def rename(self, one: list[bytes], other: list[bytes]) -> None:
        source, target = self.place(one), self.place(other)
        inside = other[: len(one)] == one
        if os.path.lexists(source) and not os.path.lexists(target) and not inside and self.is_plain(other[:-1]):
            os.rename(source, target)

    def is_plain(self, parts: list[bytes]) -> bool:
        """Return whether it is a directory that is reached through no link."""
        return all(
            os.path.isdir(self.place(parts[:n])) and not os.path.islink(self.place(parts[:n]))
            for n in range(1, len(parts) + 1)
        )

    @rule(parts=st.lists(names, min_size=1, max_size=2), mode=st.sampled_from([0o755, 0o700, 0o644, 0o4711, 0o500]))
    def chmod(self, parts: list[bytes], mode: int) -> None:
        path = self.place(parts)
        if os.path.lexists(path) and not os.path.islink(path):
            os.chmod(path, mode | (0o700 if os.path.isdir(path) else 0o400))

    @rule(name=names, to=st.sampled_from([b"a", b"/etc/passwd", b"../outside", b"nowhere"]))
    def link(self, name: bytes, to: bytes) -> None:
        if not os.path.lexists(self.place([name])):
            os.symlink(to, self.place([name]))

    @rule(name=names)
    def make_directory(self, name: bytes) -> None:
        if not os.path.lexists(self.place([name])):
            os.mkdir(self.place([name]))

    @rule(sealed=st.booleans())
    def snapshot(self, sealed: bool) -> None:
        before = self.workspace.head
        taken = self.workspace.snapshot("step", sealed=sealed)
        self.kept[taken.id] = read_tree(self.root)
        if before is not None:
            reported = self.workspace.diff(before.id, taken.id)
            assert taken.changed == sum(2 if change.kind == "renamed" else 1 for change in reported)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        wanted = data.draw(st.sampled_from(sorted(self.kept)))
        self.workspace.rollback(wanted)
        assert read_tree(self.root) == self.kept[wanted]

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        wanted = data.draw(st.sampled_from(sorted(self.kept)))
        self.count += 1
        dest = self.base / f"fork-{self.count}"
        fork = self.workspace.fork(wanted, dest)
        try:
            assert read_tree(os.fsencode(dest)) == self.kept[wanted]
            assert fork.snapshot("as it was").id == wanted
        except BaseException:
            fork.close()
            raise
        if not data.draw(st.booleans(), label="continue in the fork"):
            fork.close()
            return
        self.workspace.close()
        self.workspace, self.root, self.kept = fork, os.fsencode(dest), {wanted: self.kept[wanted]}

    @rule()
    def reopen(self) -> None:
        self.workspace.close()
        self.workspace = Workspace.open(os.fsdecode(self.root), track=self.tracked)

    @invariant()
    def unchanged_trees_keep_their_id(self) -> None:
        if self.kept and hasattr(self, "workspace"):
            taken = self.workspace.snapshot("same?")
            same = [known for known, tree in self.kept.items() if tree == read_tree(self.root)]
            assert not same or taken.id in same

    def teardown(self) -> None:
        if hasattr(self, "workspace"):
            assert self.workspace.verify().sound
            self.workspace.close()
        shutil.rmtree(self.base, ignore_errors=True)


class ScannedHistory(History):
    tracked = False


TestTracked = History.TestCase
TestScanned = ScannedHistory.TestCase
# Each example has a separate store, which is synced on every close: 5,000 examples would take an hour.
TestTracked.settings = TestScanned.settings = settings(
    stateful_step_count=20, max_examples=min(settings().max_examples // 2, 1000)
)
