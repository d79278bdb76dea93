"""Signed statements: an in-toto Statement in a DSSE envelope, which other tools can verify without proofbox.

The signature covers DSSE's pre-authentication encoding of the exact payload bytes and is checked before the payload is
parsed. See the DSSE v1 protocol and the in-toto Attestation Framework v1.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError

if TYPE_CHECKING:  # reading an envelope does not need cryptography
    from proofbox.evidence.attest.keys import PrivateKey, PublicKey

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"

_ENVELOPE = shape.record(
    {
        "payloadType": shape.text(200),
        "payload": shape.text(1 << 26),
        "signatures": shape.array(shape.record({"sig": shape.text(4096)}, {"keyid": shape.text(4096)})),
    }
)
_STATEMENT = shape.record(
    {
        "_type": shape.text(200),
        "subject": shape.array(shape.record({"name": shape.text(), "digest": shape.table(shape.text(200))})),
        "predicateType": shape.text(200),
        "predicate": shape.anything,
    }
)


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def statement(subject: str, sha256: str, predicate_type: str, predicate: Any) -> dict[str, Any]:
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject, "digest": {"sha256": sha256}}],
        "predicateType": predicate_type,
        "predicate": predicate,
    }


def sign(value: dict[str, Any], key: PrivateKey) -> dict[str, Any]:
    """Return a DSSE envelope with the canonical bytes of `value`."""
    payload = canonical_bytes(value)
    signature = key.sign(pre_authentication_encoding(PAYLOAD_TYPE, payload))
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode("ascii"),
        "signatures": [{"keyid": key.public.key_id, "sig": base64.b64encode(signature).decode("ascii")}],
    }


class Envelope:
    """A parsed envelope. The payload must not be trusted before `signed_by` returns True."""

    def __init__(self, document: Any) -> None:
        _ENVELOPE(document, "envelope")
        self._type: str = document["payloadType"]
        if self._type != PAYLOAD_TYPE:
            raise ShapeError(f"envelope.payloadType is not {PAYLOAD_TYPE}")
        self.payload = _decoded(document["payload"], "envelope.payload")
        self._signatures = [
            (entry.get("keyid", ""), _decoded(entry["sig"], "envelope.signatures")) for entry in document["signatures"]
        ]

    def signed_by(self, key: PublicKey) -> bool:
        """Return whether this key signed the payload. Key ids are only hints, so every signature is tried."""
        signed = pre_authentication_encoding(self._type, self.payload)
        return any(key.verifies(signature, signed) for _, signature in self._signatures[:16])

    def statement(self, predicate_types: Mapping[str, str]) -> tuple[str, Any]:
        """Return the digest of the statement's subject, and its predicate.

        `predicate_types` has the predicate type of each `schema_version` that the predicate may have.
        """
        try:
            document = parse_strict(self.payload)
        except CanonicalError as error:
            raise ShapeError(f"the payload is not JSON: {error}") from error
        _STATEMENT(document, "statement")
        predicate = document["predicate"]
        version = predicate.get("schema_version") if type(predicate) is dict else None
        due = predicate_types.get(version) if type(version) is str else None
        if document["_type"] != STATEMENT_TYPE or due is None or document["predicateType"] != due:
            known = " or ".join(predicate_types.values())
            raise ShapeError(f"the statement is not an in-toto v1 statement of {known} with that predicate")
        if len(document["subject"]) != 1 or "sha256" not in document["subject"][0]["digest"]:
            raise ShapeError("the statement does not have exactly one subject with a SHA-256 digest")
        return document["subject"][0]["digest"]["sha256"], predicate


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        try:
            return base64.b64decode(text, altchars=b"-_", validate=True)  # DSSE allows both alphabets
        except (binascii.Error, ValueError):
            raise ShapeError(f"{where} is not base64") from None
