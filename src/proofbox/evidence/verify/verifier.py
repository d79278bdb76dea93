"""The one command an auditor runs, on any Python with nothing but `cryptography` installed beside it:

    python3 -I .../proofbox/evidence/verify PATH [--key PUB] [--bundle DIR] [--json]

With `-I`, Python imports nothing from the current directory, which may well be the directory of the bundle. `python -m`
would: a `json.py` beside the bundle would run before any line of this file.

PATH is an output directory (its LATEST is followed), a run's directory, or a promotion packet. Checked are every size
and digest, every line of every log, every nested bundle, and, where there is a packet, its pins, its verdict and its
signature. Exit code 0: everything holds. 1: something does not, and each finding is named. 2: there is nothing to
check.

Without --key and without a digest that you hold from elsewhere, this shows damage, not forgery: whoever can rewrite a
whole bundle can make another that is consistent in itself.

Codes of findings, besides those of `check`: packet_malformed, packet_unpinned, packet_mismatch (with the bundle),
verdict_wrong, policy_misnamed, signature_absent, signature_wrong, bundle_absent.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proofbox.core.text import printable
from proofbox.errors import (
    ProofboxError,
    UsageError,
)
from proofbox.evidence.bundle.listing import notes_on_latest
from proofbox.evidence.bundle.paths import INDEX, enclosing, resolve, shown
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.packet import PREDICATE_TYPE, SUFFIX, Packet, parse_packet, read_document
from proofbox.evidence.promotion.policy import is_built_in
from proofbox.evidence.promotion.verdict import differences
from proofbox.evidence.verify.check import BundleCheck, check_bundle
from proofbox.evidence.verify.verification import Verification


def verify(path: str | os.PathLike[str], *, key: str | None = None, bundle: str | None = None) -> Verification:
    """Verify a bundle with the packet beside it, or a packet with its bundle. `key` is the file of a public key.

    `bundle` says where a packet's bundle is; with the path of a bundle, it is refused.
    Raises a ProofboxError only where there is nothing to evaluate: no such path, no key in that file.
    """
    place = os.fspath(path)
    if os.path.isfile(place):
        return verify_packet(place, key=key, bundle=bundle)
    directory = resolve(place)
    if bundle is not None:
        raise UsageError(
            f"{shown(place)} is a bundle itself, and was to be verified with another",
            op="verify",
            fix_hints=["name the packet's file, and its bundle with --bundle"],
        )
    beside = os.path.join(
        os.path.dirname(os.path.abspath(directory)), os.path.basename(os.path.abspath(directory)) + SUFFIX
    )
    if os.path.lexists(beside):
        result = verify_packet(beside, key=key, bundle=directory)
    else:
        result = Verification(place)
        _verify_bundle(result, directory)
        if key is not None:
            _public_key(key)
            result.found("signature_absent", "", "a key was given, and there is no packet that it could have signed")
    result.path = place
    _note_newer(result, directory)
    return result


@dataclass(frozen=True, slots=True)
class Examination:
    """A packet and its bundle as they were verified, each read once."""

    result: Verification
    packet: Packet | None
    """As it was read; None: malformed."""
    packet_sha256: str
    """Of the packet's file."""
    checked: BundleCheck | None
    """Its bundle; None: absent."""


def verify_packet(path: str, *, key: str | None = None, bundle: str | None = None) -> Verification:
    """Verify a packet: its form, its signature, its bundle, its pins, and that its verdict follows from its policy."""
    return examine_packet(path, keys=() if key is None else (key,), bundle=bundle).result


def examine_packet(path: str, *, keys: Sequence[str] = (), bundle: str | None = None) -> Examination:
    """Verify a packet as `verify_packet` does, by any of `keys`, and keep what was read of it and of its bundle."""
    result = Verification(path, packet=path)
    document, digest = read_document(path)
    packet, signed = _open_packet(result, document, keys)
    directory = bundle or _bundle_of(path, packet)
    if directory is None or not os.path.isdir(directory):
        result.found("bundle_absent", "", "the bundle is not where the packet says; give its directory with --bundle")
        return Examination(result, packet, digest, None)
    checked = _verify_bundle(result, resolve(directory))
    if packet is None:
        return Examination(result, packet, digest, checked)
    result.promotable, result.policy = packet.promotable, packet.policy
    if not packet.pinned:
        result.found("packet_unpinned", "", f"a packet of version {packet.schema_version} pins nothing by digest")
    else:
        result.own_policy = not is_built_in(packet.document["promotability"]["policy"])
        result.findings += differences(packet, checked)
        if signed is not None and signed != (packet.index and packet.index.sha256):
            result.found("packet_mismatch", INDEX, "the statement's subject is another index than the packet's")
    return Examination(result, packet, digest, checked)


def _open_packet(result: Verification, document: Any, keys: Sequence[str]) -> tuple[Packet | None, str | None]:
    """The packet, and the digest that its statement signs if it is in an envelope."""
    trusted = [_public_key(key) for key in keys]
    subject = None
    try:
        if type(document) is dict and "payloadType" in document:
            # Imported here: without a signature, the standard library alone will do.
            from proofbox.evidence.attest.dsse import Envelope

            envelope = Envelope(document)
            result.enveloped = True
            result.signed_by = next((public.key_id for public in trusted if envelope.signed_by(public)), None)
            if not trusted:
                result.notes.append("the packet is signed, and no key was given to check it with")
            elif result.signed_by is None:
                which = "the key that was given" if len(trusted) == 1 else "any of the keys that are trusted"
                result.found("signature_wrong", "", f"the packet is not signed by {which}")
            subject, document = envelope.statement(PREDICATE_TYPE)
        elif trusted:
            result.found("signature_absent", "", "a key was given, and the packet is not signed")
        return parse_packet(document), subject
    except ShapeError as error:
        result.found("packet_malformed", "", str(error))
        return None, None


def _public_key(path: str) -> Any:
    from proofbox.evidence.attest.keys import load_public_key

    return load_public_key(path)


def _bundle_of(path: str, packet: Packet | None) -> str | None:
    if packet is None or packet.bundle_path is None:
        return None
    return os.path.join(os.path.dirname(path), packet.bundle_path)


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
    """A copy may be called anything; who asked for a run by its name wants to know. A nested bundle has a place."""
    place = os.path.realpath(directory)
    name = os.path.basename(place)
    if name != run_id and enclosing(place) == place:
        result.notes.append(f"the directory is called {shown(name)}; the run in it is {run_id}")


def _note_newer(result: Verification, directory: str) -> None:
    named, *newer = notes_on_latest(result.path, directory) or [""]
    if named:
        result.notes.insert(0, named)
    result.notes += newer


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="verify.py", description="Verify a bundle or packet.")
    parser.add_argument("path", help="an output directory, a run's directory, or a promotion packet")
    parser.add_argument("--key", metavar="PUB", help="the file of the public key that must have signed the packet")
    parser.add_argument(
        "--bundle", metavar="DIR", help="where the packet's bundle is, if not beside it; with a packet only"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")
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
            print(printable(f"note: {note}"))
        for finding in result.findings[1:]:
            print(printable(f"finding: {finding.code} {finding.path}: {finding.detail}").replace("\n", "\\n"))
    return 0 if result.ok else 1
