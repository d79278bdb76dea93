"""All errors that proofbox raises deliberately, in one tree.

    ProofboxError
    ├── UsageError               PROOFBOX_USAGE              exit 2
    ├── NotFoundError            PROOFBOX_NOT_FOUND          exit 2
    ├── InternalError            PROOFBOX_INTERNAL           exit 4
    ├── DemoFailed               PROOFBOX_DEMO_FAILED        exit 1
    ├── CorruptError             PROOFBOX_CORRUPT            exit 1
    │   └── VersionUnknown       PROOFBOX_VERSION_UNKNOWN    exit 1
    ├── IoFailed                 PROOFBOX_IO                 exit 3, retryable
    ├── SandboxError             SANDBOX_FAILED              exit 4
    │   ├── ProviderUnknown      SANDBOX_PROVIDER_UNKNOWN    exit 2
    │   ├── ProviderUnavailable  SANDBOX_UNAVAILABLE         exit 3
    │   ├── PolicyRefused        SANDBOX_POLICY_REFUSED      exit 3
    │   ├── ConsentRequired      SANDBOX_CONSENT_REQUIRED    exit 3
    │   ├── PathRefused          SANDBOX_PATH_REFUSED        exit 2
    │   ├── IdmapUnsupported     SANDBOX_IDMAP_UNSUPPORTED   exit 3
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
    │   ├── ImageBuildFailed     SANDBOX_IMAGE_BUILD_FAILED  exit 3
    │   ├── ImageCorrupt         SANDBOX_IMAGE_CORRUPT       exit 1
    │   ├── ImageLocked          SANDBOX_IMAGE_LOCKED        exit 1
    │   ├── DownloadFailed       SANDBOX_DOWNLOAD_FAILED     exit 3, retryable
    │   ├── ProvisionFailed      SANDBOX_PROVISION_FAILED    exit 3
    │   └── ChecksFailed         SANDBOX_CHECKS_FAILED       exit 1
    ├── BundleError              BUNDLE_FAILED               exit 4
    │   ├── BundleNotFound       BUNDLE_NOT_FOUND            exit 2
    │   ├── BundleInProgress     BUNDLE_IN_PROGRESS          exit 1
    │   ├── BundleCorrupt        BUNDLE_CORRUPT              exit 1
    │   ├── BundleSchemaUnknown  BUNDLE_SCHEMA_UNKNOWN       exit 1
    │   ├── BundleArtifactAbsent BUNDLE_ARTIFACT_ABSENT      exit 2
    │   ├── BundlePathRefused    BUNDLE_PATH_REFUSED         exit 2
    │   ├── BundleTooLarge       BUNDLE_TOO_LARGE            exit 1
    │   ├── BundleExists         BUNDLE_EXISTS               exit 2
    │   ├── BundleLocked         BUNDLE_LOCKED               exit 3, retryable
    │   ├── BundleSecretFound    BUNDLE_SECRET_FOUND         exit 1
    │   ├── BundleRepairRefused  BUNDLE_REPAIR_REFUSED       exit 1
    │   └── StoreError           BUNDLE_STORE_FAILED         exit 3, retryable
    │       ├── StoreConflict    BUNDLE_STORE_CONFLICT       exit 1
    │       ├── StoreTooLarge    BUNDLE_STORE_TOO_LARGE      exit 1
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
    │   ├── WorkspaceReplaced    WORKSPACE_REPLACED          exit 2
    │   ├── WorkspacePathRefused WORKSPACE_PATH_REFUSED      exit 2
    │   ├── SnapshotUnknown      WORKSPACE_SNAPSHOT_UNKNOWN  exit 2
    │   ├── WorkspaceCorrupt     WORKSPACE_CORRUPT           exit 1
    │   ├── WorkspaceChanging    WORKSPACE_CHANGING          exit 4, retryable
    │   ├── RollbackUnfinished   WORKSPACE_ROLLBACK_UNFINISHED exit 4, retryable
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
    │   ├── FunnelUnavailable    RUNTIME_FUNNEL_UNAVAILABLE  exit 3
    │   └── RuntimeChecksFailed  RUNTIME_CHECKS_FAILED       exit 1
    ├── LabError                 ATTEMPT_FAILED              exit 4
    │   ├── SuiteInvalid         SUITE_INVALID               exit 1
    │   ├── ImageAbsent          SUITE_IMAGE_ABSENT          exit 3
    │   ├── SuiteNotPassed       SUITE_NOT_PASSED            exit 1
    │   ├── EvidenceIncomplete   ATTEMPT_EVIDENCE_INCOMPLETE exit 1
    │   ├── AttemptUnknown       ATTEMPT_UNKNOWN             exit 2
    │   ├── StepFilesGone        ATTEMPT_FILES_GONE          exit 3
    │   ├── StepDiffOmitted      ATTEMPT_DIFF_OMITTED        exit 3
    │   ├── RunUnknown           RUN_UNKNOWN                 exit 2
    │   ├── PlanUntrusted        RUN_PLAN_UNTRUSTED          exit 3
    │   ├── RunMoved             RUN_MOVED                   exit 2
    │   ├── RunBusy              RUN_BUSY                    exit 4
    │   ├── RunInterrupted       RUN_INTERRUPTED             exit 130
    │   ├── NotFreed             RUN_NOT_FREED               exit 1
    │   ├── SetupFailed          ATTEMPT_SETUP_FAILED        exit 1
    │   ├── CleanupFailed        ATTEMPT_CLEANUP_FAILED      exit 1
    │   ├── CleanupTimedOut      ATTEMPT_CLEANUP_TIMEOUT     exit 1
    │   ├── WorkerLost           ATTEMPT_WORKER_LOST         exit 4, retryable
    │   │   ├── NodeLost         ATTEMPT_NODE_LOST           exit 4, retryable
    │   │   ├── NodePreempted    ATTEMPT_NODE_PREEMPTED      exit 4, retryable
    │   │   ├── WorkerOutOfMemory ATTEMPT_WORKER_OOM         exit 4, retryable
    │   │   └── ObjectStoreFull  ATTEMPT_OBJECT_STORE_FULL   exit 4, retryable
    │   ├── EngineUnavailable    ENGINE_UNAVAILABLE          exit 3
    │   ├── EngineLost           ENGINE_LOST                 exit 4, retryable
    │   ├── LeaseLost            ATTEMPT_LEASE_LOST          exit 4
    │   ├── RunsDiffer           RUN_PARITY                  exit 1
    │   ├── CampaignInvalid      CAMPAIGN_INVALID            exit 1
    │   ├── CampaignUnknown      CAMPAIGN_UNKNOWN            exit 2
    │   ├── CampaignExists       CAMPAIGN_EXISTS             exit 2
    │   ├── CampaignChanged      CAMPAIGN_CHANGED            exit 1
    │   ├── CampaignNotReady     CAMPAIGN_NOT_READY          exit 3
    │   ├── CampaignGatesFailed  CAMPAIGN_GATES_FAILED       exit 1
    │   ├── CampaignIncomplete   CAMPAIGN_INCOMPLETE         exit 1
    │   ├── CampaignNotPublishable CAMPAIGN_NOT_PUBLISHABLE    exit 1
    │   └── CampaignRegressed    CAMPAIGN_REGRESSED          exit 1
    ├── ProbeError               PLAN_FAILED                 exit 4
    │   ├── PlanInvalid          PLAN_INVALID                exit 1
    │   ├── PlanUnknown          PLAN_UNKNOWN                exit 2
    │   ├── ProbeDriverFailed    PLAN_DRIVER_FAILED          exit 3
    │   └── PlanMismatch         PLAN_MISMATCH               exit 1
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

A class defines its code, its exit code, whether a retry may help (`retryable`), and default `hints`. An instance says
what failed (`message`), in which operation (`op`) and how to fix it (`fix_hints`, which replace the default hints), and
carries the facts as JSON-ready data (`details`), never only in the prose. Each area has one module. The package imports
only the standard library, so the auditor's tool can use it.

Writing style: a message is a clause without a final full stop that begins with a lower-case letter (or with a name, a
flag or a value), because it is printed after `proofbox: `. A hint is one line in the same style that says what to do. A
command is a hint by itself or follows a colon, exactly as it is typed (`create one: proofbox init`); within a sentence
it is in backticks.

Exit codes: 0 ok · 1 evaluated, and the answer is no · 2 usage · 3 known but not available here · 4 internal. `exec` and
`session exec` return the command's own exit code and report every failure of proofbox itself as 125, except for 126 and
127, which have their usual shell meaning.
"""

