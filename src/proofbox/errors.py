"""Every error proofbox raises on purpose, in one tree.

    ProofboxError
    ├── UsageError               PROOFBOX_USAGE              exit 2
    ├── NotFoundError            PROOFBOX_NOT_FOUND          exit 2
    ├── InternalError            PROOFBOX_INTERNAL           exit 4
    ├── DemoFailed               PROOFBOX_DEMO_FAILED        exit 1
    ├── CorruptError             PROOFBOX_CORRUPT            exit 1
    ├── IoFailed                 PROOFBOX_IO                 exit 3, retryable
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
    │   ├── NotFrozen            SANDBOX_NOT_FROZEN          exit 4, retryable
    │   ├── ProtocolError        SANDBOX_PROTOCOL            exit 4
    │   ├── SessionUnknown       SANDBOX_SESSION_UNKNOWN     exit 2
    │   ├── ImageUnknown         SANDBOX_IMAGE_UNKNOWN       exit 2
    │   ├── ImageUnavailable     SANDBOX_IMAGE_UNAVAILABLE   exit 3
    │   ├── ImageCorrupt         SANDBOX_IMAGE_CORRUPT       exit 1
    │   ├── ImageLocked          SANDBOX_IMAGE_LOCKED        exit 1
    │   ├── DownloadFailed       SANDBOX_DOWNLOAD_FAILED     exit 3, retryable
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
    │   └── StoreError           BUNDLE_STORE_FAILED         exit 3, retryable
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
    │   ├── WorkspaceChanging    WORKSPACE_CHANGING          exit 4, retryable
    │   ├── CapabilityDenied     WORKSPACE_CAPABILITY_DENIED exit 3
    │   ├── CapabilitiesInvalid  WORKSPACE_CAPABILITIES_INVALID exit 2
    │   ├── CapabilitiesRefused  WORKSPACE_CAPABILITIES_REFUSED exit 3
    │   └── ToolError            WORKSPACE_TOOL_FAILED       exit 4
    │       ├── ToolUnknown      WORKSPACE_TOOL_UNKNOWN      exit 2
    │       ├── ArgumentsInvalid WORKSPACE_TOOL_ARGUMENTS_INVALID exit 2
    │       ├── ToolPathRefused  WORKSPACE_TOOL_PATH_REFUSED exit 2
    │       ├── FileAbsent       WORKSPACE_FILE_ABSENT       exit 2
    │       ├── FileKindRefused  WORKSPACE_FILE_KIND_REFUSED exit 2
    │       ├── FileTooLarge     WORKSPACE_FILE_TOO_LARGE    exit 2
    │       ├── EditRefused      WORKSPACE_EDIT_REFUSED      exit 1
    │       ├── PatchRefused     WORKSPACE_PATCH_REFUSED     exit 1
    │       ├── PatternRefused   WORKSPACE_PATTERN_REFUSED   exit 2
    │       ├── SearchTimedOut   WORKSPACE_SEARCH_TIMED_OUT  exit 4
    │       ├── CommandsUnavailable WORKSPACE_COMMANDS_UNAVAILABLE exit 3
    │       ├── McpUnavailable   WORKSPACE_MCP_UNAVAILABLE   exit 3
    │       ├── CheckFailed      WORKSPACE_CHECK_FAILED      exit 1
    │       └── ToolNudged       WORKSPACE_TOOL_NUDGED       exit 1
    ├── AgentError               RUNTIME_FAILED              exit 1
    │   ├── StrategyUnsupported  RUNTIME_STRATEGY_UNSUPPORTED exit 2
    │   ├── StrategyUnavailable  RUNTIME_STRATEGY_UNAVAILABLE exit 3
    │   ├── CapabilityUnsupported RUNTIME_CAPABILITY_UNSUPPORTED exit 3
    │   ├── RuntimeIncompatible  RUNTIME_COMPATIBILITY       exit 3
    │   ├── RuntimeStartFailed   RUNTIME_STARTUP             exit 3
    │   ├── TransportBroken      RUNTIME_TRANSPORT           exit 1, retryable
    │   ├── RuntimeProtocolError RUNTIME_PROTOCOL            exit 1
    │   ├── RuntimeTimedOut      RUNTIME_TIMEOUT             exit 1
    │   ├── RuntimeStalled       RUNTIME_STALL               exit 1, retryable
    │   ├── StreamDisconnected   RUNTIME_STREAM_DISCONNECT   exit 1, retryable
    │   ├── ListenerFailed       RUNTIME_LISTENER_FAILURE    exit 1
    │   ├── EnvPolicyRefused     RUNTIME_ENV_POLICY          exit 2
    │   ├── AuthFailed           RUNTIME_AUTH                exit 1
    │   ├── RateLimited          RUNTIME_RATE_LIMIT          exit 1, retryable
    │   ├── UsageLimited         RUNTIME_USAGE_LIMIT         exit 1, retryable
    │   ├── Overloaded           RUNTIME_OVERLOADED          exit 1, retryable
    │   ├── ContextExceeded      RUNTIME_CONTEXT_EXCEEDED    exit 1
    │   ├── ModelFailed          RUNTIME_MODEL_ERROR         exit 1
    │   ├── RuntimeCrashed       RUNTIME_CRASH               exit 1, retryable
    │   ├── TurnInterrupted      RUNTIME_INTERRUPTED         exit 1
    │   └── FunnelUnavailable    RUNTIME_FUNNEL_UNAVAILABLE  exit 3
    ├── LabError                 ATTEMPT_FAILED              exit 4
    │   ├── SuiteInvalid         SUITE_INVALID               exit 1
    │   ├── ImageAbsent          SUITE_IMAGE_ABSENT          exit 3
    │   ├── SuiteNotPassed       SUITE_NOT_PASSED            exit 1
    │   ├── EvidenceIncomplete   ATTEMPT_EVIDENCE_INCOMPLETE exit 1
    │   ├── AttemptUnknown       ATTEMPT_UNKNOWN             exit 2
    │   ├── RunUnknown           RUN_UNKNOWN                 exit 2
    │   ├── RunBusy              RUN_BUSY                    exit 4
    │   ├── SetupFailed          ATTEMPT_SETUP_FAILED        exit 1
    │   ├── WorkerLost           ATTEMPT_WORKER_LOST         exit 4, retryable
    │   └── LeaseLost            ATTEMPT_LEASE_LOST          exit 4
    └── DeliveryError            DELIVERY_FAILED             exit 4
        ├── SettingsInvalid      DELIVERY_SETTINGS_INVALID   exit 2
        ├── SourceRefused        DELIVERY_SOURCE_REFUSED     exit 2
        ├── DeliverySecretFound  DELIVERY_SECRET_FOUND       exit 1
        ├── DeliveryConflict     DELIVERY_CONFLICT           exit 1
        ├── DeliveryNotProven    DELIVERY_NOT_PROVEN         exit 1
        ├── RepositoryFailed     DELIVERY_REPOSITORY_FAILED  exit 4
        └── BackendError         DELIVERY_BACKEND            exit 4
            ├── BackendUnauthorized DELIVERY_UNAUTHORIZED       exit 3
            ├── BackendForbidden DELIVERY_FORBIDDEN          exit 3
            ├── BackendNotFound  DELIVERY_NOT_FOUND          exit 2
            ├── BackendConflict  DELIVERY_BACKEND_CONFLICT   exit 1
            ├── BackendTooLarge  DELIVERY_TOO_LARGE          exit 1
            ├── BackendRejected  DELIVERY_REJECTED           exit 1
            ├── BackendRateLimited DELIVERY_RATE_LIMITED       exit 3, retryable
            ├── BackendFailed    DELIVERY_BACKEND_FAILED     exit 3, retryable
            ├── BackendUnreachable DELIVERY_UNREACHABLE        exit 3, retryable
            └── BackendProtocol  DELIVERY_PROTOCOL           exit 4

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
    retryable: bool = False
    hints: ClassVar[tuple[str, ...]] = ()
    """What helps in every case of its kind, where the one at hand has no better."""

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
        self.fix_hints = tuple(fix_hints) or self.hints
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
    hints = ("check the path",)


class InternalError(ProofboxError):
    """A defect in proofbox. The message names it; the fix is a bug report."""

    code = "PROOFBOX_INTERNAL"


class DemoFailed(ProofboxError):
    """A step of the demo did not end as it should."""

    code = "PROOFBOX_DEMO_FAILED"
    exit_code = 1


class CorruptError(ProofboxError):
    """Stored bytes are not what their digest, chain or schema says."""

    code = "PROOFBOX_CORRUPT"
    exit_code = 1
    hints = ("take it from where it was made: what is there now is not what was recorded",)


class IoFailed(ProofboxError):
    """The machine would not read or write: a full disk, a closed stream, a place without permission."""

    code = "PROOFBOX_IO"
    exit_code = 3
    hints = ("check that the place is yours to write, and has room",)
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


class NotFrozen(SandboxError):
    """The box did not come to a halt in time. It runs on."""

    code = "SANDBOX_NOT_FROZEN"
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
    exit_code = 3
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
    hints = ("name a run's directory; proofbox bundle list shows those of an output directory",)


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
    exit_code = 3
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
    hints = ("name the file that proofbox promotion emit wrote",)


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
    hints = ("it is ready to use: proofbox workspace status",)


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


class CapabilityDenied(WorkspaceError):
    """A capability says no. `details["rule"]` is the rule that decided, `details["kind"]` what was asked for."""

    code = "WORKSPACE_CAPABILITY_DENIED"
    exit_code = 3


class CapabilitiesInvalid(WorkspaceError):
    """The capabilities can't be read: no preset has that name, or a rule that means nothing."""

    code = "WORKSPACE_CAPABILITIES_INVALID"
    exit_code = 2
    hints = ("docs/workspace-tools.md says what the file may hold",)


