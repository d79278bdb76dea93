"""What a delivery leaves as evidence: a bundle of what was to be sent, by what right, and what was answered.

It is written before anything is sent, so that a delivery that was killed is on record too. A request is recorded as it
is sent, its key included, but for the files' contents: those are named by their digests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from proofbox.core.clock import Clock
from proofbox.core.documents import declare, stored
from proofbox.core.redaction.redactor import Redactor
from proofbox.delivery.client.wire import (
    Export,
    ExportAnswer,
    InitialExport,
    Mode,
    PullRequest,
    PullRequestAnswer,
    Sha256,
)
from proofbox.delivery.patch.baseline import SCHEMA as BASELINE_SCHEMA
from proofbox.delivery.patch.baseline import Baseline, encode_baseline
from proofbox.delivery.patch.patchset import Patchset
from proofbox.delivery.proof import Proof
from proofbox.delivery.source.tree import LeftOut, SourceTree
from proofbox.errors import DeliverySecretFound
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.documents import tree as trees

Asked = InitialExport | PullRequest
REQUEST, ANSWER = "proofbox.delivery_request/1", "proofbox.delivery_answer/1"


class SentFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file of an export, without its content."""

    path: str
    mode: Mode
    """Git's."""
    size_bytes: int
    """Of the content that is sent."""
    sha256: Sha256
    """Of the content that is sent; of a symbolic link, of its target."""


class SentExport(Export, frozen=True, kw_only=True, omit_defaults=False):
    """An export as it is sent, without the files' contents."""

    files: tuple[SentFile, ...] = ()
    """All of them, in the order in which they are sent."""


declare(
    REQUEST,
    at="BUNDLE/request.json of a delivery, and BUNDLE/instead.N.json where an empty repository was filled instead",
    meaning="What the backend was asked for, without the files' contents.",
    shape=(SentExport, PullRequest),
)
declare(
    ANSWER,
    at="BUNDLE/answer.json of a delivery",
    meaning="What the backend answered.",
    shape=(ExportAnswer, PullRequestAnswer),
)


@stored("proofbox.delivery_record/1", at="BUNDLE/delivery.json of a delivery")
class DeliveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent, where to, and by what right."""

    schema_version: str = "proofbox.delivery_record/1"
    operation: str
    """initial_export or pull_request."""
    backend_url: str
    """Where the request went."""
    app_id: str
    user_id: str
    patch: Patchset
    """What was to be changed in the repository."""
    left_out: tuple[LeftOut, ...]
    source: str
    """What kind of source the tree came from."""
    proof: Proof


class DeliveryRecorder:
    """The bundle of a delivery under way."""

    def __init__(self, bundle: BundleWriter, tree: SourceTree) -> None:
        self._bundle = bundle
        self._tree = tree
        self._others: list[InitialExport] = []
        self.path = bundle.path

    def asked(self, request: Asked) -> None:
        self._bundle.write_json("request.json", _stored(REQUEST, _without_contents(request, self._tree)))

    def instead(self, request: InitialExport) -> None:
        """Another request takes the first one's place. Sent again as it was, it is on record already."""
        if request not in self._others:
            self._others.append(request)
            name = f"instead.{len(self._others)}.json"
            self._bundle.write_json(name, _stored(REQUEST, _without_contents(request, self._tree)))

    def answered(self, answer: ExportAnswer | PullRequestAnswer, baseline: Baseline) -> None:
        self._bundle.write_json("answer.json", _stored(ANSWER, answer))
        self._bundle.write_bytes("baseline.json", encode_baseline(baseline), schema_version=BASELINE_SCHEMA)


@contextlib.contextmanager
def recording(
    record: DeliveryRecord, tree: SourceTree, asked: Asked, *, out: Path, redactor: Redactor, clock: Clock | None
) -> Iterator[DeliveryRecorder]:
    """A bundle of what is about to be sent; with the answer, or as failed, it is committed."""
    if redactor.contains_secret(msgspec.json.encode(asked)):
        raise DeliverySecretFound(
            "the title, the message or an id holds a secret that this process knows",
            op=f"deliver {record.operation}",
            fix_hints=["remove it from the words that are sent"],
        )
    expected = ["delivery.json", "request.json", "answer.json", "baseline.json", trees.PATH]
    with BundleWriter(out, expected=expected, redactor=redactor, clock=clock) as bundle:
        bundle.stage = record.operation
        bundle.write_json("delivery.json", msgspec.to_builtins(record))
        bundle.write_json(trees.PATH, tree.manifest)
        found = DeliveryRecorder(bundle, tree)
        found.asked(asked)
        yield found


def _without_contents(asked: Asked, tree: SourceTree) -> SentExport | PullRequest:
    if isinstance(asked, PullRequest):
        return asked  # its changes are listed without their bytes
    files = tuple(
        SentFile(path=each.path, mode=each.mode, size_bytes=each.size, sha256=each.sha256) for each in tree.files
    )
    return SentExport(**{name: getattr(asked, name) for name in Export.__struct_fields__}, files=files)


def _stored(schema: str, what: msgspec.Struct) -> dict[str, Any]:
    return {"schema_version": schema, **msgspec.to_builtins(what)}
