"""Every error proofbox raises on purpose, in one tree.

    ProofboxError
    ├── UsageError               PROOFBOX_USAGE              exit 2
    ├── NotFoundError            PROOFBOX_NOT_FOUND          exit 2
    ├── InternalError            PROOFBOX_INTERNAL           exit 4
    ├── CorruptError             PROOFBOX_CORRUPT            exit 1
    ├── IoFailed                 PROOFBOX_IO                 exit 4, retryable
    ├── SandboxError             SANDBOX_FAILED              exit 4
    │   ├── ProviderUnknown      SANDBOX_PROVIDER_UNKNOWN    exit 2
    │   ├── ProviderUnavailable  SANDBOX_UNAVAILABLE         exit 3
    │   ├── PolicyRefused        SANDBOX_POLICY_REFUSED      exit 3
    │   ├── PathRefused          SANDBOX_PATH_REFUSED        exit 2
    │   ├── RequestInvalid       SANDBOX_REQUEST_INVALID     exit 2
    │   ├── CommandNotFound      SANDBOX_COMMAND_NOT_FOUND   exit 127
    │   ├── CommandNotExecutable SANDBOX_COMMAND_NOT_EXECUTABLE exit 126
    │   ├── StartFailed          SANDBOX_START_FAILED        exit 3
    │   ├── EngineRefused        SANDBOX_ENGINE_REFUSED      exit 3
    │   ├── SandboxLost          SANDBOX_LOST                exit 4, retryable
    │   ├── ProtocolError        SANDBOX_PROTOCOL            exit 4
    │   ├── SessionUnknown       SANDBOX_SESSION_UNKNOWN     exit 2
    │   ├── ImageUnknown         SANDBOX_IMAGE_UNKNOWN       exit 2
    │   ├── ImageUnavailable     SANDBOX_IMAGE_UNAVAILABLE   exit 3
    │   ├── ImageCorrupt         SANDBOX_IMAGE_CORRUPT       exit 1
    │   ├── ImageLocked          SANDBOX_IMAGE_LOCKED        exit 1
    │   ├── DownloadFailed       SANDBOX_DOWNLOAD_FAILED     exit 4, retryable
    │   └── ProvisionFailed      SANDBOX_PROVISION_FAILED    exit 3
    ├── BundleError              BUNDLE_FAILED               exit 4
    │   ├── BundleNotFound       BUNDLE_NOT_FOUND            exit 2
    │   ├── BundleInProgress     BUNDLE_IN_PROGRESS          exit 1
    │   ├── BundleCorrupt        BUNDLE_CORRUPT              exit 1
    │   ├── BundleSchemaUnknown  BUNDLE_SCHEMA_UNKNOWN       exit 1
    │   ├── BundleArtifactAbsent BUNDLE_ARTIFACT_ABSENT      exit 2
    │   ├── BundlePathRefused    BUNDLE_PATH_REFUSED         exit 2
    │   ├── BundleExists         BUNDLE_EXISTS               exit 2
    │   ├── BundleLocked         BUNDLE_LOCKED               exit 3, retryable
    │   ├── BundleSecretFound    BUNDLE_SECRET_FOUND         exit 1
    │   ├── BundleRepairRefused  BUNDLE_REPAIR_REFUSED       exit 1
    │   └── StoreError           BUNDLE_STORE_FAILED         exit 4, retryable
    │       ├── StoreConflict    BUNDLE_STORE_CONFLICT       exit 1
    │       ├── StoreUntrusted   BUNDLE_STORE_UNTRUSTED      exit 3
    │       └── StoreUnavailable BUNDLE_STORE_UNAVAILABLE    exit 3
    ├── PromotionError           PROMOTION_FAILED            exit 4
    │   ├── PromotionRefused     PROMOTION_NOT_PROMOTABLE    exit 1
    │   ├── PacketInvalid        PROMOTION_PACKET_INVALID    exit 1
    │   ├── PolicyInvalid        PROMOTION_POLICY_INVALID    exit 2
    │   └── KeyInvalid           PROMOTION_KEY_INVALID       exit 2
    └── WorkspaceError           WORKSPACE_FAILED            exit 4
        ├── WorkspaceUnknown     WORKSPACE_UNKNOWN           exit 2
        ├── WorkspaceExists      WORKSPACE_EXISTS            exit 2
        ├── WorkspacePathRefused WORKSPACE_PATH_REFUSED      exit 2
        ├── SnapshotUnknown      WORKSPACE_SNAPSHOT_UNKNOWN  exit 2
        ├── WorkspaceCorrupt     WORKSPACE_CORRUPT           exit 1
        └── WorkspaceChanging    WORKSPACE_CHANGING          exit 4, retryable

A class owns its code, its exit code and whether trying again may help. An instance says what happened (`message`),
during what (`op`), what to do about it (`fix_hints`), and carries facts as data (`details`, JSON-ready), never inside
the prose alone. The tree uses the standard library only, so that an auditor's tool can raise from it.

Exit codes: 0 ok · 1 evaluated, and the answer is no · 2 usage · 3 known but not available here · 4 internal. `exec` and
`session exec` pass the command's own code through and report every failure of proofbox itself as 125, but for 126 and
127, which mean what a shell means by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar


class ProofboxError(Exception):
    """The root: catch this to catch everything proofbox raises on purpose."""

    code: ClassVar[str] = "PROOFBOX_ERROR"
    exit_code: ClassVar[int] = 4
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        op: str = "",
        fix_hints: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.op = op
        self.fix_hints = tuple(fix_hints)
        self.details: dict[str, Any] = dict(details or {})

    def as_dict(self) -> dict[str, Any]:
        """The `error` member of a `proofbox.error/1` document."""
        return {
            "code": self.code,
            "message": self.message,
            "op": self.op,
            "fix_hints": list(self.fix_hints),
            "retryable": self.retryable,
            **self.details,
        }


class UsageError(ProofboxError):
    """The caller asked for something that means nothing: a wrong flag, a bad value."""

    code = "PROOFBOX_USAGE"
    exit_code = 2


class NotFoundError(ProofboxError):
    """A file or directory the caller named is not there, or can't be read."""

    code = "PROOFBOX_NOT_FOUND"
    exit_code = 2


