"""Bundles that a node returns: one that claims anything except the result of its attempt on that node is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from forging import rebuild
from suites import HEAD, attempts, conduct, mission, plan, say, write

from proofbox.core.canonical import canonical_bytes
from proofbox.core.digest import sha256_file
from proofbox.errors import BundleError
from proofbox.evidence.bundle.index import Artifact
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.context import RunContext
from proofbox.lab.run.crews.cluster.returned import open_returned
from proofbox.lab.run.crews.cluster.transfer import bundle_pieces
from proofbox.lab.run.ledger import Attempt, Ended
from proofbox.lab.run.worker import WorkerInputs
from proofbox.workspace import registry
from proofbox.workspace.workspace import Workspace

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("returned")]

NODE = "node-1"
RECORD = json.loads((Path(__file__).parents[2] / "schemas/proofbox.node/1.json").read_bytes())
Document = dict[str, Any]


class Returned(NamedTuple):
    """The bundle of an attempt as a node returns it, and what the conductor knows about the attempt."""

    bundle: Path
    attempt: Attempt
    run: RunContext

    def change(self, name: str, change: Callable[[Document], object]) -> None:
        """Change a document, and recompute the digests of the bundle."""
        place = self.bundle / name
        document = json.loads(place.read_bytes())
        change(document)
        place.write_bytes(canonical_bytes(document))
        rebuild(self.bundle)

    def open(self) -> Ended:
        archive = self.bundle.with_name("returned.tar")
        archive.write_bytes(b"".join(bundle_pieces(self.bundle, self.bundle.with_name("scratch.tar"))))
        digest = artifacts.index_sha256(self.bundle)
        return open_returned(archive, self.bundle.with_name("received"), digest, self.attempt, NODE, self.run)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Returned:
    """An attempt that ran on this machine. Its store is removed, because that of a node's attempt is on the node."""
    base = tmp_path_factory.mktemp("made")
    out = base / "out"
    verify = {"commands": ["grep -qx 42 answer.txt"]}
    run = plan(HEAD + mission("answer", write("answer.txt", "42\n"), say("done"), verify=verify), out, base)
    place = conduct(run, out)
    attempt = attempts(run, out)["answer.1"]
    bundle = place / attempt.path
    registry.drop_store(json.loads((bundle / artifacts.ATTEMPT).read_bytes())["final"]["store"])
    (bundle / artifacts.NODE).write_bytes(canonical_bytes({**RECORD, "name": NODE}))
    rebuild(bundle)
    return Returned(bundle, attempt, WorkerInputs.open(out, run.run_id, "worker").context)


@pytest.fixture
def returned(made: Returned, tmp_path: Path) -> Returned:
    shutil.copytree(made.bundle, tmp_path / "bundle")
    return made._replace(bundle=tmp_path / "bundle")


def test_bundle_of_the_attempt_and_the_node_is_accepted(returned: Returned) -> None:
    ended = returned.open()
    assert (ended.verified, ended.infra) == ("passed", None)
    assert (returned.bundle.with_name("received") / INDEX).exists()


CLAIMS: dict[str, tuple[str, Callable[[Document], object]]] = {
    "run": (artifacts.ATTEMPT, lambda record: record.update(run_id="run-01m7jk6k16en5xy3ts3ap84bgg")),
    "mission": (artifacts.ATTEMPT, lambda record: record.update(mission_id="another")),
    "replicate": (artifacts.ATTEMPT, lambda record: record.update(replicate=2)),
    "parent": (artifacts.ATTEMPT, lambda record: record.update(parent="answer.0")),
    "epoch": (artifacts.ATTEMPT, lambda record: record.update(epoch=record["epoch"] + 1)),
    "suite": (artifacts.ATTEMPT, lambda record: record["suite"].update(sha256="0" * 64)),
    "store outside": (artifacts.ATTEMPT, lambda record: record["final"].update(store="../../..")),
    "no record": (artifacts.ATTEMPT, lambda record: record.clear()),
    "node": (artifacts.NODE, lambda record: record.update(name="node-2")),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_bundle_that_claims_something_else_is_refused(returned: Returned, claim: str) -> None:
    returned.change(*CLAIMS[claim])
    with pytest.raises(BundleError):
        returned.open()


def test_bundle_that_names_a_store_of_this_machine_is_refused(returned: Returned, tmp_path: Path) -> None:
    """`proofbox gc` removes the stores that a run's bundles name. This one belongs to another project."""
    (tmp_path / "other").mkdir()
    with Workspace.init(tmp_path / "other") as other:
        returned.change(artifacts.ATTEMPT, lambda record: record["final"].update(store=other.store_id))
        with pytest.raises(BundleError, match="a store of this machine"):
            returned.open()


def test_bundle_without_its_node_is_refused(returned: Returned) -> None:
    (returned.bundle / artifacts.NODE).unlink()
    rebuild(returned.bundle)
    with pytest.raises(BundleError):
        returned.open()


def test_bundle_with_a_broken_log_is_refused(returned: Returned) -> None:
    """Its digests match, but `proofbox verify` would refuse the whole run."""
    log = returned.bundle / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:1] + lines))
    rebuild(returned.bundle)
    with pytest.raises(BundleError, match=r"events\.jsonl"):
        returned.open()


def test_bundle_that_contains_another_one_is_refused(returned: Returned) -> None:
    """In a run, bundles are nested one level deeper, where `proofbox verify` could refuse them."""
    shutil.copytree(returned.bundle, returned.bundle / "inner")
    path = f"inner/{INDEX}"
    digest, size = sha256_file(returned.bundle / path)
    inner = Artifact(path, size, digest, "proofbox.artifact_index/1")
    rebuild(returned.bundle, change=lambda index: index._replace(artifacts={**index.artifacts, path: inner}))
    assert load_bundle(returned.bundle).nested
    with pytest.raises(BundleError, match="other bundles"):
        returned.open()
