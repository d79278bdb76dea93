"""Errors of bundles, bundle stores and promotion packets."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class BundleError(ProofboxError):
    """An operation on a bundle failed."""

    code = "BUNDLE_FAILED"
    hints = ("inspect the bundle: proofbox bundle show PATH",)


class BundleNotFound(BundleError):
    """The path has no bundle or no committed run."""

    code = "BUNDLE_NOT_FOUND"
    exit_code = 2
    hints = ("give a run's directory, or an output directory with a committed run",)


class BundleInProgress(BundleError):
    """The bundle is not committed: its run is still writing, or died."""

    code = "BUNDLE_IN_PROGRESS"
    exit_code = 1
    hints = ("wait for its run to finish, or run it again",)


class BundleCorrupt(BundleError):
    """The bundle does not match its index. `details["findings"]` lists the differences."""

    code = "BUNDLE_CORRUPT"
    exit_code = 1
    hints = ("see every difference: proofbox verify PATH",)


class BundleSchemaUnknown(BundleError):
    """A document in the bundle has an unsupported schema version."""

    code = "BUNDLE_SCHEMA_UNKNOWN"
    exit_code = 1
    hints = ("read it with the version of proofbox that wrote it, or a newer version",)


class BundleArtifactAbsent(BundleError):
    """The bundle has no artifact of that name."""

    code = "BUNDLE_ARTIFACT_ABSENT"
    exit_code = 2
    hints = ("list its artifacts: proofbox bundle show PATH",)


class BundlePathRefused(BundleError):
    """The artifact name is invalid: absolute, escaping, reserved, or not portable between file systems."""

    code = "BUNDLE_PATH_REFUSED"
    exit_code = 2
    hints = ("use a relative path with forward slashes, such as logs/events.jsonl",)


class BundleTooLarge(BundleError):
    """A document of the bundle exceeds the size limit for its kind."""

    code = "BUNDLE_TOO_LARGE"
    exit_code = 1
    hints = ("check the program that wrote it: documents of this kind are much smaller",)


class BundleExists(BundleError):
    """A run or an artifact of that name already exists. Evidence is never overwritten."""

    code = "BUNDLE_EXISTS"
    exit_code = 2
    hints = ("choose another name: evidence is never overwritten",)


class BundleLocked(BundleError):
    """Another process holds the lock of the output directory. `details["holder"]` identifies it."""

    code = "BUNDLE_LOCKED"
    exit_code = 3
    retryable = True
    hints = ("wait for that process, or use another output directory",)


class BundleSecretFound(BundleError):
    """An artifact contains a secret known to this process, so the bundle was not committed."""

    code = "BUNDLE_SECRET_FOUND"
    exit_code = 1
    hints = ("keep the secret out of the artifacts, and run it again",)


class BundleRepairRefused(BundleError):
    """The repair would need to invent data or follow a link, so the bundle was left unchanged."""

    code = "BUNDLE_REPAIR_REFUSED"
    exit_code = 1
    hints = ("restore it from a copy, or run it again",)


class StoreError(BundleError):
    """The bundle store failed or returned an unexpected response."""

    code = "BUNDLE_STORE_FAILED"
    exit_code = 3
    retryable = True
    hints = ("check the connection to the store and its credentials",)


class StoreConflict(StoreError):
    """The key already holds another object, or the object changed after it was read."""

    code = "BUNDLE_STORE_CONFLICT"
    exit_code = 1
    retryable = False
    hints = ("inspect the existing object: another process wrote it",)


class StoreTooLarge(StoreError):
    """An object in the store exceeds the size limit and was not read."""

    code = "BUNDLE_STORE_TOO_LARGE"
    exit_code = 1
    retryable = False
    hints = ("check the program that wrote to the store",)


class StoreUntrusted(StoreError):
    """The store does not support create-only writes or compare-and-swap, so nothing is written to it."""

    code = "BUNDLE_STORE_UNTRUSTED"
    exit_code = 3
    retryable = False
    hints = ("use a store with conditional writes (If-None-Match, If-Match), or a directory",)


class StoreUnavailable(StoreError):
    """The package that this kind of store requires is not installed."""

    code = "BUNDLE_STORE_UNAVAILABLE"
    exit_code = 3
    retryable = False
    hints = ("pip install 'proofbox[s3]'",)


class PromotionError(ProofboxError):
    """An operation on a promotion packet failed."""

    code = "PROMOTION_FAILED"
    hints = ("check the packet and its bundle: proofbox promotion verify PACKET",)


class PromotionRefused(PromotionError):
    """The bundle can't be promoted. `details["reasons"]` lists the policy rules that failed."""

    code = "PROMOTION_NOT_PROMOTABLE"
    exit_code = 1
    hints = ("see which rules failed: proofbox promotion emit PATH --json",)


class PacketInvalid(PromotionError):
    """The file is not a promotion packet, or its version is unsupported."""

    code = "PROMOTION_PACKET_INVALID"
    exit_code = 1
    hints = ("create a new packet: proofbox promotion emit PATH",)


class PolicyInvalid(PromotionError):
    """No policy has that name, or the policy file is invalid."""

    code = "PROMOTION_POLICY_INVALID"
    exit_code = 2
    hints = ("list the policies: proofbox promotion emit --help",)


class KeyInvalid(PromotionError):
    """The key can't be used: missing, of the wrong type, or a private key that other users can read."""

    code = "PROMOTION_KEY_INVALID"
    exit_code = 2
    hints = ("create a key pair: proofbox key new",)
