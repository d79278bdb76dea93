"""`apple-vm`: the guest of `vm` in Virtualization.framework, on Macs with Apple silicon.

macOS has no bubblewrap, so the host does not compose a root: it shares directories, each read-only or writable, and the
guest's init composes the root from them, with an image as its base. A read-only share is read-only on the host,
whatever the guest does. Covers over parts of the project are mounts of the guest's kernel: commands can't undo them,
and root in the guest could.

A helper process runs the machine and serves its console port (`machines/apple_machine.py`). Not run on a Mac yet.

`auto` tries this provider first on every system, so modules that only a Mac needs are loaded inside functions.
"""

from __future__ import annotations

import os

import msgspec

from proofbox.errors import ProviderUnavailable
from proofbox.sandbox.contract import Box, CheckedSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.host.binaries import program, version_of

OLDEST_MACOS = 13
"""The first with console ports."""
_OVERLAY = "apple-vm has no overlay over the project"


class AppleVm:
    name = "apple-vm"
    isolation = Isolation.VM
    systems = frozenset({"Darwin"})

    def identity(self) -> str:
        computer = Computer.this()
        computer.refuse_unsuitable()
        import importlib.util

        from proofbox.sandbox.machines.apple_signing import interpreter
        from proofbox.sandbox.machines.kernel import find_kernel

        if importlib.util.find_spec("Virtualization") is None:
            raise ProviderUnavailable(
                "the Python package pyobjc-framework-Virtualization is not installed",
                op="probe",
                fix_hints=["pip install 'proofbox[apple-vm]'"],
            )
        kernel = find_kernel()
        if not (kernel / "modules/virtio_pci.ko").exists():
            raise ProviderUnavailable(
                "the kernel was built by an older version of proofbox, without the modules of a PCI bus",
                op="probe",
                fix_hints=["build it again on Linux: proofbox images build kernel", "then import it again"],
            )
        paths = [interpreter(), program("boxvm"), program("boxagent")]
        parts = [f"macOS {computer.macos} uid {computer.user[0]}", kernel.name]
        return " ".join([*parts, *map(version_of, paths)])

    def enforcement(self, policy: Policy | None = None) -> Enforcement:  # noqa: ARG002 (the same for every policy)
        return Enforcement(
            network_none=True,
            network_allow=True,
            filesystem=True,
            access_ro=True,
            mounts=True,
            hidden=True,
            images=True,
            memory=True,
            cpus=True,
            pids=True,
            detached=False,
            kill_tree="sure",
            isolation=self.isolation,
            gaps={
                "access overlay": _OVERLAY,
                "layers": _OVERLAY,
                "disk": _OVERLAY,
                "runtime": "only containers have a runtime",
                "detached": "on macOS, a machine can't be found again after its client has ended",
            },
        )

    def start(self, spec: CheckedSpec) -> Box:
        from proofbox.sandbox.providers.apple_guest import start_guest

        self.identity()
        return start_guest(spec, self.isolation, Computer.this().user)

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        if not stderr:
            return "the machine ended without a message", []
        return stderr, ["check the machine: proofbox doctor --provider apple-vm"]


class Computer(msgspec.Struct, frozen=True):
    """What a machine depends on, of this computer and its user."""

    system: str
    arch: str
    macos: str
    """The version of macOS; empty on another system."""
    user: tuple[int, int]

    @classmethod
    def this(cls) -> Computer:
        found, macos = os.uname(), ""
        if found.sysname == "Darwin":
            import platform

            macos = platform.mac_ver()[0]
        return cls(found.sysname, found.machine, macos, (os.getuid(), os.getgid()))

    def refuse_unsuitable(self) -> None:
        """Raise ProviderUnavailable if no machine can run here."""
        problem, hint = "", "use --provider docker"
        if self.system != "Darwin":
            problem = f"needs macOS; this is {self.system}"
            hint = "use --provider bubblewrap on Linux, or --provider auto"
        elif self.arch != "arm64":
            problem = f"needs a Mac with Apple silicon; this one has {self.arch}"
        elif int(self.macos.partition(".")[0] or 0) < OLDEST_MACOS:
            problem = f"needs macOS {OLDEST_MACOS} or newer; this is {self.macos}"
        elif self.user[0] == 0:
            problem, hint = "can't be used by root: commands would be root in the guest", "run it as an ordinary user"
        if problem:
            raise ProviderUnavailable(f"apple-vm {problem}", op="probe", fix_hints=[hint])