from __future__ import annotations

import sys
from importlib import import_module

from proofbox.errors.base import CorruptError as CorruptError
from proofbox.errors.base import DemoFailed as DemoFailed
from proofbox.errors.base import InternalError as InternalError
from proofbox.errors.base import IoFailed as IoFailed
from proofbox.errors.base import NotFoundError as NotFoundError
from proofbox.errors.base import ProofboxError as ProofboxError
from proofbox.errors.base import UsageError as UsageError
from proofbox.errors.base import VersionUnknown as VersionUnknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from proofbox.errors.agents import *  # noqa: F403
    from proofbox.errors.delivery import *  # noqa: F403
    from proofbox.errors.evidence import *  # noqa: F403
    from proofbox.errors.lab import *  # noqa: F403
    from proofbox.errors.probes import *  # noqa: F403
    from proofbox.errors.sandbox import *  # noqa: F403
    from proofbox.errors.workspace import *  # noqa: F403

AREAS = ("sandbox", "evidence", "workspace", "agents", "lab", "probes", "delivery")
"""The modules of the areas, in the order of the tree. A short command needs the errors of one or two of them."""


def error_classes(root: type[ProofboxError] = ProofboxError) -> Iterator[type[ProofboxError]]:
    """Yield every class of the tree, parents first, in order of definition."""
    order = [import_module(f"{__name__}.{area}").__name__ for area in ("base", *AREAS)]
    yield root
    for child in sorted(root.__subclasses__(), key=lambda kind: [*order, kind.__module__].index(kind.__module__)):
        yield from error_classes(child)


if not TYPE_CHECKING:  # type checkers know the names from the imports above, and report unknown ones

    def __getattr__(name: str) -> type[ProofboxError]:
        """Load the module of an error on its first use. Modules that are loaded already are searched first."""
        areas = sorted(AREAS, key=lambda area: f"{__name__}.{area}" not in sys.modules)
        for area in () if name.startswith("_") else areas:
            found = vars(import_module(f"{__name__}.{area}")).get(name)
            if found is not None:
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
