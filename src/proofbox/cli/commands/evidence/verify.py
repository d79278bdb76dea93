"""`verify`: what an auditor runs. Exit 0 when everything holds, 1 when anything does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, show
from proofbox.core.text import printable
from proofbox.evidence.verify.check import BundleFinding
from proofbox.evidence.verify.verification import Verification
from proofbox.evidence.verify.verifier import verify as verify_path


class CheckedCounts(msgspec.Struct, frozen=True):
    files: int
    """Held against the index that lists them."""
    bytes: int
    """Of those files, by their index."""
    bundles: int
    """The one that was named, and those nested in it."""
    chains: int
    """Logs whose hash chain was followed."""


class FindingFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    path: str
    detail: str
    path_b64: str | None = None
    """The exact bytes, where the path is not UTF-8."""

    @classmethod
    def of(cls, finding: BundleFinding) -> FindingFacts:
        return cls(**finding.as_json())


class VerificationDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.verification/1"
    path: str
    run_id: str | None
    status: str | None
    """Of the index: ok, partial, failed. Without an index, the run's state; null: that can't be read either."""
    bundle: str | None
    packet: str | None
    promotable: bool | None
    policy: str | None
    """What the packet's policy is called."""
    own_policy: bool | None
    """Whether it is someone's own, and none of those that come with proofbox; null: no packet has a policy."""
    signed_by: str | None
    """The id of the key that was given and did sign; null: it did not, or none was given."""
    checked: CheckedCounts
    """How much was looked at."""
    findings: tuple[FindingFacts, ...]
    notes: tuple[str, ...]
    error: ErrorBody | None
    """Where `ok` is false: what the answer "no" is called."""


def verify(
    path: Annotated[Path, Parameter(help="An output directory, a run's directory, or a promotion packet.")],
    *,
    key: flags.PublicKey = None,
    json: flags.Json = False,
) -> int:
    """Check a bundle, its logs, nested bundles, packet and signature. Exit 1 on any finding.

    Without a key this shows damage, not forgery: whoever can rewrite a whole bundle can make a consistent one.

    For example:
      proofbox verify out
      proofbox verify out/run-01… --key release.pub --json
    """
    return show_verification(verify_path(path, key=None if key is None else str(key)), as_json=json)


def show_verification(result: Verification, *, as_json: bool) -> int:
    document = msgspec.convert(result.as_json(), VerificationDocument)
    show(document, lambda: _text(result), as_json=as_json)
    return 0 if result.ok else 1


def _text(result: Verification) -> str:
    lines = [result.summary()]
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"finding: {each.code} {each.path}: {each.detail}" for each in result.findings]
    return "\n".join(printable(line).replace("\n", "\\n") for line in lines)
