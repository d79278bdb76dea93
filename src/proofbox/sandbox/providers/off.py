"""`off`: no isolation at all. Commands are processes of the host. It must be named explicitly; `auto` never selects it.

Timeouts, output caps and, with control groups, resource limits still apply. Killing the process tree is reliable with
`cgroup.kill`, and best effort without.
"""

from __future__ import annotations

import os
from pathlib import Path

from proofbox.sandbox.contract import Box, CheckedSpec, Enforcement, Isolation, Policy
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.host.local_box import InheritedDescriptors, launch
from proofbox.sandbox.providers.environment import forwarded

_UNSUPPORTED = (
    "network none",
    "network allow",
    "filesystem",
    "access ro",
    "access overlay",
    "layers",
    "disk",
    "mounts",
    "hidden",
    "agent hidden",
)
_NO_BOX = "the provider is off: commands run on the host itself"


class Off:
    name = "off"
    isolation = Isolation.NONE
    systems = frozenset({"Linux"})

    def identity(self) -> str:
        agent = program("boxagent").stat()
        return f"off:{os.uname().release}:{agent.st_size}:{agent.st_mtime_ns}"

    def enforcement(self, policy: Policy | None = None) -> Enforcement:  # noqa: ARG002 (the same for every policy)
        tree = cgroups.tree()
        limits = {name: tree.can_limit(name) for name in ("memory", "cpu", "pids")}
        gaps = dict.fromkeys(_UNSUPPORTED, _NO_BOX)
        gaps |= {name: tree.reason for name, can in limits.items() if not can}
        if not tree.can_kill:
            gaps["kill tree"] = f"{tree.reason}; processes are found by their ancestry"
        return Enforcement(
            agent_hidden=False,
            memory=limits["memory"],
            cpus=limits["cpu"],
            pids=limits["pids"],
            kill_tree="sure" if tree.can_kill else "best-effort",
            isolation=self.isolation,
            gaps=gaps,
        )

    def start(self, spec: CheckedSpec) -> Box:
        group = cgroups.group(spec.label, spec.policy, owner=None)
        agent = str(program("boxagent"))

        def argv(with_: InheritedDescriptors) -> list[str]:
            enter = [str(program("boxlaunch")), *with_.enter, "--"] if with_.enter else []
            return [*enter, agent, *with_.agent]

        return launch(
            argv,
            spec=spec,
            group=group,
            isolation=self.isolation,
            policy=spec.policy,
            project=str(spec.project),
            environment=forwarded(),
            places=((Path("/"), "/"),),
        )

    def explain(self, stderr: str) -> tuple[str, list[str]]:
        return stderr.splitlines()[-1] if stderr else "it ended without a message", []
