"""Random sequences of exports, proposals, merges, closings, pushes and restarts, compared with a model."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proofbox.core.clock import ManualClock
from proofbox.delivery.backend.repositories import Repositories
from proofbox.delivery.backend.rules import BackendRefusal
from proofbox.delivery.client.wire import (
    InitialExport,
    ManifestRequest,
    Operation,
    PullRequest,
    RepositoryChange,
    UploadedFile,
)

pytestmark = pytest.mark.needs("git")

Tree = dict[str, bytes]
PATHS = st.sampled_from(["a", "b", "dir/c", 'q "uo\u00e9te'])
CONTENTS = st.binary(max_size=4)
ASKED = ManifestRequest(repo_url=None, user_id="u")


class BackendHistories(RuleBasedStateMachine):
    @initialize(files=st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=3))
    def export(self, files: Tree) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="histories-"))
        self.open_backend()
        exported = InitialExport(
            user_id="u", files=tuple(UploadedFile(path=path, content_base64=data) for path, data in files.items())
        )
        answer = self.backend.export("app", exported, "key", "digest")
        assert self.backend.export("app", exported, "key", "digest") == answer
        self.main: Tree = dict(files)
        self.commits: dict[str, Tree] = {answer.base_commit_sha: dict(files)}
        self.head = answer.base_commit_sha
        self.pulls: dict[int, tuple[str, str, Tree]] = {}
        """Number → state, base, tree of the branch."""

    def open_backend(self) -> None:
        self.backend = Repositories(self.place, "http://localhost", clock=ManualClock())

    @rule()
    def restart(self) -> None:
        self.backend.close()
        self.open_backend()

    @rule(path=PATHS, data=st.none() | CONTENTS, on_old_base=st.booleans())
    def propose(self, path: str, data: bytes | None, on_old_base: bool) -> None:
        base = next(iter(self.commits)) if on_old_base else self.head
        tree = self.commits[base]
        operation: Operation = "delete" if data is None else "modify" if path in tree else "add"
        change = RepositoryChange(path=path, operation=operation, content_base64=data)
        number = len(self.pulls) + 1
        request = PullRequest(user_id="u", base_commit_sha=base, branch_name=f"b{number}", title="t", changes=(change,))
        if data is None and path not in tree:
            with pytest.raises(BackendRefusal):
                self.backend.propose("app", request, f"k{number}", "d")
            return
        answer = self.backend.propose("app", request, f"k{number}", "d")
        assert self.backend.propose("app", request, f"k{number}", "d") == answer
        with pytest.raises(BackendRefusal):
            self.backend.propose("app", request, None, "d")
        result = {**tree, path: data} if data is not None else {name: tree[name] for name in tree if name != path}
        self.pulls[number] = ("open", base, result)

    @precondition(lambda self: self.pulls)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.pulls)))
        state, base, tree = self.pulls[number]
        expected = three_way(self.commits[base], self.main, tree) if state == "open" else None
        if expected is None:
            with pytest.raises(BackendRefusal):
                self.backend.merge("app", number)
            return
        assert self.backend.merge("app", number).state == "merged"
        self.pulls[number] = ("merged", base, tree)
        self.main = expected
        self.head = self.backend.manifest("app", ASKED).base_commit_sha or ""
        self.commits[self.head] = dict(expected)

    @precondition(lambda self: self.pulls)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.pulls)))
        state, base, tree = self.pulls[number]
        if state == "open":
            self.backend.close_pull("app", number)
            self.pulls[number] = ("closed", base, tree)
        else:
            with pytest.raises(BackendRefusal):
                self.backend.close_pull("app", number)

    @invariant()
    def reported_state_matches_the_model(self) -> None:
        if not hasattr(self, "backend"):
            return
        assert shown(self.backend, ASKED) == digests(self.main)
        assert {pull.number: pull.state for pull in self.backend.pulls("app")} == {
            number: state for number, (state, _, _) in self.pulls.items()
        }
        for number, (_, _, tree) in self.pulls.items():
            request = ManifestRequest(repo_url=None, user_id="u", branch_name=f"b{number}")
            assert shown(self.backend, request) == digests(tree)

    def teardown(self) -> None:
        if hasattr(self, "backend"):
            (repository,) = (self.place / "repos").iterdir()
            self.backend.close()
            subprocess.run(["git", "fsck", "--strict"], cwd=repository, check=True, capture_output=True)
            shutil.rmtree(self.place)


def three_way(base: Tree, ours: Tree, theirs: Tree) -> Tree | None:
    """Return the expected result of a merge, or None for a conflict: such small files cannot be merged by line."""
    result = {}
    for path in {*base, *ours, *theirs}:
        was, one, other = base.get(path), ours.get(path), theirs.get(path)
        if one != other and one != was and other != was:
            return None
        chosen = other if one == was else one
        if chosen is not None:
            result[path] = chosen
    return result


def digests(tree: Tree) -> dict[str, str]:
    return {path: hashlib.sha256(data).hexdigest() for path, data in tree.items()}


def shown(backend: Repositories, request: ManifestRequest) -> dict[str, str]:
    return {file.path: file.sha256 for file in backend.manifest("app", request).files}


TestBackendHistories = BackendHistories.TestCase
TestBackendHistories.settings = settings(
    max_examples=max(4, settings().max_examples // 15), stateful_step_count=12, deadline=None
)
