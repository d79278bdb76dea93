"""The acts that an agent performs in a check, and the rig that makes it perform them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Run(msgspec.Struct, frozen=True):
    """Run a command line with the agent's own tool."""

    command: str


class Say(msgspec.Struct, frozen=True):
    text: str


class Recall(msgspec.Struct, frozen=True):
    """Repeat all prompts and steering texts of the thread so far."""


class ReportSteering(msgspec.Struct, frozen=True):
    """Wait until the turn is steered."""


class Hang(msgspec.Struct, frozen=True):
    """Do nothing and show no activity."""


class Fail(msgspec.Struct, frozen=True):
    """Fail in a way that is typical for the runtime."""


class WriteGarbage(msgspec.Struct, frozen=True):
    """Send unknown messages and malformed lines, then continue."""


class ReportUsage(msgspec.Struct, frozen=True):
    """Report token usage."""

    input_tokens: int
    output_tokens: int


Act = Run | Say | Recall | ReportSteering | Hang | Fail | WriteGarbage | ReportUsage
Scene = Sequence[Act]


class Rig(Protocol):
    """Makes a runtime play scenes. Raises `NotApplicable`, with a reason, for an act that it can't stage."""

    def stage(self, scenes: Sequence[Scene], scratch: Path) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """Yield settings with which a thread's n-th turn plays the n-th scene, as long as the context lasts.

        `scratch` is a directory outside the workspace for temporary files.
        """
