"""Collect the index entries for all files of a bundle, just before the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from proofbox.core.chain import FORMAT as CHAIN_FORMAT
from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import BundlePathRefused
from proofbox.evidence.bundle.content import read_again
from proofbox.evidence.bundle.index import SCHEMA as INDEX_SCHEMA
from proofbox.evidence.bundle.index import Anchor, Artifact, schema_of
from proofbox.evidence.bundle.paths import (
    INDEX,
    IRREGULAR,
    MAX_STATUS_BYTES,
    STATUS,
    is_artifact_path,
    is_temporary,
    shown,
    tidy,
)
from proofbox.evidence.pool import in_threads


def cover(
    directory: Path, known: Collection[Artifact], measure: Callable[[str], Artifact]
) -> tuple[list[Artifact], list[str]]:
    """Return an entry for every file of the bundle, and the missing indexes of interrupted nested bundles.

    `known` has entries already; `measure` creates the others. A file that an index can't list is refused.
    """
    found = tidy(directory)
    if found.irregular:
        first = min(found.irregular)
        raise BundlePathRefused(
            f"{shown(first)} is {IRREGULAR[found.irregular[first]]}, which a bundle can't contain",
            op="bundle commit",
            fix_hints=["write only regular files into a bundle"],
        )
    own, interrupted = found.split()
    own.discard(STATUS)
    entries = {artifact.path: artifact for artifact in known}
    wrong = [f"{path} was written but has disappeared" for path in entries if path not in found.files]
    wrong += [f"invalid artifact name: {shown(path)}" for path in own if not is_artifact_path(path)]
    wrong += [f"{shown(path)} is being written by another process" for path in own if is_temporary(path)]
    if wrong:
        raise BundlePathRefused(
            wrong[0],
            op="bundle commit",
            fix_hints=["don't let other programs change the directory of a bundle in progress"],
        )
    rest = in_threads(measure, sorted(own.difference(entries)))
    return [entries[path] for path in sorted(own.intersection(entries))] + rest, interrupted


def measured(directory: Path, path: str, redactor: Redactor | None, chain: Anchor | None) -> tuple[Artifact, bool]:
    """Return the entry of an existing file (a log, a nested index, a file of another program).

    Also return whether it contains an exact secret of the redactor.
    """
    is_json = path.endswith(".json")
    meter, kept = read_again(directory / path, redactor, keep=MAX_STATUS_BYTES if is_json else 0)
    schema = CHAIN_FORMAT if chain else None
    if path.endswith("/" + INDEX):
        schema = INDEX_SCHEMA
    elif is_json and len(kept) == meter.size:
        schema = schema_of(kept)
    return Artifact(path, meter.size, meter.sha256, schema, chain), meter.secret