class InternalError(ProofboxError):
    """A defect in proofbox. The message names it; the fix is a bug report."""

    code = "PROOFBOX_INTERNAL"


class CorruptError(ProofboxError):
    """Stored bytes are not what their digest, chain or schema says."""

    code = "PROOFBOX_CORRUPT"
    exit_code = 1


class IoFailed(ProofboxError):
    """The machine would not read or write: a full disk, a closed stream, a place without permission."""

    code = "PROOFBOX_IO"
    retryable = True


class SandboxError(ProofboxError):
    """Anything that goes wrong between asking for a sandbox and having its command's result.

    `details["diagnostics"]`, where there are any, says of each provider considered whether it is available and why not.
    """

    code = "SANDBOX_FAILED"


class ProviderUnknown(SandboxError):
    """No provider has that name."""

    code = "SANDBOX_PROVIDER_UNKNOWN"
    exit_code = 2


class ProviderUnavailable(SandboxError):
    """The provider is known, and a real trial of it failed on this machine."""

    code = "SANDBOX_UNAVAILABLE"
    exit_code = 3


class PolicyRefused(SandboxError):
    """A policy was asked for that this provider can't enforce here. Nothing was started."""

    code = "SANDBOX_POLICY_REFUSED"
    exit_code = 3


class PathRefused(SandboxError):
    """A project, cwd or mount that doesn't exist, escapes, or has no place inside the box."""

    code = "SANDBOX_PATH_REFUSED"
    exit_code = 2


