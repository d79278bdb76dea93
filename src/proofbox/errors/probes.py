"""Errors of probe plans."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class ProbeError(ProofboxError):
    """A plan could not be run."""

    code = "PLAN_FAILED"
    hints = ("check the plan: proofbox plan lint PLAN",)


class PlanInvalid(ProbeError):
    """The plan is invalid. `details["problems"]` lists each problem with its location."""

    code = "PLAN_INVALID"
    exit_code = 1
    hints = ("fix the listed problems, then check the file: proofbox plan lint PLAN",)


class PlanUnknown(ProbeError):
    """No built-in plan or file has this name."""

    code = "PLAN_UNKNOWN"
    exit_code = 2
    hints = ("list the built-in plans: proofbox plan list",)


class ProbeDriverFailed(ProbeError):
    """The program that performs the probes did not run in the sandbox."""

    code = "PLAN_DRIVER_FAILED"
    exit_code = 3
    hints = ("run the adapter's command by hand with /bin/true in place of {command}",)


class PlanMismatch(ProbeError):
    """The sandbox does not behave as the plan expects."""

    code = "PLAN_MISMATCH"
    exit_code = 1
    hints = ("read each mismatch in summary.md of the bundle",)
