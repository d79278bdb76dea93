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
    │   └── SessionUnknown       SANDBOX_SESSION_UNKNOWN     exit 2
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
    ├── WorkspaceError           WORKSPACE_FAILED            exit 4
    │   ├── WorkspaceUnknown     WORKSPACE_UNKNOWN           exit 2
    │   ├── WorkspaceExists      WORKSPACE_EXISTS            exit 2
    │   ├── WorkspacePathRefused WORKSPACE_PATH_REFUSED      exit 2
    │   ├── SnapshotUnknown      WORKSPACE_SNAPSHOT_UNKNOWN  exit 2
    │   ├── WorkspaceCorrupt     WORKSPACE_CORRUPT           exit 1
    │   └── WorkspaceChanging    WORKSPACE_CHANGING          exit 4, retryable
    └── DeliveryError            DELIVERY_FAILED             exit 4
        ├── SettingsInvalid      DELIVERY_SETTINGS_INVALID   exit 2
        ├── SourceRefused        DELIVERY_SOURCE_REFUSED     exit 2
        ├── DeliverySecretFound  DELIVERY_SECRET_FOUND       exit 1
        ├── DeliveryConflict     DELIVERY_CONFLICT           exit 1
        ├── DeliveryNotProven    DELIVERY_NOT_PROVEN         exit 1
        ├── RepositoryFailed     DELIVERY_REPOSITORY_FAILED  exit 4
        └── BackendError         DELIVERY_BACKEND            exit 4
            ├── BackendUnauthorized DELIVERY_UNAUTHORIZED    exit 3
            ├── BackendForbidden    DELIVERY_FORBIDDEN       exit 3
            ├── BackendNotFound     DELIVERY_NOT_FOUND       exit 2
            ├── BackendConflict     DELIVERY_BACKEND_CONFLICT exit 1
            ├── BackendTooLarge     DELIVERY_TOO_LARGE       exit 1
            ├── BackendRejected     DELIVERY_REJECTED        exit 1
            ├── BackendRateLimited  DELIVERY_RATE_LIMITED    exit 3, retryable
            ├── BackendFailed       DELIVERY_BACKEND_FAILED  exit 3, retryable
            ├── BackendUnreachable  DELIVERY_UNREACHABLE     exit 3, retryable
            └── BackendProtocol     DELIVERY_PROTOCOL        exit 4

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


class DeliveryError(ProofboxError):
    """Anything that goes wrong between a tree of files and a repository or pull request that holds it."""

    code = "DELIVERY_FAILED"


class SettingsInvalid(DeliveryError):
    """The backend's address or key is missing, a placeholder, or not fit for use. Nothing was sent."""

    code = "DELIVERY_SETTINGS_INVALID"
    exit_code = 2


class SourceRefused(DeliveryError):
    """The source can't be delivered: absent, an archive that is not safe, a name that no repository can hold."""

    code = "DELIVERY_SOURCE_REFUSED"
    exit_code = 2


class DeliverySecretFound(DeliveryError):
    """A file holds a secret that this process knows. Nothing was sent."""

    code = "DELIVERY_SECRET_FOUND"
    exit_code = 1


class DeliveryConflict(DeliveryError):
    """The repository has changes of its own where the source differs. `details["conflicts"]` names each."""

    code = "DELIVERY_CONFLICT"
    exit_code = 1


class DeliveryNotProven(DeliveryError):
    """The evidence does not support this delivery: not promotable, not signed, or of another tree."""

    code = "DELIVERY_NOT_PROVEN"
    exit_code = 1


class RepositoryFailed(DeliveryError):
    """The reference backend's git did not do what it was asked to."""

    code = "DELIVERY_REPOSITORY_FAILED"


class BackendError(DeliveryError):
    """The backend did not do what it was asked to. `details` has `status`, `attempts` and what it `said`."""

    code = "DELIVERY_BACKEND"


class BackendUnauthorized(BackendError):
    """401: the backend does not know the key."""

    code = "DELIVERY_UNAUTHORIZED"
    exit_code = 3


class BackendForbidden(BackendError):
    """403: the key is known, and this user may not do that."""

    code = "DELIVERY_FORBIDDEN"
    exit_code = 3


class BackendNotFound(BackendError):
    """404: the backend does not know an id of the request; `details["ids"]` has them."""

    code = "DELIVERY_NOT_FOUND"
    exit_code = 2


class BackendConflict(BackendError):
    """409: something else is there already, or the repository has moved."""

    code = "DELIVERY_BACKEND_CONFLICT"
    exit_code = 1


class BackendTooLarge(BackendError):
    """413: the request is larger than the backend takes."""

    code = "DELIVERY_TOO_LARGE"
    exit_code = 1


class BackendRejected(BackendError):
    """400 or 422: the backend understood the request and finds it wrong."""

    code = "DELIVERY_REJECTED"
    exit_code = 1


class BackendRateLimited(BackendError):
    """429: too many requests; `details["retry_after"]` says for how long, where the backend does."""

    code = "DELIVERY_RATE_LIMITED"
    exit_code = 3
    retryable = True


class BackendFailed(BackendError):
    """5xx: the backend failed."""

    code = "DELIVERY_BACKEND_FAILED"
    exit_code = 3
    retryable = True


class BackendUnreachable(BackendError):
    """No connection, a connection that broke, or no answer in time."""

    code = "DELIVERY_UNREACHABLE"
    exit_code = 3
    retryable = True


class BackendProtocol(BackendError):
    """What answered is not the backend's API: a redirect, an answer that is too large or not what was agreed."""

    code = "DELIVERY_PROTOCOL"


def error_classes(root: type[ProofboxError] = ProofboxError) -> Iterator[type[ProofboxError]]:
    """Every class of the tree, parents first, in the order of definition."""
    yield root
    for child in root.__subclasses__():
        yield from error_classes(child)
