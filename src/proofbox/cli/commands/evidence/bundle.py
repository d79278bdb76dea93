"""`bundle`: show, check and reindex bundles, and copy them to and from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from proofbox.cli import flags
from proofbox.cli.commands.evidence.verify import FindingFacts, show_verification
from proofbox.cli.output import Document, ErrorBody, columns, readable, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import one_line, printable
from proofbox.errors import UsageError

BundlePath = Annotated[
    Path, Parameter(help="A run's directory, a packed run, or an output directory, for its LATEST run.")
]


class RunFacts(msgspec.Struct, frozen=True):
    run_id: str
    path: str
    state: str
    """in_progress, complete or failed; `interrupted`: in progress, but its writer is gone; `unreadable`: its status
    cannot be read."""
    status: str | None
    """The index's status: ok, partial or failed; null: not committed."""
    started_at: str | None
    latest: bool
    """Whether LATEST in its output directory names it."""
    repairs: int
    dry: bool


class BundlesDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.bundles/1"
    bundles: tuple[RunFacts, ...]
    """Oldest first."""


class ArtifactFacts(msgspec.Struct, frozen=True):
    path: str
    file_size: int
    """The size in bytes that the index states."""
    sha256: str
    schema_version: str | None
    """The schema that the index states; null: none."""


class BundleDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.bundle/1"
    bundle: RunFacts
    failure: dict[str, str] | None
    """Why the run failed: `stage`, `error`, `message`; null unless it failed."""
    artifacts: tuple[ArtifactFacts, ...]
    missing: tuple[str, ...]
    """Files that are listed or expected but do not exist."""
    digest_mismatches: tuple[str, ...]
    """Files whose size or content differs from the index."""
    unlisted: tuple[str, ...]
    """Files that no index lists."""
    findings: tuple[FindingFacts, ...]


class ReindexDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.reindex/1"
    mode: str
    """`strict`: checked only. `repair`: the index was recomputed if anything was wrong."""
    findings: tuple[FindingFacts, ...]
    changes: tuple[dict[str, Any], ...]
    """For a repair: each path, with its index entry before and after."""
    repairs: int
    error: ErrorBody | None = None


def list_(
    out: Annotated[Path, Parameter(help="An output directory.")] = Path("out"), *, json: flags.Json = False
) -> int:
    """List the runs in an output directory, without checking them.

    For example:
      proofbox bundle list out
      proofbox bundle list out --json
    """
    from proofbox.evidence.bundle.listing import list_bundles

    found = tuple(RunFacts(**run.as_json()) for run in list_bundles(out))
    show(BundlesDocument(bundles=found), lambda: _table(found), as_json=json)
    return 0


def show_(path: BundlePath, *, json: flags.Json = False) -> int:
    """Show one bundle, in any state: listed, missing and unlisted files. Use `verify` to check it.

    For example:
      proofbox bundle show out
      proofbox bundle show out/run-01… --json
    """
    from proofbox.evidence.bundle.listing import describe
    from proofbox.evidence.bundle.reader import open_bundle_unverified

    seen = open_bundle_unverified(path)
    facts = RunFacts(**describe(seen.path).as_json())
    artifacts = tuple(
        ArtifactFacts(each.path, each.file_size, each.sha256, each.schema_version)
        for each in (seen.index.artifacts.values() if seen.index else ())
    )
    document = BundleDocument(
        bundle=facts,
        failure=seen.status.failure if seen.status else None,
        artifacts=artifacts,
        missing=seen.missing,
        digest_mismatches=seen.digest_mismatches,
        unlisted=seen.unlisted,
        findings=tuple(map(FindingFacts.of, seen.findings)),
    )
    show(document, lambda: _details(document), as_json=json)
    return 0


def verify(path: BundlePath, *, key: flags.PublicKey = None, json: flags.Json = False) -> int:
    """Check a bundle completely, as `proofbox verify` does. Exit 1 on any finding.

    For example:
      proofbox bundle verify out
    """
    from proofbox.evidence.verify.verifier import verify as verify_path

    return show_verification(verify_path(path, key=None if key is None else str(key)), as_json=json)


def reindex(
    path: BundlePath,
    *,
    strict: Annotated[
        bool, Parameter(name="--strict", help="Check against the index without changing anything.")
    ] = False,
    repair_: Annotated[
        bool,
        Parameter(name="--repair", help="Recompute the index; permanently marks the bundle as repaired."),
    ] = False,
    lock_mode: flags.LockMode = "wait",
    lock_timeout: flags.LockTimeout = 30.0,
    json: flags.Json = False,
) -> int:
    """Check a bundle against its index (--strict), or recompute the index (--repair).

    A repair writes repair_log.json and permanently marks the bundle as repaired. It does not restore missing files. A
    bundle in progress is refused.

    For example:
      proofbox bundle reindex out/run-01… --strict
      proofbox bundle reindex out/run-01… --repair --json
    """
    from proofbox.evidence.bundle.reader import refusal
    from proofbox.evidence.bundle.repair import reindex_repair, reindex_strict

    if strict == repair_:
        raise UsageError(
            "give exactly one of --strict and --repair",
            op="bundle reindex",
            fix_hints=["check only: --strict", "recompute the index: --repair"],
        )
    if repair_:
        index, changes = reindex_repair(path, lock=lock_mode, lock_timeout=lock_timeout)
        document = ReindexDocument(mode="repair", findings=(), changes=tuple(changes), repairs=index.repairs)
    else:
        checked = reindex_strict(path)
        document = ReindexDocument(
            ok=checked.ok,
            mode="strict",
            findings=tuple(map(FindingFacts.of, checked.findings)),
            changes=(),
            repairs=checked.index.repairs if checked.index else 0,
            error=None if checked.ok else ErrorBody.of(refusal(checked)),
        )
    show(document, lambda: _reindexed(document), as_json=json)
    return 0 if document.ok else 1


class PackDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.packed_bundle/1"
    run_id: str
    path: str
    """The file."""
    size: int
    """Its size in bytes."""


def pack(
    path: BundlePath,
    *,
    out: Annotated[
        Path | None, Parameter(name="--out", help="The file to write. Default: RUN.bundle.tar.gz beside the run.")
    ] = None,
    json: flags.Json = False,
) -> int:
    """Write a committed bundle to one file. `verify`, `report` and all other readers accept the file in its place.

    The file has the same bytes and digests, so packets and signatures stay valid. The directory is left as it is.

    For example:
      proofbox bundle pack out
      proofbox verify out/run-01….bundle.tar.gz
    """
    from proofbox.evidence.bundle.packed import pack_bundle

    made = pack_bundle(path, out)
    document = PackDocument(run_id=made.run_id, path=str(made.file), size=made.size)
    show(document, lambda: printable(f"{made.file}: {made.size} bytes"), as_json=json)
    return 0


class TransferDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.transfer/1"
    run_id: str
    store: str
    """The store's address, as given."""
    path: str
    """The bundle on this machine."""


StoreUrl = Annotated[str, Parameter(help="s3://bucket/prefix, or the path of a directory.")]


def push(path: BundlePath, store: StoreUrl, *, json: flags.Json = False) -> int:
    """Copy a committed bundle to a store, its index last. The store is tested first; nothing is overwritten.

    For example:
      proofbox bundle push out s3://evidence/nightly
    """
    from proofbox.evidence.store.contract import open_store
    from proofbox.evidence.store.transfer import push_bundle

    run_id = push_bundle(path, open_store(store))
    document = TransferDocument(run_id=run_id, store=store, path=str(path))
    show(document, lambda: printable(f"{run_id} is in {store}"), as_json=json)
    return 0


def pull(
    store: StoreUrl,
    out: Annotated[Path, Parameter(help="The output directory to copy into.")] = Path("out"),
    *,
    run: Annotated[str | None, Parameter(name="--run", help="The run's id. Default: the store's LATEST.")] = None,
    lock_mode: flags.LockMode = "wait",
    lock_timeout: flags.LockTimeout = 30.0,
    json: flags.Json = False,
) -> int:
    """Copy a run from a store and check every byte. The run appears complete or not at all.

    For example:
      proofbox bundle pull s3://evidence/nightly out
      proofbox bundle pull s3://evidence/nightly out --run run-01…
    """
    from proofbox.evidence.store.contract import open_store
    from proofbox.evidence.store.transfer import pull_bundle

    bundle = pull_bundle(open_store(store), out, run, lock=lock_mode, lock_timeout=lock_timeout)
    document = TransferDocument(run_id=bundle.run_id, store=store, path=bundle.path)
    show(document, lambda: printable(bundle.path), as_json=json)
    return 0


def _table(found: tuple[RunFacts, ...]) -> str:
    if not found:
        return "no runs"
    rows = [("RUN", "STATE", "STATUS", "STARTED", "")]
    for each in found:
        marks = [
            name for name, on in (("latest", each.latest), ("dry", each.dry), ("repaired", each.repairs > 0)) if on
        ]
        rows.append((each.run_id, each.state, each.status or "-", (each.started_at or "-")[:19], " ".join(marks)))
    return columns(rows)


def _details(document: BundleDocument) -> str:
    facts = msgspec.to_builtins(document.bundle)
    lines = [(name, readable(value)) for name, value in facts.items()]
    if document.failure:
        lines.append(("failure", "{stage}: {error}: {message}".format(**document.failure)))
    parts = [columns(lines)]
    if document.artifacts:
        rows = [(a.path, str(a.file_size), a.sha256[:16], a.schema_version or "") for a in document.artifacts]
        parts.append(columns([("ARTIFACT", "BYTES", "SHA-256", "SCHEMA"), *rows]))
    parts += [one_line(f"missing: {path}") for path in document.missing]
    parts += [one_line(f"finding: {each.code} {each.path}: {each.detail}") for each in document.findings]
    return "\n".join(parts)


def _reindexed(document: ReindexDocument) -> str:
    if document.mode == "strict":
        lines = [f"finding: {each.code} {each.path}: {each.detail}" for each in document.findings]
        return "\n".join(map(one_line, lines or ["the bundle matches its index"]))
    kinds = {(True, True): "changed", (False, True): "added", (True, False): "removed"}
    lines = [f"{kinds[bool(each['before']), bool(each['after'])]}: {each['path']}" for each in document.changes]
    lines.append(f"repairs so far: {document.repairs}" if lines else "nothing to repair")
    return "\n".join(map(one_line, lines))
