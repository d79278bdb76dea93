"""Init, change, pull request, merge, second pull request: on the command line, over HTTP, with real repositories."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from running_backend import KEY, Backend, backend, bare, clone, deliver, git, run, settings, tree_of

import proofbox
from proofbox.cli import main
from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.client.settings import BackendSettings
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.deliver import Options, Target, initial_export, plan, pull_request
from proofbox.delivery.patch.baseline import Baseline
from proofbox.delivery.proof import NO_PROOF
from proofbox.delivery.source.tree import open_source
from proofbox.errors import BackendUnauthorized, DeliveryNotProven
from proofbox.evidence.bundle.reader import load_bundle

pytestmark = pytest.mark.needs("git")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Backend]:
    with backend(tmp_path / "data") as started:
        yield started


@pytest.fixture
def app(tmp_path: Path) -> Path:
    root = tmp_path / "app"
    (root / "bin").mkdir(parents=True)
    (root / "bin/run").write_bytes(b"#!/bin/sh\r\necho hi\n")
    (root / "bin/run").chmod(0o755)
    (root / "blob").write_bytes(bytes(range(256)) * 30)
    (root / 'we"ird \\name\u202e.txt'.replace("\\", "")).write_text("<script>alert(1)</script>")
    (root / "README.md").write_text("one\ntwo\nthree\n")
    (root / "link").symlink_to("bin/run")
    (root / ".env").write_text("PASSWORD=x")
    return root


@contextmanager
def web(url: str) -> Iterator[httpx2.Client]:
    """A signed-in browser."""
    with httpx2.Client(base_url=url, headers={"Origin": url}, follow_redirects=True, trust_env=False) as client:
        home = client.post("/sign-in", data={"key": KEY})
        assert home.status_code == 200
        client.base_url = home.url
        yield client


def press(client: httpx2.Client, pr_url: str, button: str) -> httpx2.Response:
    path = urlsplit(pr_url).path
    token = re.search(r'name="token" value="([\w-]+)"', client.get(path).text)
    return client.post(f"{path}/{button}", data={"token": token[1] if token else ""})


def test_deliver_from_python(running: Backend, app: Path, tmp_path: Path) -> None:
    backend = settings(running.url)
    with pytest.raises(DeliveryNotProven):
        proofbox.deliver_repository(app, app_id="shop", backend=backend)
    planned = proofbox.plan_delivery(app, app_id="shop", backend=backend)
    made = proofbox.deliver_repository(
        app, app_id="shop", allow_unpromoted=True, out=tmp_path / "out", message="First", backend=backend
    )
    assert (made.patch_id, made.proof.standing) == (planned.patch_id, "not proven")
    assert git(clone(made.repo_url or "", tmp_path / "one"), "log", "--format=%s").strip() == "First"
    (app / "README.md").write_text("two\n")
    again = proofbox.plan_delivery(app, app_id="shop", backend=backend)
    assert [(each.path, each.operation) for each in again.changes] == [("README.md", "modify")]
    opened = proofbox.deliver_pull_request(
        app, app_id="shop", allow_unpromoted=True, out=tmp_path / "out", branch="two", backend=backend
    )
    assert (opened.branch_name, opened.patch_id) == ("two", again.patch_id)
    assert load_bundle(opened.bundle or "").run_id
    # The command line sees what Python delivered.
    assert deliver(running.url, "plan", "--app-id", "shop", "--source", app)["patch_id"] == again.patch_id


def test_deliver_from_init_to_second_pull_request(running: Backend, app: Path, tmp_path: Path) -> None:
    common = ["--app-id", "shop", "--source", app, "--allow-unpromoted", "--out", tmp_path / "out"]
    planned = deliver(running.url, "plan", "--app-id", "shop", "--source", app)
    assert planned["base_commit_sha"] is None
    made = deliver(running.url, "init", *common)
    assert made["patch_id"] == planned["patch_id"]
    assert [left["path"] for left in made["left_out"]] == [".env"]
    expected = {path: file for path, file in tree_of(app).items() if path != ".env"}
    assert tree_of(clone(made["repo_url"], tmp_path / "one")) == expected
    assert made["base_commit_sha"] == git(tmp_path / "one", "rev-parse", "HEAD").strip()

    # Repeating the command creates nothing new.
    assert deliver(running.url, "init", *common)["base_commit_sha"] == made["base_commit_sha"]
    assert len(bare(running.data)) == 1
    assert deliver(running.url, "pr", *common)["pr_url"] is None

    (app / "README.md").write_text("one\n2\nthree\n")
    (app / "bin/run").chmod(0o644)
    (app / "blob").rename(app / "moved")
    (app / "link").unlink()
    (app / "new").mkdir()
    (app / "new/file").write_text("new\n")
    shown = run("deliver", "plan", "--app-id", "shop", "--source", app, url=running.url).stdout
    assert "-two\n+2\n" in shown
    assert "rename    blob → moved" in shown
    assert "mode 100755 → 100644" in shown
    first = deliver(running.url, "pr", *common, "--title", "<b>bold</b>\u202e")
    assert first["pr_url"].startswith(running.url)
    assert {change["path"]: change["operation"] for change in first["changes"]} == {
        "README.md": "modify", "bin/run": "modify", "blob": "delete", "link": "delete", "moved": "add",
        "new/file": "add",
    }  # fmt: skip
    again = deliver(running.url, "pr", *common)
    assert (again["pr_url"], again["patch_id"]) == (first["pr_url"], first["patch_id"])

    with web(running.url) as browser:
        listed = browser.get("/apps/shop").text
        assert "&lt;b&gt;bold&lt;/b&gt;\\u202e" in listed
        page = browser.get(urlsplit(first["pr_url"]).path).text
        assert '<span class="add">+2</span>' in page
        assert "<script" not in page + listed
        assert press(browser, first["pr_url"], "merge").status_code == 200
        assert '<span class="badge merged">' in browser.get(urlsplit(first["pr_url"]).path).text
        assert (
            press(browser, first["pr_url"], "close").status_code == 403
        )  # the page has no form any more, so there is no token

    expected = {path: file for path, file in tree_of(app).items() if path != ".env"}
    assert tree_of(clone(made["repo_url"], tmp_path / "two")) == expected

    (app / "README.md").write_text("one\n2\n3\n")
    second = deliver(running.url, "pr", *common)
    assert second["pr_url"] != first["pr_url"]
    assert second["base_commit_sha"] == git(tmp_path / "two", "rev-parse", "HEAD").strip()
    with web(running.url) as browser:
        press(browser, second["pr_url"], "merge")
    assert (clone(made["repo_url"], tmp_path / "three") / "README.md").read_text() == "one\n2\n3\n"

    stored = load_bundle(second["bundle"])
    assert stored.read_json("answer.json")["prUrl"] == second["pr_url"]
    assert stored.read_json("request.json")["branchName"] == second["branch_name"]
    everything = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert KEY.encode() not in everything


def test_changes_by_others_are_not_overwritten(running: Backend, app: Path, tmp_path: Path) -> None:
    common = ["--app-id", "shop", "--source", app]
    made = deliver(running.url, "init", *common, "--allow-unpromoted")
    place = clone(made["repo_url"], tmp_path / "clone")
    (place / "README.md").write_text("theirs\n")
    (place / "added").write_text("theirs\n")
    git(place, "rm", "--quiet", "blob")
    git(place, "add", "-A")
    git(place, "commit", "--quiet", "-m", "work")
    git(place, "push", "--quiet", str(bare(running.data)[0]), "main")

    assert deliver(running.url, "plan", *common)["kept"] == ["README.md", "blob"]
    (app / "README.md").write_text("ours\n")
    (app / "blob").write_text("ours\n")
    (app / "added").write_text("ours\n")
    planned = deliver(running.url, "plan", *common, expect=1)
    kinds = {each["path"]: each["kind"] for each in planned["conflicts"]}
    assert kinds == {
        "README.md": "repo_modified_since_baseline",
        "added": "repo_has_file",
        "blob": "repo_modified_since_baseline",
    }
    refused = deliver(running.url, "pr", *common, "--allow-unpromoted", expect=1)
    assert refused["error"]["code"] == "DELIVERY_CONFLICT"
    assert refused["error"]["conflicts"] == planned["conflicts"]
    assert deliver(running.url, "init", *common, "--allow-unpromoted", expect=1)["error"]["code"] == (
        "DELIVERY_BACKEND_CONFLICT"
    )


def test_merge_with_later_changes_on_main(running: Backend, app: Path, tmp_path: Path) -> None:
    common = ["--app-id", "shop", "--source", app, "--allow-unpromoted"]
    made = deliver(running.url, "init", *common)
    (app / "README.md").write_text("ours\n")
    first = deliver(running.url, "pr", *common)
    (app / "README.md").write_text("ours, again\n")
    second = deliver(running.url, "pr", *common)
    place = clone(made["repo_url"], tmp_path / "clone")
    (place / "theirs").write_text("theirs\n")
    git(place, "add", "-A")
    git(place, "commit", "--quiet", "-m", "work")
    git(place, "push", "--quiet", str(bare(running.data)[0]), "main")
    with web(running.url) as browser:
        assert press(browser, first["pr_url"], "merge").status_code == 200
        assert press(browser, second["pr_url"], "merge").status_code == 409
        assert press(browser, second["pr_url"], "close").status_code == 200
        assert '<span class="badge closed">' in browser.get(urlsplit(second["pr_url"]).path).text
    merged = clone(made["repo_url"], tmp_path / "merged")
    assert (merged / "README.md").read_text() == "ours\n"
    assert (merged / "theirs").read_text() == "theirs\n"
    third = deliver(running.url, "pr", *common)
    assert not third["conflicts"]
    assert third["pr_url"] not in (first["pr_url"], second["pr_url"])


def test_a_spec_becomes_a_mission(running: Backend, tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "appId": "shop",
        "appName": 'Shop "9"\n[evil]',
        "description": "Sells\x7f things\x1b",
        "techStack": {"web": ["svelte"]},
        "ownerUserId": "u-1",
    }
    api = httpx2.Client(base_url=running.url, headers={"X-Internal-Api-Key": KEY}, trust_env=False)
    place = "/api/enterprises/e-1/appgen/spec"
    with api:
        assert api.put(place, json=spec).status_code == 200
        assert api.put(place, json={"appId": "x", "description": "token: ghp_" + "a" * 36}).status_code == 422
    found = deliver(running.url, "spec", "--enterprise-id", "e-1", "--as-mission", tmp_path / "shop.toml")
    assert main(["suite", "lint", str(tmp_path / "shop.toml")]) == 0
    assert found["spec"] == spec
    suite = tomllib.loads((tmp_path / "shop.toml").read_text())
    assert suite["suite"] == {"id": "shop"}
    (mission,) = suite["mission"]
    assert set(mission) == {"id", "tags", "prompt", "verify"}
    assert "Sells" in mission["prompt"]
    assert "svelte" in mission["prompt"]
    unknown = deliver(running.url, "spec", "--enterprise-id", "nobody", expect=2)
    assert unknown["error"]["ids"] == {"enterprise_id": "nobody"}
    deliver(running.url, "spec", "--enterprise-id", "e-1", "--as-mission", tmp_path / "shop.toml", expect=2)

    # Only the owner may export; the spec then names the repository.
    (tmp_path / "app").mkdir()
    (tmp_path / "app/a").write_text("a")
    common = ["--app-id", "shop", "--source", tmp_path / "app", "--allow-unpromoted"]
    assert deliver(running.url, "init", *common, expect=3)["error"]["code"] == "DELIVERY_FORBIDDEN"
    made = deliver(running.url, "init", *common, "--enterprise-id", "e-1")
    after = deliver(running.url, "spec", "--enterprise-id", "e-1")["spec"]
    assert after["gitHubRepoFullName"] == made["repo_full_name"]
    assert json.dumps(after).count(KEY) == 0


def test_a_zip_of_the_same_files_changes_nothing(running: Backend, app: Path, tmp_path: Path) -> None:
    deliver(running.url, "init", "--app-id", "a", "--source", app, "--allow-unpromoted")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in app.rglob("*"):
            if path.is_file() and not path.is_symlink():
                archive.write(path, path.relative_to(app))
    planned = deliver(running.url, "plan", "--app-id", "a", "--source", tmp_path / "a.zip")
    assert [(each["path"], each["operation"]) for each in planned["changes"]] == [("link", "delete")]


def test_first_api_version_is_supported(app: Path, tmp_path: Path) -> None:
    """It does not support modes, branches in manifests or idempotency keys, and its errors have no details."""
    (app / "link").unlink()
    with backend(tmp_path / "data", old=True, forgetful=True) as running:
        common = ["--app-id", "shop", "--source", app, "--allow-unpromoted"]
        made = deliver(running.url, "init", *common)
        assert deliver(running.url, "init", *common)["base_commit_sha"] == made["base_commit_sha"]
        (app / "README.md").write_text("changed\n")
        (app / "bin/run").rename(app / "bin/go")
        proposed = deliver(running.url, "pr", *common)
        assert [(each["path"], each["operation"]) for each in proposed["changes"]] == [
            ("README.md", "modify"),
            ("bin/go", "add"),
            ("bin/run", "delete"),
        ]
        again = deliver(running.url, "pr", *common, expect=1)
        assert again["error"]["code"] == "DELIVERY_BACKEND_CONFLICT"
        (repository,) = bare(running.data)
        branches = git(repository, "for-each-ref", "--format=%(refname)", "refs/heads").split()
        assert branches == ["refs/heads/main", f"refs/heads/{proposed['branch_name']}"]
        assert git(repository, "show", f"{proposed['branch_name']}:README.md") == "changed\n"


class Killed(BaseException):
    """Simulates a kill signal."""


class DyingClient(BackendClient):
    """Dies after the response has arrived and before it is processed."""

    def initial_export(self, *given: Any, **more: Any) -> Any:
        super().initial_export(*given, **more)
        raise Killed

    def create_pull_request(self, *given: Any, **more: Any) -> Any:
        super().create_pull_request(*given, **more)
        raise Killed


def test_killed_client_recognizes_its_files(running: Backend, app: Path) -> None:
    target = Target(running.url, "shop", "u")
    options = Options(redactor=Redactor())
    with DyingClient(settings(running.url)) as client:
        with open_source(app) as tree, pytest.raises(Killed):
            initial_export(client, target, tree, NO_PROOF, options)
        (app / "README.md").write_text("changed\n")
        with open_source(app) as tree:
            patch, _ = plan(client, target, tree)
            assert [(each.path, each.operation) for each in patch.changes] == [("README.md", "modify")]
            assert not patch.conflicts
            with pytest.raises(Killed):
                pull_request(client, target, tree, NO_PROOF, options)
    with BackendClient(settings(running.url)) as client, open_source(app) as tree:
        done = pull_request(client, target, tree, NO_PROOF, options)
    assert done.pr_url is not None
    assert done.pr_url.endswith("/pulls/1")


def test_refused_request_is_removed_from_the_baseline(running: Backend, app: Path) -> None:
    target = Target(running.url, "shop", "u")
    other = BackendSettings.of("another-key-0123", running.url)
    with open_source(app) as tree, BackendClient(other) as client, pytest.raises(BackendUnauthorized):
        initial_export(client, target, tree, NO_PROOF, Options(redactor=Redactor()))
    assert target.baselines().load() == Baseline()


def test_spec_is_stored_while_the_backend_runs(running: Backend, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps({"appId": "shop", "appName": "Shop"}))
    assert (
        main(["backend", "spec", str(tmp_path / "spec.json"), "--enterprise-id", "e", "--data", str(running.data)]) == 0
    )
    assert deliver(running.url, "spec", "--enterprise-id", "e")["spec"]["appName"] == "Shop"
