"""Between a tree of files and a repository or pull request that holds it."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class DeliveryError(ProofboxError):
    """Anything that goes wrong between a tree of files and a repository or pull request that holds it."""

    code = "DELIVERY_FAILED"
    hints = ("see what would be sent: proofbox deliver plan",)


class SettingsInvalid(DeliveryError):
    """The backend's address or key is missing, a placeholder, or not fit for use. Nothing was sent."""

    code = "DELIVERY_SETTINGS_INVALID"
    exit_code = 2
    hints = ("set the backend's address and key: see docs/delivery.md",)


class SourceRefused(DeliveryError):
    """The source can't be delivered: absent, an archive that is not safe, a name that no repository can hold."""

    code = "DELIVERY_SOURCE_REFUSED"
    exit_code = 2
    hints = ("check --source",)


class DeliverySecretFound(DeliveryError):
    """A file holds a secret that this process knows. Nothing was sent."""

    code = "DELIVERY_SECRET_FOUND"
    exit_code = 1
    hints = ("remove it from the files, and rotate it if they were shared",)


class DeliveryConflict(DeliveryError):
    """The repository has changes of its own where the source differs. `details["conflicts"]` names each."""

    code = "DELIVERY_CONFLICT"
    exit_code = 1
    hints = ("take their changes into the source, and prove that; see them: proofbox deliver plan",)


class DeliveryNotProven(DeliveryError):
    """The evidence does not support this delivery: not promotable, not signed, or of another tree."""

    code = "DELIVERY_NOT_PROVEN"
    exit_code = 1
    hints = ("deliver what was proven: --packet FILE --bundle PATH",)


class RepositoryFailed(DeliveryError):
    """The reference backend's git did not do what it was asked to."""

    code = "DELIVERY_REPOSITORY_FAILED"
    hints = ("see whether git works here",)


class BackendError(DeliveryError):
    """The backend did not do what it was asked to. `details` has `status`, `attempts` and what it `said`."""

    code = "DELIVERY_BACKEND"
    hints = ("look into the backend's log",)


class BackendUnauthorized(BackendError):
    """401: the backend does not know the key."""

    code = "DELIVERY_UNAUTHORIZED"
    exit_code = 3
    hints = ("check the key: the backend does not know it",)


class BackendForbidden(BackendError):
    """403: the key is known, and this user may not do that."""

    code = "DELIVERY_FORBIDDEN"
    exit_code = 3
    hints = ("ask for access, or act as the app's owner: --user-id ID",)


class BackendNotFound(BackendError):
    """404: the backend does not know an id of the request; `details["ids"]` has them."""

    code = "DELIVERY_NOT_FOUND"
    exit_code = 2
    hints = ("check the ids of the request",)


class BackendConflict(BackendError):
    """409: something else is there already, or the repository has moved."""

    code = "DELIVERY_BACKEND_CONFLICT"
    exit_code = 1
    hints = ("see what is there: proofbox deliver plan",)


class BackendTooLarge(BackendError):
    """413: the request is larger than the backend takes."""

    code = "DELIVERY_TOO_LARGE"
    exit_code = 1
    hints = ("deliver less, or raise the backend's limit",)


class BackendRejected(BackendError):
    """400 or 422: the backend understood the request and finds it wrong."""

    code = "DELIVERY_REJECTED"
    exit_code = 1
    hints = ("change the request as the backend says",)


class BackendRateLimited(BackendError):
    """429: too many requests; `details["retry_after"]` says for how long, where the backend does."""

    code = "DELIVERY_RATE_LIMITED"
    exit_code = 3
    retryable = True
    hints = ("wait as long as the backend says, then try again",)


class BackendFailed(BackendError):
    """5xx: the backend failed."""

    code = "DELIVERY_BACKEND_FAILED"
    exit_code = 3
    retryable = True
    hints = ("look into the backend's log, then try again",)


class BackendUnreachable(BackendError):
    """No connection, a connection that broke, or no answer in time."""

    code = "DELIVERY_UNREACHABLE"
    exit_code = 3
    retryable = True
    hints = ("check that the backend runs, and how long it takes",)


class BackendProtocol(BackendError):
    """What answered is not the backend's API: a redirect, an answer that is too large or not what was agreed."""

    code = "DELIVERY_PROTOCOL"
    hints = ("check the backend's address: what answers there is something else",)
