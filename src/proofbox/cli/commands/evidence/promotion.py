"""`promotion`: packets that state whether a bundle may be relied on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from proofbox.cli import flags
from proofbox.cli.commands.evidence.bundle import BundlePath
from proofbox.cli.commands.evidence.verify import show_verification
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable


class PromotionDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.promotion/1"
    path: str
    promotable: bool
    reasons: tuple[str, ...]
    accepted: tuple[str, ...]
    """The reasons that the caller accepted by name."""
    signed_by: str | None
    packet: dict[str, Any]


def emit(
    bundle: BundlePath,
    *,
    policy: Annotated[
        str | None,
        Parameter(
            name="--policy",
            help="decision-stage, decision-stage-v0.2, attempt, run, or a JSON file. Default: depends on the"
            " kind of bundle.",
        ),
    ] = None,
    require_promotable: Annotated[
        bool, Parameter(name="--require-promotable", help="Fail and write nothing unless promotable.")
    ] = False,
    accept: Annotated[
        tuple[str, ...],
        Parameter(name="--accept", help="A reason to accept, by name. Repeatable."),
    ] = (),
    sign: Annotated[Path | None, Parameter(name="--sign", help="The private key file to sign with.")] = None,
    format: Annotated[
        Literal["v2", "v0.2"],
        Parameter(name="--format", help="v0.2: a packet of the contract runtime-tools.promotion_packet.v0.2."),
    ] = "v2",
    repository: Annotated[
        Path | None,
        Parameter(
            name="--repository",
            help="With --format v0.2, the directory that pointers are relative to. Default: the Git repository.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        Parameter(name=["--out", "--output"], help="The packet's file. Default: RUN.promotion.json next to the run."),
    ] = None,
    json: flags.Json = False,
) -> int:
    """Check a bundle against a policy and write its promotion packet, promotable or not.

    A bundle in which `validate --strict` finds a problem is refused, so no inconsistent evidence is signed.

    For example:
      proofbox promotion emit out --require-promotable --sign release
      proofbox promotion emit out/run-01… --policy attempt --accept bundle_repaired --json
      proofbox promotion emit plan-runs --format v0.2
    """
    from proofbox.lab.reports.promoting import emit_promotion

    done = emit_promotion(
        bundle,
        policy=policy,
        require_promotable=require_promotable,
        accept=accept,
        sign=sign,
        output=out,
        format=format,
        repository=repository,
    )
    document = PromotionDocument(
        path=done.path,
        promotable=done.promotable,
        reasons=done.reasons,
        accepted=done.accepted,
        signed_by=done.signed_by,
        packet=done.document,
    )
    show(document, lambda: _text(document), as_json=json)
    return 0


def verify(
    packet: Annotated[Path, Parameter(help="The file that `promotion emit` wrote.")],
    *,
    key: flags.PublicKey = None,
    bundle: Annotated[
        Path | None, Parameter(name="--bundle", help="The bundle's directory, if not where the packet says.")
    ] = None,
    json: flags.Json = False,
) -> int:
    """Check a packet's signature, bundle, pins, and verdict. Exit 1 on any finding.

    A packet of the format v0.2 has no digests. It is checked against the bundle, and reported as unpinned.

    For example:
      proofbox promotion verify out/run-01….promotion.json --key release.pub
    """
    from proofbox.evidence.verify.verifier import verify_packet

    result = verify_packet(
        str(packet), key=None if key is None else str(key), bundle=None if bundle is None else str(bundle)
    )
    return show_verification(result, as_json=json)


def _text(document: PromotionDocument) -> str:
    verdict = "promotable" if document.promotable else "not promotable"
    lines = [f"{document.path}: {verdict}{', signed' if document.signed_by else ''}"]
    for reason in document.reasons:
        observed = document.packet["promotability"]["gating_inputs"][reason]["observed"]
        lines.append(
            f"  {'accepted' if reason in document.accepted else 'blocked by'}: {reason} (observed: {observed})"
        )
    return printable("\n".join(lines))
