"""`apple-vm`: reserves the name for Apple's virtualization framework, so that settings can use it on every machine."""

from __future__ import annotations

import os

from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.contract import Box, CheckedSpec, Enforcement, Isolation, Policy


class AppleVm:
    name = "apple-vm"
    isolation = Isolation.VM
    systems = frozenset({"Darwin"})

    def identity(self) -> str:
        system = os.uname().sysname
        reason = "needs macOS; this is " + system if system != "Darwin" else "is not part of this release"
        raise ProviderUnavailable(
            f"apple-vm {reason}",
            op="probe",
            fix_hints=["use --provider bubblewrap on Linux, or --provider auto"],
        )

    def enforcement(self, policy: Policy | None = None) -> Enforcement:  # noqa: ARG002 (it changes nothing here)
        return Enforcement(isolation=self.isolation, gaps={"all": "apple-vm does not run here"})

    def start(self, spec: CheckedSpec) -> Box:  # noqa: ARG002
        self.identity()
        raise AssertionError("identity() always raises")

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        return stderr, []
