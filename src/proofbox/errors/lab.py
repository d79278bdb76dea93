"""Errors of suites, runs and attempts, except failures that an attempt records as its own result."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class LabError(ProofboxError):
    """An operation on a suite, run or attempt failed."""

    code = "ATTEMPT_FAILED"
    hints = ("see what happened: proofbox attempt explain ATTEMPT",)


class SuiteInvalid(LabError):
    """The suite file is invalid. `details["problems"]` lists each problem with its location."""

    code = "SUITE_INVALID"
    exit_code = 1
    hints = ("fix the listed problems, then check the file: proofbox suite lint FILE",)


class ImageAbsent(LabError):
    """The container engine does not have a task's image. The hints name the image to pull or build."""

    code = "SUITE_IMAGE_ABSENT"
    exit_code = 3
    hints = ("pull or build the image",)


class SuiteNotPassed(LabError):
    """The run is complete, but some missions were not verified as done."""

    code = "SUITE_NOT_PASSED"
    exit_code = 1
    hints = ("see what happened: proofbox attempt explain ATTEMPT",)


class EvidenceIncomplete(LabError):
    """An attempt's evidence is incomplete or inconsistent. `details["findings"]` lists the problems."""

    code = "ATTEMPT_EVIDENCE_INCOMPLETE"
    exit_code = 1
    hints = ("see each finding: proofbox validate PATH --json",)


class AttemptUnknown(LabError):
    """No attempt has that id, or the prefix is ambiguous."""

    code = "ATTEMPT_UNKNOWN"
    exit_code = 2
    hints = ("list the attempts: proofbox attempt list",)


class StepFilesGone(LabError):
    """The files of a step are not in a workspace store of this machine, so they can't be restored."""

    code = "ATTEMPT_FILES_GONE"
    exit_code = 3
    hints = ("fork the attempt on the machine where it ran",)


class StepDiffOmitted(LabError):
    """The changes of a step were too large to be part of the evidence."""

    code = "ATTEMPT_DIFF_OMITTED"
    exit_code = 3
    hints = ("restore the files of the step, and of the one before it: proofbox attempt fork ID --step N DIR",)


class RunUnknown(LabError):
    """The path has no run."""

    code = "RUN_UNKNOWN"
    exit_code = 2
    hints = ("give the --out directory of a run",)


class PlanUntrusted(LabError):
    """The run's plan was not created on this machine by this user, or was changed later. Nothing was run."""

    code = "RUN_PLAN_UNTRUSTED"
    exit_code = 3
    hints = ("read the plan's suite; if you trust it: proofbox suite resume --trust",)


class RunMoved(LabError):
    """The output directory of an unfinished run was moved, so its copies of files are not found. Nothing was run."""

    code = "RUN_MOVED"
    exit_code = 2
    hints = ("move the output directory back to where it was when the run was started",)


class RunBusy(LabError):
    """Another process is conducting that run."""

    code = "RUN_BUSY"
    hints = ("wait for that process, or stop it and resume the run: proofbox suite resume",)


class RunInterrupted(LabError):
    """The run was interrupted. Committed attempts are kept."""

    code = "RUN_INTERRUPTED"
    exit_code = 130
    hints = ("resume the run: proofbox suite resume",)


class NotFreed(LabError):
    """Some items could not be deleted. Each item gives the reason."""

    code = "RUN_NOT_FREED"
    exit_code = 1
    hints = ("see what remains and why: proofbox gc OUT --json",)


class SetupFailed(LabError):
    """A setup command of the mission failed, so the agent was not started."""

    code = "ATTEMPT_SETUP_FAILED"
    exit_code = 1
    hints = ("run the mission's setup by hand: proofbox exec",)


class CleanupFailed(LabError):
    """A cleanup command of the mission failed. The result of the attempt was decided before, and is not affected."""

    code = "ATTEMPT_CLEANUP_FAILED"
    exit_code = 1
    hints = ("run the mission's cleanup by hand: proofbox exec",)


class CleanupTimedOut(LabError):
    """The cleanup commands of the mission took too long and were killed. The result of the attempt is not affected."""

    code = "ATTEMPT_CLEANUP_TIMEOUT"
    exit_code = 1
    hints = ("allow more time: hook_timeout in the suite or the campaign",)


class WorkerLost(LabError):
    """The worker that ran the attempt died. Everything it had recorded is kept."""

    code = "ATTEMPT_WORKER_LOST"
    retryable = True
    hints = ("resume the run: proofbox suite resume",)