class RequestInvalid(SandboxError):
    """The request itself can't be carried out: NUL bytes, too long an argv, a bad environment name."""

    code = "SANDBOX_REQUEST_INVALID"
    exit_code = 2


class CommandNotFound(SandboxError):
    """The command does not exist inside the box."""

    code = "SANDBOX_COMMAND_NOT_FOUND"
    exit_code = 127


class CommandNotExecutable(SandboxError):
    """The command exists inside the box and can't be executed."""

    code = "SANDBOX_COMMAND_NOT_EXECUTABLE"
    exit_code = 126


class StartFailed(SandboxError):
    """The provider works on this machine, but this box did not start."""

    code = "SANDBOX_START_FAILED"
    exit_code = 3


class EngineRefused(SandboxError):
    """A container engine answered, and the answer was no. `details["status"]` is its HTTP status."""

    code = "SANDBOX_ENGINE_REFUSED"
    exit_code = 3


class SandboxLost(SandboxError):
    """The box died under the command. Not the command's failure: its exit code is not known."""

    code = "SANDBOX_LOST"
    retryable = True


class ProtocolError(SandboxError):
    """The other end of the box's stream spoke something else than the box agent's protocol."""

    code = "SANDBOX_PROTOCOL"


class SessionUnknown(SandboxError):
    """No session has that id, or it ended long enough ago to be forgotten."""

    code = "SANDBOX_SESSION_UNKNOWN"
    exit_code = 2


class ImageUnknown(SandboxError):
    """The catalogue has no image of that name for this architecture."""

    code = "SANDBOX_IMAGE_UNKNOWN"
    exit_code = 2


class ImageUnavailable(SandboxError):
    """There is no image to be had: none is named, it was not pulled yet, or its server has no such file."""

    code = "SANDBOX_IMAGE_UNAVAILABLE"
    exit_code = 3


class ImageCorrupt(SandboxError):
    """An image's bytes are not those its digest promises. They were not kept."""

    code = "SANDBOX_IMAGE_CORRUPT"
    exit_code = 1


class ImageLocked(SandboxError):
    """The catalogue means another image by that name than the project's lock file does."""

    code = "SANDBOX_IMAGE_LOCKED"
    exit_code = 1


class DownloadFailed(SandboxError):
    """A download did not come to its end. What has come is kept, and the next try goes on from there."""

    code = "SANDBOX_DOWNLOAD_FAILED"
    retryable = True


class ProvisionFailed(SandboxError):
    """The script that prepares a box did not succeed, so that there is no box. `details` has what it said."""

    code = "SANDBOX_PROVISION_FAILED"
    exit_code = 3


class BundleError(ProofboxError):
    """Anything that goes wrong with a bundle of evidence."""

    code = "BUNDLE_FAILED"


class BundleNotFound(BundleError):
    """There is no bundle at that place, or no run that has been committed."""

    code = "BUNDLE_NOT_FOUND"
    exit_code = 2


class BundleInProgress(BundleError):
    """The bundle was never committed: its run is still writing, or died."""

    code = "BUNDLE_IN_PROGRESS"
    exit_code = 1


class BundleCorrupt(BundleError):
    """The bundle is not what its index says. `details["findings"]` names each difference."""

    code = "BUNDLE_CORRUPT"
    exit_code = 1


class BundleSchemaUnknown(BundleError):
    """A document of the bundle has a schema version that this reader does not know."""

    code = "BUNDLE_SCHEMA_UNKNOWN"
    exit_code = 1


class BundleArtifactAbsent(BundleError):
    """The bundle is good, and has no artifact of that name."""

    code = "BUNDLE_ARTIFACT_ABSENT"
    exit_code = 2


class BundlePathRefused(BundleError):
    """A name that can't be an artifact's: absolute, escaping, reserved, or not fit for every file system."""

    code = "BUNDLE_PATH_REFUSED"
    exit_code = 2


