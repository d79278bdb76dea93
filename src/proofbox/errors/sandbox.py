"""Between asking for a sandbox and having its command's result."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class SandboxError(ProofboxError):
    """Anything that goes wrong between asking for a sandbox and having its command's result.

    `details["diagnostics"]`, where there are any, says of each provider considered whether it is available and why not.
    """

    code = "SANDBOX_FAILED"
    hints = ("check the sandbox: proofbox doctor",)


class ProviderUnknown(SandboxError):
    """No provider has that name."""

    code = "SANDBOX_PROVIDER_UNKNOWN"
    exit_code = 2
    hints = ("list those there are: proofbox probe",)


class ProviderUnavailable(SandboxError):
    """The provider is known, and a real trial of it failed on this machine."""

    code = "SANDBOX_UNAVAILABLE"
    exit_code = 3
    hints = ("see what is missing: proofbox doctor",)


class PolicyRefused(SandboxError):
    """A policy was asked for that this provider can't enforce here. Nothing was started."""

    code = "SANDBOX_POLICY_REFUSED"
    exit_code = 3
    hints = ("choose a provider that can (`proofbox probe` lists them), or don't ask for it",)


class ConsentRequired(SandboxError):
    """A suite or a task asks for more than your own settings give a box, and you have not consented to it.

    `details["widenings"]` lists each request. Nothing was started, and no file outside its directory was read.
    """

    code = "SANDBOX_CONSENT_REQUIRED"
    exit_code = 3
    hints = ("read what is listed, and if you agree, repeat the command with --trust",)


class PathRefused(SandboxError):
    """A project, cwd or mount that doesn't exist, escapes, or has no place inside the box."""

    code = "SANDBOX_PATH_REFUSED"
    exit_code = 2
    hints = ("name a directory that is there, in the project or mounted",)


class IdmapUnsupported(SandboxError):
    """Root owns a directory for the box, on a file system without idmapped mounts. Nothing was started.

    A box never runs with root's ids: it uses root's files by way of an idmapped mount.
    """

    code = "SANDBOX_IDMAP_UNSUPPORTED"
    exit_code = 3
    hints = ("give the directory to an ordinary user: chown -R 1000:1000 DIRECTORY",)


class RequestInvalid(SandboxError):
    """The request itself can't be carried out: NUL bytes, too long an argv, a bad environment name."""

    code = "SANDBOX_REQUEST_INVALID"
    exit_code = 2
    hints = ("check the command, its environment and its limits",)


class CommandNotFound(SandboxError):
    """The command does not exist inside the box."""

    code = "SANDBOX_COMMAND_NOT_FOUND"
    exit_code = 127
    hints = ("check its name, and what the box has: proofbox exec --shell 'echo $PATH'",)


class CommandNotExecutable(SandboxError):
    """The command exists inside the box and can't be executed."""

    code = "SANDBOX_COMMAND_NOT_EXECUTABLE"
    exit_code = 126
    hints = ("make it executable, or name its interpreter",)


class StartFailed(SandboxError):
    """The provider works on this machine, but this box did not start."""

    code = "SANDBOX_START_FAILED"
    exit_code = 3
    hints = ("check the sandbox: proofbox doctor",)


class EngineRefused(SandboxError):
    """A container engine answered, and the answer was no. `details["status"]` is its HTTP status."""

    code = "SANDBOX_ENGINE_REFUSED"
    exit_code = 3
    hints = ("look at what the engine says, and at its log",)


class SandboxLost(SandboxError):
    """The box died under the command. Not the command's failure: its exit code is not known."""

    code = "SANDBOX_LOST"
    retryable = True
    hints = ("start another box, and run the command again if it may run twice",)


class NotFrozen(SandboxError):
    """The box did not come to a halt in time. It runs on."""

    code = "SANDBOX_NOT_FROZEN"
    retryable = True
    hints = ("try again, or do without freezing",)


class ProtocolError(SandboxError):
    """The other end of the box's stream spoke something else than the box agent's protocol."""

    code = "SANDBOX_PROTOCOL"
    hints = ("install one version of proofbox on both sides, and start another box",)


class SessionUnknown(SandboxError):
    """No session has that id, or it ended long enough ago to be forgotten."""

    code = "SANDBOX_SESSION_UNKNOWN"
    exit_code = 2
    hints = ("list those there are: proofbox session list",)


class ImageUnknown(SandboxError):
    """The catalogue has no image of that name for this architecture."""

    code = "SANDBOX_IMAGE_UNKNOWN"
    exit_code = 2
    hints = ("list those there are: proofbox images list",)


class ImageUnavailable(SandboxError):
    """There is no image to be had: none is named, it was not pulled yet, or its server has no such file."""

    code = "SANDBOX_IMAGE_UNAVAILABLE"
    exit_code = 3
    hints = ("pull it: proofbox images pull NAME",)


class ImageCorrupt(SandboxError):
    """An image's bytes are not those its digest promises. They were not kept."""

    code = "SANDBOX_IMAGE_CORRUPT"
    exit_code = 1
    hints = ("don't use it; check the entry's url and digest",)


class ImageLocked(SandboxError):
    """The catalogue means another image by that name than the project's lock file does."""

    code = "SANDBOX_IMAGE_LOCKED"
    exit_code = 1
    hints = ("if the change is meant: proofbox images pull NAME --update",)


class DownloadFailed(SandboxError):
    """A download did not come to its end. What has come is kept, and the next try goes on from there."""

    code = "SANDBOX_DOWNLOAD_FAILED"
    exit_code = 3
    retryable = True
    hints = ("try again: it goes on from where it was cut",)


class ProvisionFailed(SandboxError):
    """The script that prepares a box did not succeed, so that there is no box. `details` has what it said."""

    code = "SANDBOX_PROVISION_FAILED"
    exit_code = 3
    hints = ("mend the provision script",)


class ChecksFailed(SandboxError):
    """A provider does not hold on this machine what it promises: checks of the conformance suite failed."""

    code = "SANDBOX_CHECKS_FAILED"
    exit_code = 1
    hints = ("don't rely on it for what failed; see each: proofbox doctor --json",)
