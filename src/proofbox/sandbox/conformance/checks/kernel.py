"""Kernel settings and secrets that namespaces do not separate: a box can neither change nor read them."""

from __future__ import annotations

from proofbox.sandbox.conformance.check import FILESYSTEM, ProviderChecks
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.conformance.probing import run_probes

subject = ProviderChecks("kernel")
check = subject.check


@check(FILESYSTEM)
def settings(context: CheckContext) -> None:
    """No kernel setting can be opened for writing, such as core_pattern or any other that affects the host."""
    run_probes(context, "kernel.write-*", network="none")
    run_probes(context, "kernel.write-*", network="full")


@check(FILESYSTEM)
def secrets(context: CheckContext) -> None:
    """The files in /proc that expose kernel memory, timers and keys are masked, as in container runtimes."""
    run_probes(context, "kernel.read-*", "kernel.list-*")
