"""Forgeries of evidence that recompute every digest they can, as an attacker with all of the files could."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from proofbox.core.chain import ChainWriter, origin
from proofbox.core.digest import sha256_file, sha256_hex
from proofbox.evidence.bundle.index import Anchor, Artifact, Index, parse_index, schema_of
from proofbox.evidence.bundle.paths import INDEX, walk


def rebuild(bundle: Path, *, change: Callable[[Index], Index] = lambda index: index) -> Index:
    """Rebuild a bundle's index from its current files, without a repair record. Nested indexes are left alone."""
    old = parse_index((bundle / INDEX).read_bytes())
    own, _ = walk(bundle).split()
    artifacts = {path: _measured(bundle, path, old, old.artifacts.get(path)) for path in own - {INDEX}}
    index = change(old._replace(artifacts=artifacts))
    (bundle / INDEX).write_bytes(index.to_bytes())
    return index


def rewrite_log(bundle: Path, path: str, entries: list[dict[str, object]]) -> None:
    """Write a log with these entries and a new chain, and list it in the index."""
    run_id = parse_index((bundle / INDEX).read_bytes()).run_id
    (bundle / path).unlink()
    with ChainWriter(bundle / path, f"{run_id}/{path}") as writer:
        for entry in entries:
            writer.append({name: value for name, value in entry.items() if name not in ("seq", "prev")})
    rebuild(bundle)


def repin(run: Path) -> None:
    """Make the schedule of a run pin its attempts as they are now, and rebuild the run's index."""
    entries = [json.loads(line) for line in (run / "schedule.jsonl").read_bytes().splitlines()]
    paths = {entry["attempt"]: entry["path"] for entry in entries if entry["kind"] == "planned"}
    for entry in entries:
        if entry["kind"] == "finished":
            entry["index_sha256"] = sha256_file(run / paths[entry["attempt"]] / INDEX)[0]
    rewrite_log(run, "schedule.jsonl", entries)


def _measured(bundle: Path, path: str, index: Index, before: Artifact | None) -> Artifact:
    digest, size = sha256_file(bundle / path)
    if before is not None and (before.sha256, before.file_size) == (digest, size):
        return before
    chain = before.chain if before is not None else None
    if chain is not None:
        lines = (bundle / path).read_bytes().splitlines()
        head = sha256_hex(lines[-1]) if lines else origin(f"{index.run_id}/{path}")
        chain = Anchor(len(lines), head)
    schema = before.schema_version if before is not None else None
    if schema is None and path.endswith(".json"):
        schema = schema_of((bundle / path).read_bytes())
    return Artifact(path, size, digest, schema, chain)
