"""The results of planning and making a delivery, as the SDK returns and `proofbox deliver` prints them."""

from __future__ import annotations

from proofbox.core.results import Document, ErrorBody
from proofbox.delivery.patch.patchset import Conflict, PatchChange
from proofbox.delivery.proof import Proof
from proofbox.delivery.source.tree import LeftOut


class DeliveryPlan(Document, frozen=True, kw_only=True):
    """What a delivery would send. `ok`: there are no conflicts."""

    schema: str = "proofbox.delivery_plan/1"
    app_id: str
    repo_url: str | None
    base_commit_sha: str | None
    """Null if the app has no repository yet."""
    patch_id: str
    branch_name: str
    changes: tuple[PatchChange, ...]
    left_out: tuple[LeftOut, ...]
    conflicts: tuple[Conflict, ...]
    kept: tuple[str, ...]
    unchanged: int
    not_ours: int
    tree_sha256: str
    error: ErrorBody | None
    """The error, if there are conflicts."""


class Delivery(Document, frozen=True, kw_only=True):
    """A repository or a pull request that was created, and the evidence behind it."""

    schema: str = "proofbox.delivery/1"
    app_id: str
    repo_url: str | None
    repo_full_name: str | None
    pr_url: str | None
    """Null after `init`, and if there was nothing to change."""
    base_commit_sha: str | None
    branch_name: str | None
    patch_id: str
    changes: tuple[PatchChange, ...]
    left_out: tuple[LeftOut, ...]
    conflicts: tuple[Conflict, ...]
    kept: tuple[str, ...]
    tree_sha256: str
    proof: Proof
    bundle: str | None
    """The bundle that records the requests and responses."""
