"""The boxes of a mission: what it may do in them, and the one in which its workspace is set up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from proofbox.errors import SetupFailed
from proofbox.lab.attempt.context import RunContext
from proofbox.lab.attempt.verifier import argv_of
from proofbox.lab.suite.spec import Mission
from proofbox.sandbox.box_handle import PolicyOptions
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.service import Sandboxes
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.compiling import compile_rules
from proofbox.workspace.capabilities.grants import PRESETS

SETUP_TIMEOUT = 600.0
SHOWN = 2000


def asked_of_a_box(mission: Mission) -> PolicyOptions:
    """By the mission, whatever files are in the box."""
    limits = mission.limits
    return {
        "network": mission.network,
        "memory": limits.memory,
        "cpus": limits.cpus,
        "pids": limits.pids,
        "image": mission.image,
    }


class MissionBoxes:
    def __init__(self, mission: Mission, around: RunContext, workspace: Path) -> None:
        self._mission = mission
        self._around = around
        self._workspace = workspace
        self.provider = around.provider or mission.provider
        self._open: Sandboxes | None = None

    @contextlib.contextmanager
    def over(self, files: Path) -> Iterator[Sandboxes]:
        """Boxes over these files, one such at a time; `cut_off` ends what runs in them."""
        with Sandboxes(files, settings=self._around.box_settings, clock=self._around.clock) as boxes:
            self._open = boxes
            try:
                yield boxes
            finally:
                self._open = None

    def cut_off(self) -> None:
        """From another thread; one that is being started just now is not among them."""
        boxes = self._open
        if boxes is not None:
            boxes.cut_off()

    def policy(self, files: Path | None = None) -> PolicyOptions:
        """Of a box over the workspace, or over other files in its stead."""
        policy, workdir = asked_of_a_box(self._mission), self._mission.workdir
        policy["mounts"] = [] if workdir is None else [Mount(files or self._workspace, workdir, writable=True)]
        return policy

    def grants(self) -> Capabilities | None:
        said = self._mission.capabilities
        return None if said is None else Capabilities.load(said if said in PRESETS else self._around.suite.at(said))

    def agent_policy(self, workspace: Path) -> PolicyOptions:
        """Of the agent's own box: capabilities are compiled into it, for the files as they are before it starts."""
        policy, grants = self.policy(), self.grants()
        if grants is None:
            return policy
        compiled = compile_rules(grants, str(workspace)).options(str(workspace))
        mounts = [*(policy.get("mounts") or ()), *(compiled.get("mounts") or ())]
        policy.update(compiled)
        policy["mounts"] = mounts
        return policy

    def set_up(self) -> None:
        """Run the mission's own setup in the workspace, or raise SetupFailed."""
        with (
            self.over(self._workspace) as boxes,
            boxes.start_session(provider=self.provider, **self.policy()) as session,
        ):
            for command in self._mission.setup:
                result = session.exec(argv_of(command), timeout=SETUP_TIMEOUT)
                if result.exit_code != 0:
                    shown = self._around.redactor.preview_end(result.stderr_bytes, SHOWN)[0]
                    raise SetupFailed(
                        f"a setup command of {self._mission.id} exited {result.exit_code}",
                        op="attempt",
                        fix_hints=["run it by hand: proofbox exec"],
                        details={"command": list(argv_of(command)), "stderr": shown},
                    )
