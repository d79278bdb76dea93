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
    │   ├── RunBusy              RUN_BUSY                    exit 4
    │   ├── RunInterrupted       RUN_INTERRUPTED             exit 130
    │   ├── NotFreed             RUN_NOT_FREED               exit 1
    │   ├── SetupFailed          ATTEMPT_SETUP_FAILED        exit 1
    │   ├── WorkerLost           ATTEMPT_WORKER_LOST         exit 4, retryable
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

# ruff: noqa: I001 (one import per area, in the order of the tree)

from __future__ import annotations

from proofbox.errors.base import (
    CorruptError as CorruptError,
    DemoFailed as DemoFailed,
    InternalError as InternalError,
    IoFailed as IoFailed,
    NotFoundError as NotFoundError,
    ProofboxError as ProofboxError,
    UsageError as UsageError,
    VersionUnknown as VersionUnknown,
    error_classes as error_classes,
)
from proofbox.errors.sandbox import (
    ChecksFailed as ChecksFailed,
    CommandNotExecutable as CommandNotExecutable,
    CommandNotFound as CommandNotFound,
    ConsentRequired as ConsentRequired,
    DownloadFailed as DownloadFailed,
    EngineRefused as EngineRefused,
    IdmapUnsupported as IdmapUnsupported,
    ImageCorrupt as ImageCorrupt,
    ImageLocked as ImageLocked,
    ImageUnavailable as ImageUnavailable,
    ImageUnknown as ImageUnknown,
    NotFrozen as NotFrozen,
    PathRefused as PathRefused,
    PolicyRefused as PolicyRefused,
    ProtocolError as ProtocolError,
    ProviderUnavailable as ProviderUnavailable,
    ProviderUnknown as ProviderUnknown,
    ProvisionFailed as ProvisionFailed,
    RequestInvalid as RequestInvalid,
    SandboxError as SandboxError,
    SandboxLost as SandboxLost,
    SessionUnknown as SessionUnknown,
    StartFailed as StartFailed,
)
from proofbox.errors.evidence import (
    BundleArtifactAbsent as BundleArtifactAbsent,
    BundleCorrupt as BundleCorrupt,
    BundleError as BundleError,
    BundleExists as BundleExists,
    BundleInProgress as BundleInProgress,
    BundleLocked as BundleLocked,
    BundleNotFound as BundleNotFound,
    BundlePathRefused as BundlePathRefused,
    BundleRepairRefused as BundleRepairRefused,
    BundleSchemaUnknown as BundleSchemaUnknown,
    BundleSecretFound as BundleSecretFound,
    BundleTooLarge as BundleTooLarge,
    KeyInvalid as KeyInvalid,
    PacketInvalid as PacketInvalid,
    PolicyInvalid as PolicyInvalid,
    PromotionError as PromotionError,
    PromotionRefused as PromotionRefused,
    StoreConflict as StoreConflict,
    StoreError as StoreError,
    StoreTooLarge as StoreTooLarge,
    StoreUnavailable as StoreUnavailable,
    StoreUntrusted as StoreUntrusted,
)
from proofbox.errors.workspace import (
    ArgumentsInvalid as ArgumentsInvalid,
    CapabilitiesInvalid as CapabilitiesInvalid,
    CapabilitiesRefused as CapabilitiesRefused,
    CapabilityDenied as CapabilityDenied,
    CheckFailed as CheckFailed,
    CommandsUnavailable as CommandsUnavailable,
    EditRefused as EditRefused,
    FileAbsent as FileAbsent,
    FileKindRefused as FileKindRefused,
    FileTooLarge as FileTooLarge,
    McpUnavailable as McpUnavailable,
    PatchRefused as PatchRefused,
    PatternRefused as PatternRefused,
    RollbackUnfinished as RollbackUnfinished,
    SearchTimedOut as SearchTimedOut,
    SnapshotUnknown as SnapshotUnknown,
    ToolError as ToolError,
    ToolNudged as ToolNudged,
    ToolPathRefused as ToolPathRefused,
    ToolUnknown as ToolUnknown,
    WorkspaceChanging as WorkspaceChanging,
    WorkspaceCorrupt as WorkspaceCorrupt,
    WorkspaceError as WorkspaceError,
    WorkspaceExists as WorkspaceExists,
    WorkspacePathRefused as WorkspacePathRefused,
    WorkspaceReplaced as WorkspaceReplaced,
    WorkspaceUnknown as WorkspaceUnknown,
)
from proofbox.errors.agents import (
    AgentError as AgentError,
    AuthFailed as AuthFailed,
    CapabilityUnsupported as CapabilityUnsupported,
    ContextExceeded as ContextExceeded,
    EnvPolicyRefused as EnvPolicyRefused,
    FunnelUnavailable as FunnelUnavailable,
    ListenerFailed as ListenerFailed,
    ModelFailed as ModelFailed,
    Overloaded as Overloaded,
    RateLimited as RateLimited,
    RuntimeChecksFailed as RuntimeChecksFailed,
    RuntimeCrashed as RuntimeCrashed,
    RuntimeIncompatible as RuntimeIncompatible,
    RuntimeProtocolError as RuntimeProtocolError,
    RuntimeStalled as RuntimeStalled,
    RuntimeStartFailed as RuntimeStartFailed,
    RuntimeTimedOut as RuntimeTimedOut,
    StrategyUnavailable as StrategyUnavailable,
    StrategyUnsupported as StrategyUnsupported,
    StreamDisconnected as StreamDisconnected,
    TransportBroken as TransportBroken,
    TurnInterrupted as TurnInterrupted,
    UsageLimited as UsageLimited,
)
from proofbox.errors.lab import (
    AttemptUnknown as AttemptUnknown,
    CampaignChanged as CampaignChanged,
    CampaignExists as CampaignExists,
    CampaignGatesFailed as CampaignGatesFailed,
    CampaignIncomplete as CampaignIncomplete,
    CampaignInvalid as CampaignInvalid,
    CampaignNotPublishable as CampaignNotPublishable,
    CampaignNotReady as CampaignNotReady,
    CampaignRegressed as CampaignRegressed,
    CampaignUnknown as CampaignUnknown,
    EvidenceIncomplete as EvidenceIncomplete,
    ImageAbsent as ImageAbsent,
    LabError as LabError,
    LeaseLost as LeaseLost,
    NotFreed as NotFreed,
    PlanUntrusted as PlanUntrusted,
    RunBusy as RunBusy,
    RunInterrupted as RunInterrupted,
    RunUnknown as RunUnknown,
    RunsDiffer as RunsDiffer,
    SetupFailed as SetupFailed,
    StepDiffOmitted as StepDiffOmitted,
    StepFilesGone as StepFilesGone,
    SuiteInvalid as SuiteInvalid,
    SuiteNotPassed as SuiteNotPassed,
    WorkerLost as WorkerLost,
)
from proofbox.errors.probes import (
    PlanInvalid as PlanInvalid,
    PlanMismatch as PlanMismatch,
    PlanUnknown as PlanUnknown,
    ProbeDriverFailed as ProbeDriverFailed,
    ProbeError as ProbeError,
)
from proofbox.errors.delivery import (
    BackendConflict as BackendConflict,
    BackendError as BackendError,
    BackendFailed as BackendFailed,
    BackendForbidden as BackendForbidden,
    BackendNotFound as BackendNotFound,
    BackendProtocol as BackendProtocol,
    BackendRateLimited as BackendRateLimited,
    BackendRejected as BackendRejected,
    BackendTooLarge as BackendTooLarge,
    BackendUnauthorized as BackendUnauthorized,
    BackendUnreachable as BackendUnreachable,
    DeliveryConflict as DeliveryConflict,
    DeliveryError as DeliveryError,
    DeliveryNotProven as DeliveryNotProven,
    DeliverySecretFound as DeliverySecretFound,
    RepositoryFailed as RepositoryFailed,
    SettingsInvalid as SettingsInvalid,
    SourceRefused as SourceRefused,
)
