"""`verify`: check evidence as an auditor would. Exit 0 if everything holds, 1 on any finding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, ErrorBody, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import one_line

if TYPE_CHECKING:
    from proofbox.evidence.verify.check import BundleFinding
    from proofbox.evidence.verify.verification import Verification


class CheckedCounts(msgspec.Struct, frozen=True):
    files: int
    """Files compared with the index that lists them."""
    bytes: int
    """The total size of those files, by their index."""
    bundles: int
    """The given bundle and the bundles nested in it."""
    chains: int
    """Logs whose hash chain was checked."""


class FindingFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    path: str
    detail: str
    path_b64: str | None = None
    """The exact bytes of a path that is not UTF-8."""

    @classmethod
    def of(cls, finding: BundleFinding) -> FindingFacts:
        return cls(**finding.as_json())


class VerificationDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.verification/1"
    path: str
    run_id: str | None
    status: str | None
    """The index's status: ok, partial or failed. Without an index, the run's state; null: unreadable as well."""
    bundle: str | None
    packet: str | None
    promotable: bool | None
    policy: str | None
    """The name of the packet's policy."""
    pinned: bool | None
    """Whether the packet pins its bundle by digest; null: there is no readable packet."""
    own_policy: bool | None
    """Whether the policy is custom rather than built in; null: there is no packet with a policy."""
    signed_by: str | None
    """The id of the given key, if it signed the packet; null: it did not, or no key was given."""
    checked: CheckedCounts
    """How much was checked."""
    findings: tuple[FindingFacts, ...]
    notes: tuple[str, ...]
    error: ErrorBody | None
    """The error, if `ok` is false."""


def verify(
    path: Annotated[Path, Parameter(help="An output directory, a run's directory, or a promotion packet.")],
    *,
    key: flags.PublicKey = None,
    json: flags.Json = False,
) -> int:
    """Check a bundle, its logs, nested bundles, packet and signature. Exit 1 on any finding.

    Without a key this detects damage but not forgery: anyone who can rewrite a whole bundle can make it consistent.

    For example:
      proofbox verify out
      proofbox verify out/run-01… --key release.pub --json
    """
    from proofbox.evidence.verify.verifier import verify as verify_path

    return show_verification(verify_path(path, key=None if key is None else str(key)), as_json=json)


def show_verification(result: Verification, *, as_json: bool) -> int:
    document = msgspec.convert(result.as_json(), VerificationDocument)
    show(document, lambda: _text(result), as_json=as_json)
    return 0 if result.ok else 1


def _text(result: Verification) -> str:
    lines = [result.summary()]
    lines += [f"note: {note}" for note in result.notes]
    lines += [f"finding: {each.code} {each.path}: {each.detail}" for each in result.findings]
    return "\n".join(map(one_line, lines))
