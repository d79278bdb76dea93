"""Suites, runs and attempts, other than what an attempt records itself."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class LabError(ProofboxError):
    """Anything that goes wrong with attempts and the runs they belong to, other than what an attempt records itself."""

    code = "ATTEMPT_FAILED"
    hints = ("see what happened: proofbox attempt explain ATTEMPT",)


class SuiteInvalid(LabError):
    """The suite's file can't be run. `details["problems"]` has each thing that is wrong, with its place."""

    code = "SUITE_INVALID"
    exit_code = 1
    hints = ("mend what is named, then check it: proofbox suite lint FILE",)


class ImageAbsent(LabError):
    """A task runs in an image that the engine has not. The hints say what to pull or build."""

    code = "SUITE_IMAGE_ABSENT"
    exit_code = 3
    hints = ("pull or build the image",)


class SuiteNotPassed(LabError):
    """The run is whole, and not every mission in it was verified as done."""

    code = "SUITE_NOT_PASSED"
    exit_code = 1
    hints = ("see what happened: proofbox attempt explain ATTEMPT",)


class EvidenceIncomplete(LabError):
    """The evidence of an attempt is not whole, or contradicts itself. `details["findings"]` names each way."""

    code = "ATTEMPT_EVIDENCE_INCOMPLETE"
    exit_code = 1
    hints = ("see each finding: proofbox validate PATH --json",)


class AttemptUnknown(LabError):
    """No attempt has that id, or several begin with it."""

    code = "ATTEMPT_UNKNOWN"
    exit_code = 2
    hints = ("list them: proofbox attempt list",)


class RunUnknown(LabError):
    """There is no run at that place."""

    code = "RUN_UNKNOWN"
    exit_code = 2
    hints = ("name the --out directory of a run",)


class PlanUntrusted(LabError):
    """A run's plan was not made here by this user, or was changed after it was made. Nothing of it was run."""

    code = "RUN_PLAN_UNTRUSTED"
    exit_code = 3
    hints = ("read the plan's suite, and if you trust it: proofbox suite resume --trust",)


class RunBusy(LabError):
    """Another process conducts that run."""

    code = "RUN_BUSY"
    hints = ("wait for it, or end it and resume: proofbox suite resume",)


class RunInterrupted(LabError):
    """Whoever conducted a run was told to stop. What is committed stays."""

    code = "RUN_INTERRUPTED"
    exit_code = 130
    hints = ("go on with it: proofbox suite resume",)


class NotFreed(LabError):
    """Something that was to go is still there. Its item says what, and why."""

    code = "RUN_NOT_FREED"
    exit_code = 1
    hints = ("see what is left, and why: proofbox gc OUT --json",)


class SetupFailed(LabError):
    """A command of the mission's own setup failed: there was nothing for the agent to begin with."""

    code = "ATTEMPT_SETUP_FAILED"
    exit_code = 1
    hints = ("run the mission's setup by hand: proofbox exec",)


class WorkerLost(LabError):
    """Whoever ran the attempt died. What it had recorded until then is kept."""

    code = "ATTEMPT_WORKER_LOST"
    retryable = True
    hints = ("resume the run: proofbox suite resume",)


class LeaseLost(LabError):
    """This worker was taken for dead, and its attempt was given to another: what it has counts no more."""

    code = "ATTEMPT_LEASE_LOST"
    hints = ("resume the run: proofbox suite resume",)
