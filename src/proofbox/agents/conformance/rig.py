"""What an agent is made to do in a check, and who makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec


class Run(msgspec.Struct, frozen=True):
    """Run a command line, by whatever tool the agent has for it."""

    command: str


class Say(msgspec.Struct, frozen=True):
    text: str


class Recall(msgspec.Struct, frozen=True):
    """Say everything that the thread was told so far: every prompt, and what it was steered by."""


class Hear(msgspec.Struct, frozen=True):
    """Go on only when it was steered."""


class Hang(msgspec.Struct, frozen=True):
    """Do nothing, and give no sign of life."""


class Fail(msgspec.Struct, frozen=True):
    """Fail, in the runtime's own way."""


class Babble(msgspec.Struct, frozen=True):
    """Say what its protocol has no name for, and lines that are none at all; then go on."""


class Spend(msgspec.Struct, frozen=True):
    """Report so many tokens."""

    input_tokens: int
    output_tokens: int


Act = Run | Say | Recall | Hear | Hang | Fail | Babble | Spend
Scene = Sequence[Act]


class Rig(Protocol):
    """Makes a runtime play scenes. One that can't stage an act raises `NotApplicable` and says why."""

    def stage(self, scenes: Sequence[Scene], scratch: Path) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """For as long as the context lasts, a thread's n-th turn plays the n-th scene; gives the runtime's settings.

        `scratch` is a directory outside the workspace for whatever is needed.
        """