class CapabilitiesRefused(WorkspaceError):
    """The capabilities can't be enforced on commands by this box, so no command runs under them."""

    code = "WORKSPACE_CAPABILITIES_REFUSED"
    exit_code = 3


class ToolError(WorkspaceError):
    """Anything that keeps a tool from doing what it was called for."""

    code = "WORKSPACE_TOOL_FAILED"


class ToolUnknown(ToolError):
    """No tool has that name."""

    code = "WORKSPACE_TOOL_UNKNOWN"
    exit_code = 2


class ArgumentsInvalid(ToolError):
    """The arguments are not what the tool's schema says."""

    code = "WORKSPACE_TOOL_ARGUMENTS_INVALID"
    exit_code = 2


class ToolPathRefused(ToolError):
    """A path that leads outside the workspace, or can't be one."""

    code = "WORKSPACE_TOOL_PATH_REFUSED"
    exit_code = 2


class FileAbsent(ToolError):
    """There is no such file or directory in the workspace."""

    code = "WORKSPACE_FILE_ABSENT"
    exit_code = 2


class FileKindRefused(ToolError):
    """Something is there, and of another kind than the tool works on; or it can't be opened."""

    code = "WORKSPACE_FILE_KIND_REFUSED"
    exit_code = 2


class FileTooLarge(ToolError):
    """The file is larger than the tool works on."""

    code = "WORKSPACE_FILE_TOO_LARGE"
    exit_code = 2