class NodeLost(WorkerLost):
    """The cluster node that ran the attempt died, or could not be reached any more."""

    code = "ATTEMPT_NODE_LOST"
    hints = ("resume the run: proofbox suite resume",)


class NodePreempted(WorkerLost):
    """The cluster preempted or drained the node that ran the attempt."""

    code = "ATTEMPT_NODE_PREEMPTED"
    hints = ("resume the run: proofbox suite resume",)


class WorkerOutOfMemory(WorkerLost):
    """The worker that ran the attempt was killed because its node ran out of memory."""

    code = "ATTEMPT_WORKER_OOM"
    hints = ("run fewer attempts on a node (--per-node), or reserve memory for each (--resource memory=4g)",)


class ObjectStoreFull(WorkerLost):
    """The evidence of the attempt could not be returned, because the cluster's object store or its disk is full."""

    code = "ATTEMPT_OBJECT_STORE_FULL"
    hints = ("start the nodes with a larger --object-store-memory, or free disk space on them",)


class EngineUnavailable(LabError):
    """The engine cannot run attempts: it is not installed, cannot be reached, or no node passed the preflight."""

    code = "ENGINE_UNAVAILABLE"
    exit_code = 3
    hints = ("run on this machine: --engine local",)


class EngineLost(LabError):
    """The connection to the cluster was lost, or no usable node is left. The run can be resumed."""

    code = "ENGINE_LOST"
    retryable = True
    hints = ("resume the run: proofbox suite resume",)


class LeaseLost(LabError):
    """This worker's lease expired and another worker took over the attempt, so its result is discarded."""

    code = "ATTEMPT_LEASE_LOST"
    hints = ("resume the run: proofbox suite resume",)


class RunsDiffer(LabError):
    """Two runs of the same missions differ in a value that is scored."""

    code = "RUN_PARITY"
    exit_code = 1
    hints = ("see what happened in an attempt: proofbox attempt explain ID --run RUN",)


class CampaignInvalid(LabError):
    """The campaign file is invalid. `details["problems"]` lists each problem with its location."""

    code = "CAMPAIGN_INVALID"
    exit_code = 1
    hints = ("fix the listed problems, then check the file: proofbox campaign lint FILE",)


class CampaignUnknown(LabError):
    """The directory has no campaign."""

    code = "CAMPAIGN_UNKNOWN"
    exit_code = 2
    hints = ("name the directory that you gave to `proofbox campaign run` as --out",)


class CampaignExists(LabError):
    """The output directory has a campaign already. Nothing was run."""

    code = "CAMPAIGN_EXISTS"
    exit_code = 2
    hints = ("resume it: proofbox campaign resume OUT",)


class CampaignChanged(LabError):
    """The campaign file, or a file that it refers to, is not the registered one. `details["changed"]` lists them."""

    code = "CAMPAIGN_CHANGED"
    exit_code = 1
    hints = ("restore the registered files, or start a new campaign: proofbox campaign run FILE --out NEW",)


class CampaignNotReady(LabError):
    """A flow cannot run here. Nothing was run. `details["failures"]` lists each failure with its code and hints."""

    code = "CAMPAIGN_NOT_READY"
    exit_code = 3
    hints = ("see what is missing: proofbox campaign lint FILE",)


class CampaignGatesFailed(LabError):
    """The campaign is complete, but some of its gates failed."""

    code = "CAMPAIGN_GATES_FAILED"
    exit_code = 1
    hints = ("see each gate: proofbox campaign report OUT",)


class CampaignIncomplete(LabError):
    """Some attempts of the campaign have not ended, or have no score."""

    code = "CAMPAIGN_INCOMPLETE"
    exit_code = 1
    hints = ("run the missing attempts: proofbox campaign resume OUT",)


class CampaignNotPublishable(LabError):
    """The results do not meet the conditions for publishing. `details["reasons"]` lists them."""

    code = "CAMPAIGN_NOT_PUBLISHABLE"
    exit_code = 1
    hints = ("see the state of the campaign: proofbox campaign status OUT",)


class CampaignRegressed(LabError):
    """A flow is worse than in the earlier campaign, or the evidence of one of them has findings."""

    code = "CAMPAIGN_REGRESSED"
    exit_code = 1
    hints = ("see each campaign: proofbox campaign report OUT",)
