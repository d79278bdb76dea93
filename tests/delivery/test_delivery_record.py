"""The requests recorded in a delivery's bundle match those that the backend received."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from fault_server import Exchange, FaultServer, answer
from running_backend import settings

from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.client.sync_client import BackendClient
from proofbox.delivery.deliver import Options, Target, initial_export, pull_request
from proofbox.delivery.patch.baseline import Baseline, FileState
from proofbox.delivery.proof import NO_PROOF
from proofbox.delivery.source.tree import open_source
from proofbox.errors import BackendRejected
from proofbox.evidence.bundle.reader import load_bundle

SHA = "a" * 40
MADE = {"success": True, "repoUrl": "https://host.example/a/b", "repoFullName": "a/b", "baseCommitSha": SHA}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "bin").mkdir(parents=True)
    (root / "bin/run").write_bytes(b"#!/bin/sh\n")
    (root / "bin/run").chmod(0o755)
    (root / "large").write_bytes(bytes(range(256)) * 2000)
    (root / "link").symlink_to("bin/run")
    return root


def without_contents(exchange: Exchange, items: str) -> dict[str, Any]:
    """Return a received request with contents replaced by digests, after checking its key in the header."""
    body: dict[str, Any] = json.loads(exchange.body)
    assert body["idempotencyKey"] == exchange.header("idempotency-key")
    assert body["idempotencyKey"].startswith("pb-")
    for item in body[items]:
        if (content := item.pop("contentBase64", None)) is not None:
            data = base64.b64decode(content)
            if items == "files":
                item |= {"sizeBytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            else:
                assert item["afterSha256"] == hashlib.sha256(data).hexdigest()
    return {"schema_version": "proofbox.delivery_request/1", **body}


def test_export_is_recorded_as_sent(source: Path, tmp_path: Path) -> None:
    with open_source(source) as tree, FaultServer(answer(404, {}), answer(200, MADE)) as server:
        with BackendClient(settings(server.url)) as client:
            options = Options(redactor=Redactor(), out=tmp_path / "out", repo_name="b")
            done = initial_export(client, Target(server.url, "a", "u"), tree, NO_PROOF, options)
        (_, sent) = server.requests
    assert done.bundle is not None
    recorded = load_bundle(done.bundle).read_json("request.json")
    assert recorded == without_contents(sent, "files")
    assert [file["path"] for file in recorded["files"]] == ["bin/run", "large", "link"]


def test_request_that_fills_an_empty_repository_is_recorded(source: Path, tmp_path: Path) -> None:
    """The first attempt created the repository and failed: another request fills it and is retried unchanged."""
    empty: dict[str, Any] = {"baseCommitSha": None, "files": [], "repoUrl": "https://host.example/a/b"}
    script = [
        *(answer(404, {}), answer(502, {})),
        *(answer(200, empty), answer(502, {})),
        *(answer(200, empty), answer(200, MADE)),
    ]
    with open_source(source) as tree, FaultServer(*script) as server:
        with BackendClient(settings(server.url)) as client:
            options = Options(redactor=Redactor(), out=tmp_path / "out")
            done = initial_export(client, Target(server.url, "a", "u"), tree, NO_PROOF, options)
        first, filling, again = server.requests[1::2]
    assert done.bundle is not None
    bundle = load_bundle(done.bundle)
    assert bundle.read_json("request.json") == without_contents(first, "files")
    assert bundle.read_json("instead.1.json") == without_contents(filling, "files") == without_contents(again, "files")
    keys = {bundle.read_json(name)["idempotencyKey"] for name in ("request.json", "instead.1.json")}
    assert len(keys) == 2
    assert not (Path(done.bundle) / "instead.2.json").exists()


@pytest.mark.parametrize("good", [True, False])
def test_pull_request_is_recorded_as_sent(good: bool, source: Path, tmp_path: Path) -> None:
    sha = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("gone", "large")}
    files = [{"path": name, "sha256": each, "sizeBytes": 1, "mode": "100644"} for name, each in sha.items()]
    manifest = {"baseCommitSha": SHA, "files": files, "repoUrl": "https://host.example/a/b"}
    last = answer(200, {"prUrl": "https://host.example/a/b/1"}) if good else answer(422, {})
    with open_source(source) as tree, FaultServer(*[answer(200, manifest)] * 2, last) as server:
        target = Target(server.url, "a", "u")
        target.baselines().save(Baseline().exported({name: FileState(each, "100644") for name, each in sha.items()}))
        with BackendClient(settings(server.url)) as client:
            options = Options(redactor=Redactor(), out=tmp_path / "out")
            if good:
                pull_request(client, target, tree, NO_PROOF, options)
            else:
                with pytest.raises(BackendRejected):
                    pull_request(client, target, tree, NO_PROOF, options)
        sent = server.requests[-1]
    # A failed delivery sent the request as well.
    (written,) = (tmp_path / "out").glob("*/request.json")
    recorded = json.loads(written.read_bytes())
    assert recorded == without_contents(sent, "changes")
    assert {change["path"]: change["operation"] for change in recorded["changes"]} == {
        "bin/run": "add", "gone": "delete", "large": "modify", "link": "add",
    }  # fmt: skip
