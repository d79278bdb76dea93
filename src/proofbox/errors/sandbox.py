"""Errors of sandboxes, from the request to the command's result."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class SandboxError(ProofboxError):
    """A sandbox request failed.

    `details["diagnostics"]`, if present, says for each provider considered whether it is available, and why not.
    """

    code = "SANDBOX_FAILED"
    hints = ("check the sandbox: proofbox doctor",)


class ProviderUnknown(SandboxError):
    """No provider has that name."""

    code = "SANDBOX_PROVIDER_UNKNOWN"
    exit_code = 2
    hints = ("list the providers: proofbox probe",)


class ProviderUnavailable(SandboxError):
    """The provider failed its availability test on this machine."""

    code = "SANDBOX_UNAVAILABLE"
    exit_code = 3
    hints = ("see what is missing: proofbox doctor",)


class PolicyRefused(SandboxError):
    """The provider can't enforce the requested policy on this machine. Nothing was started."""

    code = "SANDBOX_POLICY_REFUSED"
    exit_code = 3
    hints = ("omit the request, or use a provider that can enforce it: --provider NAME",)


class ConsentRequired(SandboxError):
    """A suite or task requests more than your settings allow a box, and you have not consented to it.

    `details["widenings"]` lists each request. Nothing was started, and no file outside its directory was read.
    """

    code = "SANDBOX_CONSENT_REQUIRED"
    exit_code = 3
    hints = ("read the listed requests; if you agree, repeat the command with --trust",)


class PathRefused(SandboxError):
    """A project, cwd or mount does not exist, escapes its root, is not visible inside the box, or is too large."""

    code = "SANDBOX_PATH_REFUSED"
    exit_code = 2
    hints = ("use an existing directory that is inside the project or mounted",)


class IdmapUnsupported(SandboxError):
    """Root owns a directory of the box, and its file system does not support idmapped mounts. Nothing was started.

    A box never runs with root's ids: it accesses root's files through an idmapped mount.
    """

    code = "SANDBOX_IDMAP_UNSUPPORTED"
    exit_code = 3
    hints = ("change the owner to an ordinary user: chown -R 1000:1000 DIRECTORY",)


class RequestInvalid(SandboxError):
    """The request is invalid: NUL bytes, an argv that is too long, a bad environment variable name."""

    code = "SANDBOX_REQUEST_INVALID"
    exit_code = 2
    hints = ("check the command, its environment and its limits",)


class CommandNotFound(SandboxError):
    """The command does not exist inside the box."""

    code = "SANDBOX_COMMAND_NOT_FOUND"
    exit_code = 127
    hints = ("check the command's name and the PATH in the box: proofbox exec --shell 'echo $PATH'",)


class CommandNotExecutable(SandboxError):
    """The command exists inside the box but can't be executed."""

    code = "SANDBOX_COMMAND_NOT_EXECUTABLE"
    exit_code = 126
    hints = ("make it executable, or run it with its interpreter",)


class StartFailed(SandboxError):
    """The provider works on this machine, but this box did not start."""

    code = "SANDBOX_START_FAILED"
    exit_code = 3
    hints = ("check the sandbox: proofbox doctor",)


class EngineRefused(SandboxError):
    """The container engine refused a request. `details["status"]` is the HTTP status."""

    code = "SANDBOX_ENGINE_REFUSED"
    exit_code = 3
    hints = ("check the engine's message and its log",)


class SandboxLost(SandboxError):
    """The box died while the command ran. The command's exit code is unknown; this is not its failure."""

    code = "SANDBOX_LOST"
    retryable = True
    hints = ("start a new box, and run the command again if it is safe to repeat",)


class NotFrozen(SandboxError):
    """The box did not freeze in time. It is still running."""

    code = "SANDBOX_NOT_FROZEN"
    retryable = True
    hints = ("try again, or continue without freezing the box",)


class ProtocolError(SandboxError):
    """The peer on the box's stream violated the box agent's protocol."""

    code = "SANDBOX_PROTOCOL"
    hints = ("install the same version of proofbox on both sides, and start a new box",)


class SessionUnknown(SandboxError):
    """No session has that id, or its record has already been pruned."""

    code = "SANDBOX_SESSION_UNKNOWN"
    exit_code = 2
    hints = ("list the sessions: proofbox session list",)


class ImageUnknown(SandboxError):
    """The catalogue has no image with that name for this architecture."""

    code = "SANDBOX_IMAGE_UNKNOWN"
    exit_code = 2
    hints = ("list the images: proofbox images list",)


class ImageUnavailable(SandboxError):
    """The image is not available: none is configured, it is not pulled yet, or its server does not have it."""

    code = "SANDBOX_IMAGE_UNAVAILABLE"
    exit_code = 3
    hints = ("pull it: proofbox images pull NAME",)


class ImageBuildFailed(SandboxError):
    """An image could not be built. Nothing of the build is kept."""

    code = "SANDBOX_IMAGE_BUILD_FAILED"
    exit_code = 3
    hints = ("fix the cause, then build it again: proofbox images build NAME",)


class ImageCorrupt(SandboxError):
    """The image does not match its digest. The download was discarded."""

    code = "SANDBOX_IMAGE_CORRUPT"
    exit_code = 1
    hints = ("don't use it; check the entry's url and digest",)


class ImageLocked(SandboxError):
    """The catalogue and the project's lock file have different images for that name."""

    code = "SANDBOX_IMAGE_LOCKED"
    exit_code = 1
    hints = ("if the change is intended: proofbox images pull NAME --update",)


class DownloadFailed(SandboxError):
    """A download was interrupted. The part received is kept, and the next try resumes from it."""

    code = "SANDBOX_DOWNLOAD_FAILED"
    exit_code = 3
    retryable = True
    hints = ("try again: the download resumes where it stopped",)


class ProvisionFailed(SandboxError):
    """The provision script failed, so no box was created. `details` has its output."""

    code = "SANDBOX_PROVISION_FAILED"
    exit_code = 3
    hints = ("fix the provision script",)


class ChecksFailed(SandboxError):
    """The provider failed conformance checks: it does not enforce everything it promises on this machine."""

    code = "SANDBOX_CHECKS_FAILED"
    exit_code = 1
    hints = ("don't rely on the provider for the failed checks; list them: proofbox doctor --json",)
