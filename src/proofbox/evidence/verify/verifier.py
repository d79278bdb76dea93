"""The auditor's command, which needs only Python and `cryptography`:

    python3 -I .../proofbox/evidence/verify PATH [--key PUB] [--bundle DIR] [--json]

With `-I`, Python imports nothing from the current directory, which may be the directory of the bundle. With `python -m`
a `json.py` beside the bundle would run before any line of this file.

PATH is an output directory (the run that its LATEST names is verified), a run's directory, a run packed by `proofbox
bundle pack`, a promotion packet, or a file of `proofbox view --export`, which contains its evidence. The command checks
every size and digest, every line of every log, every nested bundle and, if there is a packet, its pins, its verdict and
its signature. Exit code 0: everything is valid. 1: a check failed, and the findings are printed. 2: there is nothing to
check.

Without --key and without a digest from another source, this detects damage, not forgery: anyone who can rewrite a whole
bundle can create another consistent one.

Codes of findings, besides those of `check`: packet_malformed, packet_mismatch (with the bundle),
verdict_wrong, policy_misnamed, signature_absent, signature_wrong, bundle_absent, run_mismatch (with a campaign),
branch_mismatch (with an exploration), pins_malformed (a campaign's list of runs, an exploration's list of branches).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.text import one_line, printable
from proofbox.errors import (
    ProofboxError,
    UsageError,
)
from proofbox.evidence.bundle.listing import notes_on_latest
from proofbox.evidence.bundle.paths import INDEX, PACKED_SUFFIX, enclosing, resolve, shown
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.packet import PREDICATE_TYPES, SUFFIX, Packet, parse_packet, read_document
from proofbox.evidence.promotion.packet_v02 import bundle_of_v02, differences_v02
from proofbox.evidence.promotion.policy import is_built_in
from proofbox.evidence.promotion.verdict import differences
from proofbox.evidence.verify.check import BundleCheck, check_bundle
from proofbox.evidence.verify.embedded import verify_embedded
from proofbox.evidence.verify.pinned_bundles import verify_pinned
from proofbox.evidence.verify.verification import Verification

HTML_SUFFIX = ".html"


def verify(path: str | os.PathLike[str], *, key: str | None = None, bundle: str | None = None) -> Verification:
    """Verify a bundle with the packet beside it, a packet with its bundle, or the evidence in an exported HTML file.

    For example:

        found = proofbox.verify("out", key="release.pub")
        print(found.ok, found.findings)

    `key` is the file of a public key. `bundle` is the path of a packet's bundle; it is refused if `path` is a bundle.
    Raises a ProofboxError only if there is nothing to verify: the path does not exist, or the key file has no key.
    """
    place = os.fspath(path)
    if place.endswith(HTML_SUFFIX) and os.path.isfile(place):
        if bundle is not None:
            raise UsageError("--bundle can't be used with an HTML file, which contains its evidence", op="verify")
        return verify_embedded(place, _verify_directory, key)
    packed = place.endswith(PACKED_SUFFIX)
    if os.path.isfile(place) and not packed:
        examined = examine_packet(place, keys=() if key is None else (key,), bundle=bundle)
        if examined.checked is not None:
            verify_pinned(examined.result, examined.checked)
        return examined.result
    directory = resolve(place)
    if bundle is not None:
        raise UsageError(
            f"{shown(place)} is a bundle itself, so --bundle can't be used with it",
            op="verify",
            fix_hints=["give the path of the packet, and its bundle with --bundle"],
        )
    result, checked = _verify_directory(directory, key, beside=place.removesuffix(PACKED_SUFFIX) if packed else None)
    if checked is not None:
        verify_pinned(result, checked)
    result.path = place
    if packed:
        result.bundle = place
    else:
        _note_newer(result, directory)
    return result


def _verify_directory(
    directory: str, key: str | None, *, beside: str | None = None
) -> tuple[Verification, BundleCheck | None]:
    """Verify a bundle with the packet beside it, without the runs of a campaign.

    `beside` is the place that its packet is named after, if that is not the directory.
    """
    beside = os.path.abspath(beside or directory) + SUFFIX
    if os.path.lexists(beside):
        examined = examine_packet(beside, keys=() if key is None else (key,), bundle=directory)
        return examined.result, examined.checked
    result = Verification(directory)
    checked = _verify_bundle(result, directory)
    if key is not None:
        _public_key(key)
        result.found("signature_absent", "", "a key was given, but there is no signed packet")
    return result, checked


MAX_CLOCK_SKEW = timedelta(minutes=5)
"""Maximum difference between the clocks of two machines."""


@dataclass(frozen=True, slots=True)
class Examination:
    """A verified packet and its bundle, each read once."""

    result: Verification
    packet: Packet | None
    """The parsed packet; None if malformed."""
    packet_sha256: str
    """The digest of the packet's file."""
    checked: BundleCheck | None
    """The packet's bundle; None if absent."""


def verify_packet(path: str, *, key: str | None = None, bundle: str | None = None) -> Verification:
    """Verify a packet: its format, signature, bundle and pins, and that its verdict follows from its policy."""
    return examine_packet(path, keys=() if key is None else (key,), bundle=bundle).result


