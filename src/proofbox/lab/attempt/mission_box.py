"""The boxes of a mission: their policy, and the boxes that run the mission's setup and cleanup commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proofbox.config.settings import Settings
from proofbox.errors import CleanupFailed, CleanupTimedOut, ProofboxError, SetupFailed
from proofbox.lab.attempt.context import RunContext
from proofbox.lab.attempt.documents import CleanupRecord
from proofbox.lab.attempt.verifier import VerifierResult, argv_of, check
from proofbox.lab.suite.spec import Mission, Verify
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.options import PolicyOptions
from proofbox.sandbox.service import Sandboxes
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.compiling import compile_rules
from proofbox.workspace.capabilities.grants import PRESETS

PROVIDER = "bubblewrap"
"""The provider whose boxes see what this process has mounted."""
SHOWN = 2000


def requested_options(mission: Mission) -> PolicyOptions:
    """Return the policy that the mission asks for, without mounts."""
    limits = mission.limits
    return {
        "network": mission.network,
        "memory": limits.memory,
        "cpus": limits.cpus,
        "pids": limits.pids,
        "image": mission.image,
    }


class MissionBoxes:
    def __init__(self, mission: Mission, context: RunContext, workspace: Path) -> None:
        self._mission = mission
        self._context = context
        self._workspace = workspace
        self.provider = context.provider or mission.provider
        self._open: Sandboxes | None = None

    @property
    def settings(self) -> Settings | None:
        """The defaults of the run for boxes, with what the mission asks for. None: those of the workspace."""
        settings = self._context.box_settings
        if settings is None or not self._mission.vm_template:
            return settings
        return msgspec.structs.replace(settings, vm_template=True)

    def pin_provider(self) -> None:
        """Start boxes only with the provider that sees this process's mounts, even if that provider stops working."""
        self.provider = PROVIDER

    @contextlib.contextmanager
    def over(self, files: Path) -> Iterator[Sandboxes]:
        """Open boxes on these files, one at a time; `cut_off` kills what runs in them."""
        with Sandboxes(files, settings=self.settings, clock=self._context.clock) as boxes:
            self._open = boxes
            try:
                yield boxes
            finally:
                self._open = None

    def cut_off(self) -> None:
        """Kill what runs in the open boxes, from another thread. A box that is just being started is not affected."""
        boxes = self._open
        if boxes is not None:
            boxes.cut_off()

    def policy(self, files: Path | None = None) -> PolicyOptions:
        """Return the policy of a box on the workspace, or on other files in its place."""
        policy, workdir = requested_options(self._mission), self._mission.workdir
        policy["mounts"] = [] if workdir is None else [Mount(files or self._workspace, workdir, writable=True)]
        return policy

    def grants(self) -> Capabilities | None:
        name = self._mission.capabilities
        return None if name is None else Capabilities.load(name if name in PRESETS else self._context.suite.at(name))

    def agent_policy(self, workspace: Path) -> PolicyOptions:
        """Return the policy of the agent's box, with capabilities compiled for the files present before it starts."""
        policy, grants = self.policy(), self.grants()
        if grants is None:
            return policy
        compiled = compile_rules(grants, str(workspace)).options(str(workspace))
        mounts = [*(policy.get("mounts") or ()), *(compiled.get("mounts") or ())]
        policy.update(compiled)
        policy["mounts"] = mounts
        return policy

    def set_up(self) -> None:
        """Run the mission's setup commands in the workspace. Raises `SetupFailed`."""
        with (
            self.over(self._workspace) as boxes,
            boxes.start_session(provider=self.provider, **self.policy()) as session,
        ):
            end = self._context.clock.monotonic() + self._mission.hook_timeout
            for command in self._mission.setup:
                left = max(end - self._context.clock.monotonic(), 0.001)
                result = session.exec(argv_of(command), timeout=left)
                if result.exit_code != 0 or result.timed_out:
                    shown = self._context.redactor.preview_end(result.stderr_bytes, SHOWN)[0]
                    late = f"timed out: setup has {self._mission.hook_timeout:g} s"
                    how = late if result.timed_out else f"exited {result.exit_code}"
                    raise SetupFailed(
                        f"a setup command of mission {self._mission.id} {how}",
                        op="attempt",
                        fix_hints=["run the command by hand in a box: proofbox exec"],
                        details={"command": list(argv_of(command)), "stderr": shown},
                    )

    def clean_up(self) -> CleanupRecord:
        """Run the mission's cleanup commands in the workspace, in a new box. Record failures, do not raise."""
        mission = self._mission
        hook = Verify(commands=mission.cleanup, timeout=mission.hook_timeout, network=mission.network)
        found, error = VerifierResult(passed=None), None
        try:
            with self.over(self._workspace) as boxes:
                policy, redactor, clock = self.policy(), self._context.redactor, self._context.clock
                found = check(boxes, hook, redactor, provider=self.provider, policy=policy, clock=clock)
        except ProofboxError as failure:
            error = failure
        except OSError as failure:
            error = CleanupFailed(f"no box could be started: {failure}", op="attempt")
        if error is None and not found.passed:
            last = found.commands[-1]
            kind = CleanupTimedOut if last.timed_out else CleanupFailed
            error = kind(f"a cleanup command of mission {mission.id} did not pass: {last.why}", op="attempt")
        return CleanupRecord(
            ok=error is None,
            code=None if error is None else error.code,
            message="" if error is None else self._context.redactor.redact(error.message),
            commands=found.commands,
            provider=found.provider,
        )
