"""Bundles that another bundle pins by their index: the runs of a campaign, the branches of an exploration."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from proofbox.core.canonical import CanonicalError, parse_strict
from proofbox.core.digest import sha256_hex
from proofbox.evidence.bundle.index import SchemaUnknown, refuse_other_schema
from proofbox.evidence.bundle.paths import MAX_JSON_BYTES, is_artifact_path
from proofbox.evidence.documents.shape import ShapeError, anything, array, sha256, table, text
from proofbox.evidence.verify.check import BundleCheck, check_bundle
from proofbox.evidence.verify.verification import Verification

if TYPE_CHECKING:
    from proofbox.evidence.bundle.reader import Bundle

RUNS = "runs.json"
"""The artifact of a campaign that names its runs."""
EXPLORATION = "exploration.json"
"""The artifact of an exploration that names its branches."""


class PinnedBundle(NamedTuple):
    """A pinned bundle, and the digest of its index."""

    path: str
    """Relative to `base`."""
    index_sha256: str
    what: str
    """`run` or `branch`."""
    base: str
    """The directory of the whole campaign or exploration."""


class _List(NamedTuple):
    """An artifact that pins bundles."""

    artifact: str
    schema: str
    member: str
    """The member with the rows."""
    path: str
    """The member of a row with the bundle's path."""
    what: str
    up: int
    """Directories between the bundle and the whole campaign or exploration."""


_LISTS = (
    _List(RUNS, "proofbox.campaign_runs/1", "runs", "path", "run", 1),
    _List(EXPLORATION, "proofbox.exploration/1", "branches", "bundle", "branch", 2),
)


def pinned_bundles(bundle: Bundle | BundleCheck) -> list[PinnedBundle]:
    """Return the bundles that a checked bundle pins; none unless it is a campaign or an exploration.

    Raises ShapeError if the list of them is malformed or was changed after the check.
    """
    return [pinned for each in _LISTS for pinned in _pinned(bundle, each)]


def read_pins(result: Verification, bundle: BundleCheck) -> list[PinnedBundle]:
    """Return the bundles that a checked bundle pins. A malformed list is a finding."""
    found = []
    for each in _LISTS:
        listed = None if bundle.index is None else bundle.index.artifacts.get(each.artifact)
        if listed is not None and not _is_of(each, listed.schema_version):
            result.notes.append(f"{each.artifact} is not {each.schema}, so no {each.what} was checked for it")
        try:
            found += _pinned(bundle, each)
        except ShapeError as error:
            if not any(finding.path == each.artifact for finding in bundle.findings):  # it may be damaged
                unknown = isinstance(error, SchemaUnknown)
                result.found("schema_unknown" if unknown else "pins_malformed", each.artifact, str(error))
    return found


def _pinned(bundle: Bundle | BundleCheck, pins: _List) -> list[PinnedBundle]:
    listed = None if bundle.index is None else bundle.index.artifacts.get(pins.artifact)
    if listed is None or not _is_of(pins, listed.schema_version):  # maybe another document of this name
        return []
    try:
        data = bundle.directory.read(pins.artifact, min(listed.file_size, MAX_JSON_BYTES))
        if sha256_hex(data) != listed.sha256:
            raise ShapeError("its content differs from the committed content")
        document = parse_strict(data)
    except (OSError, CanonicalError) as error:
        raise ShapeError(str(error)) from error
    table(anything)(document, pins.artifact)
    refuse_other_schema(document, pins.schema)
    rows = document.get(pins.member)
    array(table(anything))(rows, pins.member)
    base = os.path.realpath("/".join(os.path.abspath(bundle.path).split("/")[: -pins.up]) or "/")
    found = []
    for number, row in enumerate(rows):
        path, where = row.get(pins.path), f"{pins.member}[{number}]"
        text()(path, f"{where}.{pins.path}")
        if path or pins.artifact == RUNS:  # a branch without a bundle did not start
            sha256(row.get("index_sha256"), f"{where}.index_sha256")
            found.append(PinnedBundle(path, row["index_sha256"], pins.what, base))
    return found


def _is_of(pins: _List, schema: str | None) -> bool:
    """Return whether this is the schema of the list, in any version."""
    return (schema or "").rpartition("/")[0] == pins.schema.rpartition("/")[0]


def verify_pinned(result: Verification, bundle: BundleCheck) -> None:
    """Verify the bundles that a checked bundle pins, which are in the same directory."""
    indexes: dict[str, str] = {}
    for pinned in read_pins(result, bundle):
        owner = "campaign" if pinned.what == "run" else "exploration"
        code = f"{pinned.what}_mismatch"
        place = _place(pinned)
        if place is None:
            result.found(code, pinned.path, f"the {owner} names a {pinned.what} outside its directory")
        elif not os.path.isdir(place):
            result.notes.append(f"the {pinned.what} {pinned.path} is not here, so it was not checked")
        else:
            if place not in indexes:  # checked once, no matter how often it is pinned
                checked = check_bundle(place, chains=True)
                indexes[place] = checked.index_sha256
                result.checked.add(checked.checked)
                result.findings += [
                    replace(each, path=f"{pinned.path}/{each.path}", path_b64=None) for each in checked.findings
                ]
            if indexes[place] != pinned.index_sha256:
                result.found(code, pinned.path, f"the {owner} pins another version of this {pinned.what}")


def _place(pinned: PinnedBundle) -> str | None:
    """Return where a pinned bundle is; None if that is not a path inside the campaign or exploration."""
    if not is_artifact_path(pinned.path):  # before it is looked up: it may contain any character
        return None
    place = os.path.realpath(os.path.join(pinned.base, pinned.path))
    return place if os.path.commonpath([place, pinned.base]) == pinned.base else None
