"""Bundles, the stores they are copied to, and the packets that say whether one may be relied on."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class BundleError(ProofboxError):
    """Anything that goes wrong with a bundle of evidence."""

    code = "BUNDLE_FAILED"
    hints = ("see what is there: proofbox bundle show PATH",)


class BundleNotFound(BundleError):
    """There is no bundle at that place, or no run that has been committed."""

    code = "BUNDLE_NOT_FOUND"
    exit_code = 2
    hints = ("name a run's directory, or an output directory with a committed run",)


class BundleInProgress(BundleError):
    """The bundle was never committed: its run is still writing, or died."""

    code = "BUNDLE_IN_PROGRESS"
    exit_code = 1
    hints = ("wait for its run, or run it again",)


class BundleCorrupt(BundleError):
    """The bundle is not what its index says. `details["findings"]` names each difference."""

    code = "BUNDLE_CORRUPT"
    exit_code = 1
    hints = ("see every difference: proofbox verify PATH",)


class BundleSchemaUnknown(BundleError):
    """A document of the bundle has a schema version that this reader does not know."""

    code = "BUNDLE_SCHEMA_UNKNOWN"
    exit_code = 1
    hints = ("read it with the version of proofbox that wrote it, or a newer one",)


class BundleArtifactAbsent(BundleError):
    """The bundle is good, and has no artifact of that name."""

    code = "BUNDLE_ARTIFACT_ABSENT"
    exit_code = 2
    hints = ("list what it has: proofbox bundle show PATH",)


class BundlePathRefused(BundleError):
    """A name that can't be an artifact's: absolute, escaping, reserved, or not fit for every file system."""

    code = "BUNDLE_PATH_REFUSED"
    exit_code = 2
    hints = ("give a relative path with forward slashes, such as logs/events.jsonl",)


class BundleTooLarge(BundleError):
    """A document of the bundle has more bytes than are read of its kind, or would have."""

    code = "BUNDLE_TOO_LARGE"
    exit_code = 1
    hints = ("look at who wrote it: no document of its kind needs that much",)


class BundleExists(BundleError):
    """A run or an artifact of that name is already there. Evidence is never overwritten."""

    code = "BUNDLE_EXISTS"
    exit_code = 2
    hints = ("choose another name: evidence is never overwritten",)


class BundleLocked(BundleError):
    """Another process holds the lock of the output directory. `details["holder"]` says which."""

    code = "BUNDLE_LOCKED"
    exit_code = 3
    retryable = True
    hints = ("wait for the holder, or use an output directory of its own",)


class BundleSecretFound(BundleError):
    """An artifact holds a secret that this process knows, so the bundle was not committed."""

    code = "BUNDLE_SECRET_FOUND"
    exit_code = 1
    hints = ("keep the secret out of what is written, and run it again",)


class BundleRepairRefused(BundleError):
    """Repairing would have to invent or follow something: the bundle was left as it is."""

    code = "BUNDLE_REPAIR_REFUSED"
    exit_code = 1
    hints = ("restore it from a copy, or run it again",)


class StoreError(BundleError):
    """The store of bundles did not answer as it should."""

    code = "BUNDLE_STORE_FAILED"
    exit_code = 3
    retryable = True
    hints = ("check that the store can be reached, and your credentials for it",)


class StoreConflict(StoreError):
    """Something else is already at that key, or has changed since it was read."""

    code = "BUNDLE_STORE_CONFLICT"
    exit_code = 1
    retryable = False
    hints = ("look at what is there: another has written it",)


class StoreTooLarge(StoreError):
    """An object of the store has more bytes than it may have, so it is not read."""

    code = "BUNDLE_STORE_TOO_LARGE"
    exit_code = 1
    retryable = False
    hints = ("look at who wrote to the store",)


class StoreUntrusted(StoreError):
    """The store does not honour create-only or compare-and-swap, so nothing is written to it."""

    code = "BUNDLE_STORE_UNTRUSTED"
    exit_code = 3
    retryable = False
    hints = ("use a store with conditional writes (If-None-Match, If-Match), or a directory",)


class StoreUnavailable(StoreError):
    """The kind of store is known, and what it needs is not installed here."""

    code = "BUNDLE_STORE_UNAVAILABLE"
    exit_code = 3
    retryable = False
    hints = ("pip install 'proofbox[s3]'",)


class PromotionError(ProofboxError):
    """Anything that goes wrong between a bundle and a packet others rely on."""

    code = "PROMOTION_FAILED"
    hints = ("check the packet and its bundle: proofbox promotion verify PACKET",)


class PromotionRefused(PromotionError):
    """The bundle may not be relied on. `details["reasons"]` names every rule that did not hold."""

    code = "PROMOTION_NOT_PROMOTABLE"
    exit_code = 1
    hints = ("see which rules did not hold: proofbox promotion emit PATH --json",)


class PacketInvalid(PromotionError):
    """The file is no promotion packet, or one of a version this reader does not know."""

    code = "PROMOTION_PACKET_INVALID"
    exit_code = 1
    hints = ("make it anew: proofbox promotion emit PATH",)


class PolicyInvalid(PromotionError):
    """No policy has that name, or the policy's own data make no sense."""

    code = "PROMOTION_POLICY_INVALID"
    exit_code = 2
    hints = ("see the policies: proofbox promotion emit --help",)


class KeyInvalid(PromotionError):
    """The key can't be used: absent, of another kind, or a private key that others may read."""

    code = "PROMOTION_KEY_INVALID"
    exit_code = 2
    hints = ("make a new pair: proofbox key new",)
