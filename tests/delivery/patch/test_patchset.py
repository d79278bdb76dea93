"""The three-way comparison: single cases, and random histories in which no one's work is lost."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from proofbox.core.digest import sha256_hex
from proofbox.delivery.client.wire import ManifestFile, Mode, RepoManifest
from proofbox.delivery.patch.baseline import Baseline, BaselineStore, FileState, encode_baseline, parse_baseline
from proofbox.delivery.patch.patchset import PatchChange, Patchset, patchset
from proofbox.delivery.source.tree import LeftOut, SourceFile, SourceTree
from proofbox.errors import CorruptError

Files = dict[str, str]
"""Path → content; an x at the end of the content makes the file executable."""


def state(content: str) -> FileState:
    return FileState(sha256_hex(content.encode()), mode(content))


def mode(content: str) -> Mode:
    return "100755" if content.endswith("x") else "100644"


def source(files: Files, left_out: tuple[str, ...] = ()) -> SourceTree:
    found = [
        SourceFile(path, mode(data), len(data), sha256_hex(data.encode()), lambda: iter(()))
        for path, data in files.items()
    ]
    return SourceTree("test", tuple(found), tuple(LeftOut(path, "secret") for path in left_out))


def manifest(files: Files, *, modes: bool = True) -> RepoManifest:
    found = [
        ManifestFile(
            path=path, sha256=sha256_hex(data.encode()), size_bytes=len(data), mode=mode(data) if modes else None
        )
        for path, data in files.items()
    ]
    return RepoManifest(base_commit_sha="c" * 40, files=tuple(found))


def exported(files: Files) -> Baseline:
    return Baseline().exported({path: state(data) for path, data in files.items()})


def operations(found: Patchset) -> dict[str, str]:
    return {each.path: each.operation for each in found.changes}


def test_add_modify_delete_with_both_digests() -> None:
    old = {"same": "1", "changed": "1", "gone": "1"}
    new = {"same": "1", "changed": "2", "new": "3"}
    found = patchset(source(new), manifest(old), exported(old))
    assert operations(found) == {"changed": "modify", "gone": "delete", "new": "add"}
    assert not found.conflicts
    assert found.unchanged == 1
    assert found.changes[0] == PatchChange(
        "changed", "modify", sha256_hex(b"1"), sha256_hex(b"2"), "100644", "100644", 1
    )


def test_files_never_delivered_are_left_alone() -> None:
    found = patchset(source({"a": "1"}), manifest({"a": "1", "theirs": "2"}), exported({"a": "1"}))
    assert not found.changes
    assert not found.conflicts
    assert found.not_ours == 1


def test_without_a_baseline_nothing_is_deleted_or_overwritten() -> None:
    found = patchset(source({"a": "2", "b": "1"}), manifest({"a": "1", "c": "1"}), Baseline())
    assert operations(found) == {"b": "add"}
    (conflict,) = found.conflicts
    assert (conflict.path, conflict.kind) == ("a", "repo_has_file")
    assert (conflict.baseline_sha256, conflict.repo_sha256, conflict.source_sha256) == (
        None,
        sha256_hex(b"1"),
        sha256_hex(b"2"),
    )


@pytest.mark.parametrize(("repo", "ours"), [("2", "3"), ("2", None), (None, "3")])
def test_changed_on_both_sides_is_a_conflict_with_three_digests(repo: str | None, ours: str | None) -> None:
    found = patchset(source({"a": ours} if ours else {}), manifest({"a": repo} if repo else {}), exported({"a": "1"}))
    assert not found.changes
    (conflict,) = found.conflicts
    assert conflict.kind == "repo_modified_since_baseline"
    assert conflict.baseline_sha256 == sha256_hex(b"1")
    assert conflict.repo_sha256 == (sha256_hex(repo.encode()) if repo else None)
    assert conflict.source_sha256 == (sha256_hex(ours.encode()) if ours else None)


@pytest.mark.parametrize("repo", ["2", None])
def test_file_changed_only_in_the_repository_is_kept(repo: str | None) -> None:
    found = patchset(source({"a": "1"}), manifest({"a": repo} if repo else {}), exported({"a": "1"}))
    assert not found.changes
    assert not found.conflicts
    assert found.kept == ("a",)


def test_same_change_on_both_sides_is_no_change() -> None:
    found = patchset(source({"a": "2"}), manifest({"a": "2"}), exported({"a": "1"}))
    assert (found.changes, found.conflicts, found.unchanged) == ((), (), 1)


def test_modes_are_compared_if_the_backend_reports_them() -> None:
    found = patchset(source({"a": "x"}), manifest({"a": "x"}, modes=False), exported({"a": "x"}))
    assert not found.changes
    repo = RepoManifest(
        base_commit_sha="c",
        files=(ManifestFile(path="a", sha256=sha256_hex(b"x"), size_bytes=1, mode="100644"),),
    )
    baseline = Baseline().exported({"a": FileState(sha256_hex(b"x"), "100644")})
    (change,) = patchset(source({"a": "x"}), repo, baseline).changes
    assert (change.operation, change.before_mode, change.after_mode) == ("modify", "100644", "100755")


def test_unmerged_changes_are_proposed_again() -> None:
    repo = {"a": "1"}
    baseline = exported(repo)
    first = patchset(source({"a": "2", "b": "1"}), manifest(repo), baseline)
    baseline = proposed(baseline, first)
    second = patchset(source({"a": "3", "b": "1"}), manifest(repo), baseline.observed(manifest(repo)))
    assert operations(second) == {"a": "modify", "b": "add"}
    assert not second.conflicts


def test_file_restored_after_our_deletion_stays() -> None:
    baseline = exported({"a": "1"})
    gone = patchset(source({}), manifest({"a": "1"}), baseline)
    assert operations(gone) == {"a": "delete"}
    baseline = proposed(baseline, gone).observed(manifest({}))
    again = patchset(source({}), manifest({"a": "1"}), baseline.observed(manifest({"a": "1"})))
    assert not again.changes
    assert again.not_ours == 1


def test_left_out_files_are_not_deleted() -> None:
    found = patchset(source({}, (".env",)), manifest({".env": "1"}), exported({".env": "1"}))
    assert not found.changes


def test_rename_is_sent_as_two_changes() -> None:
    old = {"a.txt": "content", "empty": ""}
    found = patchset(source({"b/a.txt": "content", "empty2": ""}), manifest(old), exported(old))
    assert operations(found) == {"a.txt": "delete", "b/a.txt": "add", "empty": "delete", "empty2": "add"}
    by_path = {each.path: each for each in found.changes}
    assert by_path["b/a.txt"].renamed_from == "a.txt"
    assert by_path["a.txt"].renamed_to == "b/a.txt"
    assert by_path["empty2"].renamed_from is None


@pytest.mark.parametrize(
    ("ours", "theirs", "blocking"), [({"a/b": "1"}, {"a": "2"}, "a"), ({"a": "1"}, {"a/b": "2"}, "a/b")]
)
def test_file_and_directory_at_the_same_path_conflict(ours: Files, theirs: Files, blocking: str) -> None:
    found = patchset(source(ours), manifest(theirs), Baseline())
    (conflict,) = found.conflicts
    assert (conflict.path, conflict.kind) == (blocking, "repo_has_file")
    mine = patchset(source(ours), manifest(theirs), exported(theirs))
    assert not mine.conflicts
    assert len(mine.changes) == 2


def test_patch_id_depends_only_on_the_changes() -> None:
    old, new = {"a": "1", "b": "1"}, {"a": "2", "c": "1"}
    found = patchset(source(new), manifest(old), exported(old))
    backwards = patchset(source(dict(reversed(new.items()))), manifest(dict(reversed(old.items()))), exported(old))
    other_base = RepoManifest(base_commit_sha="d" * 40, files=manifest({**old, "theirs": "5"}).files)
    assert found.patch_id == backwards.patch_id
    assert found.changes == backwards.changes
    assert found.patch_id == patchset(source(new), other_base, exported(old)).patch_id
    assert found.patch_id != patchset(source({**new, "a": "3"}), manifest(old), exported(old)).patch_id
    assert found.branch_name == "proofbox/" + found.patch_id[:16]


def test_baseline_is_stored_and_a_damaged_one_refused() -> None:
    store = BaselineStore("http://localhost:3000", "app-1")
    assert store.load() == Baseline()
    baseline = proposed(exported({"a": "1"}), patchset(source({"b": "1"}), manifest({"a": "1"}), exported({"a": "1"})))
    store.save(baseline)
    assert store.load() == baseline
    assert BaselineStore("http://localhost:3000", "app-2").load() == Baseline()
    data = encode_baseline(baseline).replace(b"100644", b"100755", 1)
    with pytest.raises(CorruptError):
        parse_baseline(data, "x")


def proposed(baseline: Baseline, found: Patchset) -> Baseline:
    return baseline.proposed(
        (each.path, FileState(each.after_sha256, each.after_mode) if each.after_sha256 else None)
        for each in found.changes
    )


PATHS = st.sampled_from(["a", "b", "c/d", "c/e", "f"])
CONTENTS = st.sampled_from(["1", "2", "3", "4x"])


class Histories(RuleBasedStateMachine):
    """We deliver, people edit the repository, pull requests are merged late, never, or out of order."""

    @initialize(files=st.dictionaries(PATHS, CONTENTS, max_size=4))
    def export(self, files: Files) -> None:
        self.repo = dict(files)
        self.ours = dict(files)
        self.baseline = exported(files)
        self.written_by_us = {path: {state(data)} for path, data in files.items()}
        self.open: list[Patchset] = []
        self.contents = {state(data): data for data in ("1", "2", "3", "4x")}

    @rule(path=PATHS, data=CONTENTS)
    def we_write(self, path: str, data: str) -> None:
        self.ours[path] = data

    @rule(path=PATHS)
    def we_delete(self, path: str) -> None:
        self.ours.pop(path, None)

    @rule(path=PATHS, data=CONTENTS)
    def someone_writes(self, path: str, data: str) -> None:
        self.repo[path] = data

    @rule(path=PATHS)
    def someone_deletes(self, path: str) -> None:
        self.repo.pop(path, None)

    @rule(seed=st.integers(0, 9))
    def deliver(self, seed: int) -> None:
        self.baseline = self.baseline.observed(manifest(self.repo))
        items = list(self.repo.items())
        random.Random(seed).shuffle(items)  # noqa: S311
        found = patchset(source(self.ours), manifest(dict(items)), self.baseline)
        assert found == patchset(source(self.ours), manifest(self.repo), self.baseline)
        for each in found.changes:
            if each.operation == "add":
                assert each.path not in self.repo
            else:
                assert state(self.repo[each.path]) in self.written_by_us.get(each.path, set()), "not ours to change"
        for conflict in found.conflicts:
            assert self.repo.get(conflict.path) != self.ours.get(conflict.path)
        settled = {*found.kept, *(each.path for each in found.conflicts)}
        result = self.applied(found)
        for path, data in self.ours.items():
            assert result.get(path) == data or path in settled
        if found.changes and not found.conflicts:
            self.baseline = proposed(self.baseline, found)
            self.open.append(found)
            for each in found.changes:
                if each.after_sha256:
                    self.written_by_us.setdefault(each.path, set()).add(FileState(each.after_sha256, each.after_mode))

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        if self.open:
            chosen = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            if all(self.sha(each.path) == each.before_sha256 for each in chosen.changes):
                self.repo = self.applied(chosen)

    def sha(self, path: str) -> str | None:
        return state(self.repo[path]).sha256 if path in self.repo else None

    def applied(self, found: Patchset) -> Files:
        result = dict(self.repo)
        for each in found.changes:
            if each.after_sha256 is None:
                del result[each.path]
            else:
                result[each.path] = self.contents[FileState(each.after_sha256, each.after_mode)]
        return result


TestHistories = Histories.TestCase
