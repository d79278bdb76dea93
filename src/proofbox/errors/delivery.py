"""Errors of delivering a tree of files to a repository or pull request."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class DeliveryError(ProofboxError):
    """A delivery to a repository or pull request failed."""

    code = "DELIVERY_FAILED"
    hints = ("preview the delivery: proofbox deliver plan",)


class SettingsInvalid(DeliveryError):
    """The backend's address or key is missing, a placeholder, or malformed. Nothing was sent."""

    code = "DELIVERY_SETTINGS_INVALID"
    exit_code = 2
    hints = ("set the backend's address and key: see docs/delivery.md",)


class SourceRefused(DeliveryError):
    """The source can't be delivered: it is missing, an unsafe archive, or has a name that git can't store."""

    code = "DELIVERY_SOURCE_REFUSED"
    exit_code = 2
    hints = ("check --source",)


class DeliverySecretFound(DeliveryError):
    """A file contains a secret known to this process. Nothing was sent."""

    code = "DELIVERY_SECRET_FOUND"
    exit_code = 1
    hints = ("remove the secret from the files, and rotate it if they were shared",)


class DeliveryConflict(DeliveryError):
    """The repository changed files that the source changes too. `details["conflicts"]` lists them."""

    code = "DELIVERY_CONFLICT"
    exit_code = 1
    hints = ("merge the repository's changes into the source and verify it again; list them: proofbox deliver plan",)


class DeliveryNotProven(DeliveryError):
    """The evidence does not support this delivery: not promotable, not signed, or for a different tree."""

    code = "DELIVERY_NOT_PROVEN"
    exit_code = 1
    hints = ("deliver a tree that has evidence: --packet FILE --bundle PATH",)


class RepositoryFailed(DeliveryError):
    """A git command of the reference backend failed."""

    code = "DELIVERY_REPOSITORY_FAILED"
    hints = ("check that git works: git --version",)


class BackendError(DeliveryError):
    """A backend request failed. `details` has `status`, `attempts` and `said`, the backend's message."""

    code = "DELIVERY_BACKEND"
    hints = ("check the backend's log",)


class BackendUnauthorized(BackendError):
    """401: the backend rejected the key."""

    code = "DELIVERY_UNAUTHORIZED"
    exit_code = 3
    hints = ("check the key",)


class BackendForbidden(BackendError):
    """403: the key is valid, but this user is not permitted to do that."""

    code = "DELIVERY_FORBIDDEN"
    exit_code = 3
    hints = ("ask for access, or act as the app's owner: --user-id ID",)


class BackendNotFound(BackendError):
    """404: the backend does not know an id in the request; `details["ids"]` lists the ids sent."""

    code = "DELIVERY_NOT_FOUND"
    exit_code = 2
    hints = ("check the ids in the request",)


class BackendConflict(BackendError):
    """409: the resource already exists, or the repository has changed."""

    code = "DELIVERY_BACKEND_CONFLICT"
    exit_code = 1
    hints = ("compare with the repository: proofbox deliver plan",)


class BackendTooLarge(BackendError):
    """413: the request is larger than the backend accepts."""

    code = "DELIVERY_TOO_LARGE"
    exit_code = 1
    hints = ("deliver fewer or smaller files, or raise the backend's limit",)


class BackendRejected(BackendError):
    """400 or 422: the backend rejected the request as invalid."""

    code = "DELIVERY_REJECTED"
    exit_code = 1
    hints = ("correct the request as the backend's message says",)


class BackendRateLimited(BackendError):
    """429: too many requests; `details["retry_after"]` is the wait in seconds, if the backend gave one."""

    code = "DELIVERY_RATE_LIMITED"
    exit_code = 3
    retryable = True
    hints = ("wait for the time that the backend gave, then try again",)


class BackendFailed(BackendError):
    """5xx: the backend failed."""

    code = "DELIVERY_BACKEND_FAILED"
    exit_code = 3
    retryable = True
    hints = ("check the backend's log, then try again",)


class BackendUnreachable(BackendError):
    """The connection failed, broke, or timed out."""

    code = "DELIVERY_UNREACHABLE"
    exit_code = 3
    retryable = True
    hints = ("check that the backend is running and responds in time",)


class BackendProtocol(BackendError):
    """The response did not come from the backend's API: a redirect, too large, or malformed."""

    code = "DELIVERY_PROTOCOL"
    hints = ("check the backend's address: another service answers there",)
