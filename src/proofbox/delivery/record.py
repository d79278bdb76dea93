"""Record a delivery as a bundle: the request, the evidence that justifies it, and the response.

The request is written before it is sent, so a killed delivery is recorded as well. It is recorded as sent, including
its idempotency key, but with digests in place of the files' contents.
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

DeliveryRequest = InitialExport | PullRequest
REQUEST, ANSWER = "proofbox.delivery_request/1", "proofbox.delivery_answer/1"


class SentFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A file of an export, without its content."""

    path: str
    mode: Mode
    """The Git file mode."""
    size_bytes: int
    """The size of the content sent."""
    sha256: Sha256
    """The SHA-256 of the content sent; for a symbolic link, of its target."""


class SentExport(Export, frozen=True, kw_only=True, omit_defaults=False):
    """An export request without the files' contents."""

    files: tuple[SentFile, ...] = ()
    """All files, in the order in which they are sent."""


declare(
    REQUEST,
    at="BUNDLE/request.json of a delivery, and BUNDLE/instead.N.json where an empty repository was filled instead",
    meaning="The request to the backend, without the files' contents.",
    shape=(SentExport, PullRequest),
)
declare(
    ANSWER,
    at="BUNDLE/answer.json of a delivery",
    meaning="The backend's response.",
    shape=(ExportAnswer, PullRequestAnswer),
)


@stored("proofbox.delivery_record/1", at="BUNDLE/delivery.json of a delivery")
class DeliveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent, where, and the evidence that justifies it."""

    schema_version: str = "proofbox.delivery_record/1"
    operation: str
    """initial_export or pull_request."""
    backend_url: str
    """The backend that received the request."""
    app_id: str
    user_id: str
    patch: Patchset
    """The requested changes to the repository."""
    left_out: tuple[LeftOut, ...]
    source: str
    """The kind of source that the tree came from."""
    proof: Proof


class DeliveryRecorder:
    """The open bundle of a delivery in progress."""

    def __init__(self, bundle: BundleWriter, tree: SourceTree) -> None:
        self._bundle = bundle
        self._tree = tree
        self._others: list[InitialExport] = []
        self.path = bundle.path

    def asked(self, request: DeliveryRequest) -> None:
        self._bundle.write_json("request.json", _stored(REQUEST, _without_contents(request, self._tree)))

    def instead(self, request: InitialExport) -> None:
        """Record a request that replaces the first one. A retry of it is not recorded again."""
        if request not in self._others:
            self._others.append(request)
            name = f"instead.{len(self._others)}.json"
            self._bundle.write_json(name, _stored(REQUEST, _without_contents(request, self._tree)))

    def answered(self, answer: ExportAnswer | PullRequestAnswer, baseline: Baseline) -> None:
        self._bundle.write_json("answer.json", _stored(ANSWER, answer))
        self._bundle.write_bytes("baseline.json", encode_baseline(baseline), schema_version=BASELINE_SCHEMA)


@contextlib.contextmanager
def recording(
    record: DeliveryRecord,
    tree: SourceTree,
    request: DeliveryRequest,
    *,
    out: Path,
    redactor: Redactor,
    clock: Clock | None,
) -> Iterator[DeliveryRecorder]:
    """Write the request to a bundle before it is sent, and commit the bundle with the response or as failed."""
    if redactor.contains_secret(msgspec.json.encode(request)):
        raise DeliverySecretFound(
            "the title, the message or an id contains a secret that this process knows",
            op=f"deliver {record.operation}",
            fix_hints=["remove it from --title, --message and the ids"],
        )
    expected = ["delivery.json", "request.json", "answer.json", "baseline.json", trees.PATH]
    with BundleWriter.create(out, expected=expected, redactor=redactor, clock=clock) as bundle:
        bundle.stage = record.operation
        bundle.write_json("delivery.json", msgspec.to_builtins(record))
        bundle.write_json(trees.PATH, tree.manifest)
        found = DeliveryRecorder(bundle, tree)
        found.asked(request)
        yield found


def _without_contents(request: DeliveryRequest, tree: SourceTree) -> SentExport | PullRequest:
    if isinstance(request, PullRequest):
        return request  # its changes are listed without their contents
    files = tuple(
        SentFile(path=each.path, mode=each.mode, size_bytes=each.size, sha256=each.sha256) for each in tree.files
    )
    return SentExport(**{name: getattr(request, name) for name in Export.__struct_fields__}, files=files)


def _stored(schema: str, what: msgspec.Struct) -> dict[str, Any]:
    return {"schema_version": schema, **msgspec.to_builtins(what)}