class EditRefused(ToolError):
    """The text to replace is not there, or there more than once. Nothing was changed."""

    code = "WORKSPACE_EDIT_REFUSED"
    exit_code = 1


class PatchRefused(ToolError):
    """The patch can't be read, or does not fit the files. Nothing was changed."""

    code = "WORKSPACE_PATCH_REFUSED"
    exit_code = 1


class PatternRefused(ToolError):
    """The pattern is not in the dialect that every search understands."""

    code = "WORKSPACE_PATTERN_REFUSED"
    exit_code = 2


class SearchTimedOut(ToolError):
    """The search took longer than it may, and was ended."""

    code = "WORKSPACE_SEARCH_TIMED_OUT"


class CommandsUnavailable(ToolError):
    """This environment has no commands."""

    code = "WORKSPACE_COMMANDS_UNAVAILABLE"
    exit_code = 3


class McpUnavailable(ToolError):
    """The tools could be served over MCP, and its SDK is not installed here."""

    code = "WORKSPACE_MCP_UNAVAILABLE"
    exit_code = 3


class CheckFailed(ToolError):
    """The check command failed after a change, and the files were rolled back to the last good state."""

    code = "WORKSPACE_CHECK_FAILED"
    exit_code = 1


class ToolNudged(ToolError):
    """The tool was not run: the calls go in circles. The message says what to do instead."""

    code = "WORKSPACE_TOOL_NUDGED"
    exit_code = 1


class AgentError(ProofboxError):
    """Anything that goes wrong between a prompt and the end of an agent's turn.

    Whether trying again may help is mostly the class's to say; a failure that knows better says so itself. `details`
    has `retry_after` (seconds) or `resets_at` (seconds since the epoch) where they are known.
    """

    code = "RUNTIME_FAILED"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        op: str = "",
        fix_hints: Sequence[str] = (),
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message, op=op, fix_hints=fix_hints, details=details)
        if retryable is not None:
            self.retryable = retryable


class StrategyUnsupported(AgentError):
    """No runtime has that id."""

    code = "RUNTIME_STRATEGY_UNSUPPORTED"
    exit_code = 2


class StrategyUnavailable(AgentError):
    """Nothing in the chain could be used here. `details["chain"]` says of each why not."""

    code = "RUNTIME_STRATEGY_UNAVAILABLE"
    exit_code = 3


class CapabilityUnsupported(AgentError):
    """The runtime is there, and can't do what was asked."""

    code = "RUNTIME_CAPABILITY_UNSUPPORTED"
    exit_code = 3


class RuntimeIncompatible(AgentError):
    """The agent's program was found, and its version or protocol is not one we can drive."""

    code = "RUNTIME_COMPATIBILITY"
    exit_code = 3