def examine_packet(
    path: str, *, keys: Sequence[str] = (), bundle: str | None = None, clock: Clock | None = None
) -> Examination:
    """Verify a packet like `verify_packet`, with any of `keys`, and return the packet and its bundle as well."""
    result = Verification(path, packet=path)
    document, digest = read_document(path)
    packet, signed = _open_packet(result, document, keys)
    directory = bundle or _bundle_of(path, packet)
    if directory is not None and not os.path.isdir(directory) and os.path.isfile(directory + PACKED_SUFFIX):
        directory += PACKED_SUFFIX
    if directory is None or not (os.path.isdir(directory) or directory.endswith(PACKED_SUFFIX)):
        result.found("bundle_absent", "", "the bundle is not at the packet's path; give its directory with --bundle")
        return Examination(result, packet, digest, None)
    checked = _verify_bundle(result, resolve(directory))
    if packet is None:
        return Examination(result, packet, digest, checked)
    result.promotable, result.policy = packet.promotable, packet.policy
    _note_future(result, packet, clock or SystemClock())
    result.pinned = packet.pinned
    if not packet.pinned:
        result.notes.append(
            "the packet is unpinned: it has no digests, so the bundle may have been replaced by another"
        )
        result.findings += differences_v02(packet, checked)
    else:
        result.own_policy = not is_built_in(packet.document["promotability"]["policy"])
        result.findings += differences(packet, checked)
        if signed is not None and signed != (packet.index and packet.index.sha256):
            result.found("packet_mismatch", INDEX, "the statement's subject differs from the packet's index")
    return Examination(result, packet, digest, checked)


def _open_packet(result: Verification, document: Any, keys: Sequence[str]) -> tuple[Packet | None, str | None]:
    """Return the packet, and the digest that its statement signs if it is in an envelope."""
    trusted = [_public_key(key) for key in keys]
    subject = None
    try:
        if type(document) is dict and "payloadType" in document:
            # Imported here: without a signature, the standard library is enough.
            from proofbox.evidence.attest.dsse import Envelope

            envelope = Envelope(document)
            result.enveloped = True
            result.signed_by = next((public.key_id for public in trusted if envelope.signed_by(public)), None)
            if not trusted:
                result.notes.append("the packet is signed, but no key was given to check the signature")
            elif result.signed_by is None:
                which = "the given key" if len(trusted) == 1 else "any of the trusted keys"
                result.found("signature_wrong", "", f"the packet is not signed by {which}")
            subject, document = envelope.statement(PREDICATE_TYPES)
        elif trusted:
            result.found("signature_absent", "", "a key was given, but the packet is not signed")
        return parse_packet(document), subject
    except ShapeError as error:
        result.found("packet_malformed", "", str(error))
        return None, None


def _public_key(path: str) -> Any:
    from proofbox.evidence.attest.keys import load_public_key

    return load_public_key(path)


def _bundle_of(path: str, packet: Packet | None) -> str | None:
    """Return where the packet says its bundle is. A link that leads out of the packet's directory is not followed."""
    if packet is not None and not packet.pinned:
        return bundle_of_v02(path, packet)
    if packet is None or packet.bundle_path is None:
        return None
    beside = os.path.dirname(path)
    place, base = os.path.join(beside, packet.bundle_path), os.path.realpath(beside or os.curdir)
    return place if os.path.commonpath([os.path.realpath(place), base]) == base else None


def _verify_bundle(result: Verification, directory: str) -> BundleCheck:
    checked = check_bundle(directory, chains=True)
    result.bundle = directory
    result.findings += checked.findings
    result.checked.add(checked.checked)
    if checked.index is not None:
        result.run_id, result.status = checked.index.run_id, checked.index.status
        _note_renamed(result, directory, checked.index.run_id)
        for place, inner in checked.every():
            if inner.index is not None and inner.index.repairs:
                result.notes.append(f"{place or 'the bundle'} was repaired after its commit ({inner.index.repairs}×)")
    elif checked.status is not None:
        result.run_id, result.status = checked.status.run_id, checked.status.state
    return checked


def _note_renamed(result: Verification, directory: str, run_id: str) -> None:
    """Add a note if the directory's name is not the run id. Nested bundles are named by their path."""
    place = os.path.realpath(directory)
    name = os.path.basename(place)
    if name != run_id and enclosing(place) == place:
        result.notes.append(f"the directory is called {shown(name)}; the run in it is {run_id}")


def _note_future(result: Verification, packet: Packet, clock: Clock) -> None:
    """Add a note to a packet from the future: one of the two clocks is wrong."""
    emitted = packet.document.get("emitted_at") if packet.pinned else None
    if emitted is not None and str(emitted) > isoformat(clock.now() + MAX_CLOCK_SKEW):
        result.notes.append(f"the packet is dated in the future: {emitted}")


def _note_newer(result: Verification, directory: str) -> None:
    named, *newer = notes_on_latest(result.path, directory) or [""]
    if named:
        result.notes.insert(0, named)
    result.notes += newer


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="verify.py", description="Verify a bundle or packet.")
    parser.add_argument("path", help="an output directory, a run's directory, or a promotion packet")
    parser.add_argument("--key", metavar="PUB", help="the public key file of the required signer")
    parser.add_argument(
        "--bundle", metavar="DIR", help="the packet's bundle, if it is not beside the packet; only for packets"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(argv)
    try:
        result = verify(options.path, key=options.key, bundle=options.bundle)
    except ProofboxError as error:
        print(printable(f"verify: {error.message}"), file=sys.stderr)
        return min(error.exit_code, 4)
    if options.json:
        print(json.dumps({"schema": "proofbox.verification/1", **result.as_json()}))
    else:
        print(result.line())
        for note in result.notes:
            print(one_line(f"note: {note}"))
        for finding in result.findings[1:]:
            print(one_line(f"finding: {finding.code} {finding.path}: {finding.detail}"))
    return 0 if result.ok else 1
