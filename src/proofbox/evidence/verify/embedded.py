"""Evidence embedded in an HTML file, as `proofbox view --export` writes it: extract it, and verify it like a bundle.

The file's own scripts compare the evidence with the embedded index as well. But a page cannot prove itself, because its
scripts can be changed together with its evidence. Only this check, with a key or a digest from elsewhere, decides.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from proofbox.core.canonical import parse_strict
from proofbox.core.digest import sha256_hex
from proofbox.core.documents import declare
from proofbox.errors import BundleCorrupt, BundleSchemaUnknown
from proofbox.evidence.bundle.index import SchemaUnknown, refuse_other_schema
from proofbox.evidence.bundle.paths import INDEX, RUN_ID, is_artifact_path, read_bounded, shown
from proofbox.evidence.documents import shape
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.packet import SUFFIX
from proofbox.evidence.verify.check import BundleCheck
from proofbox.evidence.verify.pinned_bundles import read_pins
from proofbox.evidence.verify.verification import Verification

SCHEMA = "proofbox.embedded_evidence/1"
OPENING = b'<script type="application/json" id="proofbox-evidence">'
CLOSING = b"</script>"
MAX_HTML_BYTES = 256 << 20
PAGE_NOTE = "the evidence in the file was checked; the text and scripts of the page around it were not"
_ELEMENT = re.compile(rb"id\s*=\s*[\"']?proofbox-evidence\b", re.IGNORECASE)

_DOCUMENT = shape.record(
    {
        "schema_version": shape.text(200),
        "bundles": shape.array(
            shape.record(
                {
                    "name": shape.text(200).meaning("The name of the bundle's directory."),
                    "packet": shape.or_null(shape.text(1 << 30)).meaning(
                        "The promotion packet beside the bundle, in base64; null: no packet exists."
                    ),
                    "files": shape.table(shape.text(1 << 30)).meaning("The content of each file by path, in base64."),
                }
            )
        ).meaning("The embedded bundles."),
        "left_out": shape.array(
            shape.record(
                {
                    "bundle": shape.text(200).meaning("The name of its bundle."),
                    "path": shape.text().meaning("Its path in the bundle."),
                    "bytes": shape.count.meaning("Its size."),
                }
            )
        ).meaning("Files that were too large to embed."),
    }
)
declare(
    SCHEMA,
    at="FILE.html of `proofbox view --export`, in the element `proofbox-evidence`",
    meaning="Bundles embedded in an HTML file.",
    shape=_DOCUMENT.json_schema,
)


class EmbeddedBundle(NamedTuple):
    """A bundle to embed: the name of its directory, its files, and its packet, if it has one."""

    name: str
    files: Mapping[str, bytes]
    packet: bytes | None = None


class LeftOutFile(NamedTuple):
    """A file that was too large to embed."""

    bundle: str
    path: str
    bytes: int


def embed(bundles: list[EmbeddedBundle], left_out: list[LeftOutFile]) -> str:
    """Return the element for an HTML file. Its content cannot end the element: it contains no `<`."""
    document = {
        "schema_version": SCHEMA,
        "bundles": [
            {
                "name": each.name,
                "packet": None if each.packet is None else _encoded(each.packet),
                "files": {path: _encoded(data) for path, data in each.files.items()},
            }
            for each in bundles
        ],
        "left_out": [each._asdict() for each in left_out],
    }
    text = json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
    return f"{OPENING.decode()}{text}{CLOSING.decode()}"


def verify_embedded(
    path: str, check: Callable[[str, str | None], tuple[Verification, BundleCheck | None]], key: str | None
) -> Verification:
    """Extract the evidence of an HTML file into a temporary directory and verify every bundle with `check`.

    With a key, each bundle must be signed, or be a run whose index a signed campaign pins.
    """
    document = _read(path)
    total = Verification(path)
    total.notes.append(PAGE_NOTE)
    pinned: set[str] = set()
    unsigned: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="proofbox-verify-") as place:
        for each in document["bundles"]:
            directory = _extract(each, place)
            own_key = key if each["packet"] is not None else None
            found, checked = check(directory, own_key)
            pins = [] if checked is None else read_pins(found, checked)
            _add(total, found, each["name"], len(document["bundles"]))
            if found.signed_by is not None and found.ok:
                pinned |= {pin.index_sha256 for pin in pins}
            elif own_key is None:
                unsigned[each["name"]] = sha256_hex(_decoded(each["files"].get(INDEX, "")))
    for name, index in unsigned.items() if key is not None else ():
        if index not in pinned:
            total.found("signature_absent", name, "a key was given, but there is no signed packet for this bundle")
    for left in document["left_out"][:20]:
        total.notes.append(f"left out of the file: {left['bundle']}/{left['path']} ({left['bytes']} bytes)")
    if len(document["left_out"]) > 20:
        total.notes.append(f"left out of the file: {len(document['left_out']) - 20} more")
    return total


def _add(total: Verification, found: Verification, name: str, count: int) -> None:
    total.checked.add(found.checked)
    total.findings += found.findings
    total.notes += [f"{name}: {note}" if count > 1 else note for note in found.notes]
    total.enveloped = total.enveloped or found.enveloped
    if total.run_id is None:  # the first bundle is the one that the page is about
        for member in ("run_id", "status", "promotable", "policy", "pinned", "own_policy", "signed_by"):
            setattr(total, member, getattr(found, member))
        total.packet = None if found.packet is None else f"{total.path}#{name}{SUFFIX}"
        total.bundle = f"{total.path}#{name}"


def parse_embedded(data: bytes) -> dict[str, Any]:
    """Parse the document of an element. Raises ShapeError (SchemaUnknown for an unsupported version)."""
    document = parse_strict(data)
    shape.table(shape.anything)(document, "embedded")
    refuse_other_schema(document, SCHEMA)
    _DOCUMENT(document, "embedded")
    found: dict[str, Any] = document
    return found


def _read(path: str) -> dict[str, Any]:
    try:
        data = read_bounded(path, MAX_HTML_BYTES)
        if len(_ELEMENT.findall(data)) > 1:
            raise ShapeError("more than one element is called proofbox-evidence")
        start = data.index(OPENING) + len(OPENING)
        document = parse_embedded(data[start : data.index(CLOSING, start)])
    except SchemaUnknown as error:
        raise BundleSchemaUnknown(f"{shown(path)}: {error}", op="verify") from error
    except ValueError as error:  # also ShapeError, CanonicalError: no such element, or a malformed one
        raise BundleCorrupt(f"{shown(path)} has no readable embedded evidence: {error}", op="verify") from error
    except OSError as error:
        raise BundleCorrupt(f"{shown(path)} cannot be read: {error}", op="verify") from error
    names = [each["name"] for each in document["bundles"]]
    if not names or len(set(names)) < len(names) or not all(map(RUN_ID.fullmatch, names)):
        raise BundleCorrupt(f"{shown(path)} names its bundles in a way that is not allowed", op="verify")
    return document


def _extract(bundle: Mapping[str, Any], place: str) -> str:
    directory = os.path.join(place, bundle["name"])
    os.mkdir(directory)
    for name, text in bundle["files"].items():
        if not is_artifact_path(name):
            raise BundleCorrupt(
                f"the embedded evidence has a file at {name[:100]!r}, which is not allowed", op="verify"
            )
        target = os.path.join(directory, name)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as stream:
                stream.write(_decoded(text))
        except OSError as error:
            raise BundleCorrupt(
                f"the embedded file {name[:100]!r} cannot be extracted: {error}", op="verify"
            ) from error
    if bundle["packet"] is not None:
        with open(f"{directory}{SUFFIX}", "xb") as stream:
            stream.write(_decoded(bundle["packet"]))
    return directory


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BundleCorrupt(f"the embedded evidence is not base64: {error}", op="verify") from error