class RuntimeStartFailed(AgentError):
    """The agent's program did not come up."""

    code = "RUNTIME_STARTUP"
    exit_code = 3


class TransportBroken(AgentError):
    """The stream to the agent's program broke."""

    code = "RUNTIME_TRANSPORT"
    retryable = True


class RuntimeProtocolError(AgentError):
    """The agent's program said something that its protocol does not allow, or refused a request."""

    code = "RUNTIME_PROTOCOL"


class RuntimeTimedOut(AgentError):
    """A request or a turn was over its deadline."""

    code = "RUNTIME_TIMEOUT"


class RuntimeStalled(AgentError):
    """A turn gave no sign of life for longer than it was allowed to."""

    code = "RUNTIME_STALL"
    retryable = True


class StreamDisconnected(AgentError):
    """The stream from the model ended before its answer was complete."""

    code = "RUNTIME_STREAM_DISCONNECT"
    retryable = True


class ListenerFailed(AgentError):
    """Whoever was to record the events failed to, so the record of the turn is not whole."""

    code = "RUNTIME_LISTENER_FAILURE"


class EnvPolicyRefused(AgentError):
    """A variable was asked for that must not enter a box."""

    code = "RUNTIME_ENV_POLICY"
    exit_code = 2


class AuthFailed(AgentError):
    """The model's endpoint refused the credential, or there was none."""

    code = "RUNTIME_AUTH"


class RateLimited(AgentError):
    """Too many requests for now."""

    code = "RUNTIME_RATE_LIMIT"
    retryable = True


class UsageLimited(AgentError):
    """What was paid for is used up, until the window's reset."""

    code = "RUNTIME_USAGE_LIMIT"
    retryable = True


class Overloaded(AgentError):
    """The model's endpoint, or the runtime itself, has too much to do."""

    code = "RUNTIME_OVERLOADED"
    retryable = True


class ContextExceeded(AgentError):
    """The conversation does not fit into the model any more."""

    code = "RUNTIME_CONTEXT_EXCEEDED"


class ModelFailed(AgentError):
    """The model's endpoint answered with an error of another kind. `details["status"]` is its HTTP status."""

    code = "RUNTIME_MODEL_ERROR"


class RuntimeCrashed(AgentError):
    """The agent's program ended under a turn."""

    code = "RUNTIME_CRASH"
    retryable = True


class TurnInterrupted(AgentError):
    """The turn was stopped before its end, by us or by the agent's own program."""

    code = "RUNTIME_INTERRUPTED"


class FunnelUnavailable(AgentError):
    """What only an agent in a box can ask its supervisor for was asked for elsewhere."""

    code = "RUNTIME_FUNNEL_UNAVAILABLE"
    exit_code = 3


class LabError(ProofboxError):
    """Anything that goes wrong with attempts and the runs they belong to, other than what an attempt records itself."""

    code = "ATTEMPT_FAILED"


class SuiteInvalid(LabError):
    """The suite's file can't be run. `details["problems"]` has each thing that is wrong, with its place."""

    code = "SUITE_INVALID"
    exit_code = 1
    hints = ("docs/lab.md says what a suite is; for editors: proofbox suite schema",)


class ImageAbsent(LabError):
    """A task runs in an image that the engine has not. The hints say what to pull or build."""

    code = "SUITE_IMAGE_ABSENT"
    exit_code = 3


class SuiteNotPassed(LabError):
    """The run is whole, and not every mission in it was verified as done."""

    code = "SUITE_NOT_PASSED"
    exit_code = 1


class EvidenceIncomplete(LabError):
    """The evidence of an attempt is not whole, or contradicts itself. `details["findings"]` names each way."""

    code = "ATTEMPT_EVIDENCE_INCOMPLETE"
    exit_code = 1


class AttemptUnknown(LabError):
    """No attempt has that id, or several begin with it."""

    code = "ATTEMPT_UNKNOWN"
    exit_code = 2


class RunUnknown(LabError):
    """There is no run at that place."""

    code = "RUN_UNKNOWN"
    exit_code = 2


class RunBusy(LabError):
    """Another process conducts that run."""

    code = "RUN_BUSY"


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


class SetupFailed(LabError):
    """A command of the mission's own setup failed: there was nothing for the agent to begin with."""

    code = "ATTEMPT_SETUP_FAILED"
    exit_code = 1


class WorkerLost(LabError):
    """Whoever ran the attempt died. What it had recorded until then is kept."""

    code = "ATTEMPT_WORKER_LOST"
    retryable = True


class LeaseLost(LabError):
    """This worker was taken for dead, and its attempt was given to another: what it has counts no more."""

    code = "ATTEMPT_LEASE_LOST"


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