class BundleExists(BundleError):
    """A run or an artifact of that name is already there. Evidence is never overwritten."""

    code = "BUNDLE_EXISTS"
    exit_code = 2


class BundleLocked(BundleError):
    """Another process holds the lock of the output directory. `details["holder"]` says which."""

    code = "BUNDLE_LOCKED"
    exit_code = 3
    retryable = True


class BundleSecretFound(BundleError):
    """An artifact holds a secret that this process knows, so the bundle was not committed."""

    code = "BUNDLE_SECRET_FOUND"
    exit_code = 1


class BundleRepairRefused(BundleError):
    """Repairing would have to invent or follow something: the bundle was left as it is."""

    code = "BUNDLE_REPAIR_REFUSED"
    exit_code = 1


class StoreError(BundleError):
    """The store of bundles did not answer as it should."""

    code = "BUNDLE_STORE_FAILED"
    retryable = True


class StoreConflict(StoreError):
    """Something else is already at that key, or has changed since it was read."""

    code = "BUNDLE_STORE_CONFLICT"
    exit_code = 1
    retryable = False


class StoreUntrusted(StoreError):
    """The store does not honour create-only or compare-and-swap, so nothing is written to it."""

    code = "BUNDLE_STORE_UNTRUSTED"
    exit_code = 3
    retryable = False


class StoreUnavailable(StoreError):
    """The kind of store is known, and what it needs is not installed here."""

    code = "BUNDLE_STORE_UNAVAILABLE"
    exit_code = 3
    retryable = False


class PromotionError(ProofboxError):
    """Anything that goes wrong between a bundle and a packet others rely on."""

    code = "PROMOTION_FAILED"


class PromotionRefused(PromotionError):
    """The bundle may not be relied on. `details["reasons"]` names every rule that did not hold."""

    code = "PROMOTION_NOT_PROMOTABLE"
    exit_code = 1


class PacketInvalid(PromotionError):
    """The file is no promotion packet, or one of a version this reader does not know."""

    code = "PROMOTION_PACKET_INVALID"
    exit_code = 1


class PolicyInvalid(PromotionError):
    """No policy has that name, or the policy's own data make no sense."""

    code = "PROMOTION_POLICY_INVALID"
    exit_code = 2


class KeyInvalid(PromotionError):
    """The key can't be used: absent, of another kind, or a private key that others may read."""

    code = "PROMOTION_KEY_INVALID"
    exit_code = 2


class WorkspaceError(ProofboxError):
    """Anything that goes wrong with a directory's history."""

    code = "WORKSPACE_FAILED"


class WorkspaceUnknown(WorkspaceError):
    """The directory is not a workspace of this user."""

    code = "WORKSPACE_UNKNOWN"
    exit_code = 2


class WorkspaceExists(WorkspaceError):
    """The directory is a workspace already."""

    code = "WORKSPACE_EXISTS"
    exit_code = 2


class WorkspacePathRefused(WorkspaceError):
    """A directory that can't be a workspace, or a fork's destination that is taken."""

    code = "WORKSPACE_PATH_REFUSED"
    exit_code = 2


class SnapshotUnknown(WorkspaceError):
    """No snapshot of this workspace has that id, prefix or name, or several have that prefix."""

    code = "WORKSPACE_SNAPSHOT_UNKNOWN"
    exit_code = 2


class WorkspaceCorrupt(WorkspaceError):
    """Stored history is not what its digests say."""

    code = "WORKSPACE_CORRUPT"
    exit_code = 1


class WorkspaceChanging(WorkspaceError):
    """The files kept changing while they were put back. The rollback is finished at the next open."""

    code = "WORKSPACE_CHANGING"
    retryable = True


def error_classes(root: type[ProofboxError] = ProofboxError) -> Iterator[type[ProofboxError]]:
    """Every class of the tree, parents first, in the order of definition."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)
