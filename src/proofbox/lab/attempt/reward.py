"""A reward: the number that a verifier's commands write to a directory. The files may come from a hostile program.

`reward.json` holds an object of numbers: its member `reward` is the reward; without it, the smallest number is the
reward, because nothing says how to weigh the numbers. `reward.txt` holds one number. If both exist, they must agree.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from proofbox.core.canonical import CanonicalError, parse_strict

TEXT, OBJECT = "reward.txt", "reward.json"
MAX_BYTES = 64 * 1024
MAX_VALUES = 1000
PASSING = 1.0

Problem = Literal["reward_missing", "reward_malformed"]


class Reward(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reward that was written. Without a value, `problem` says why."""

    value: float | None = None
    """The mission passes with 1.0 or more; null if there is no valid reward."""
    values: dict[str, float] = {}
    """Every number of `reward.json`."""
    problem: Problem | None = None
    """`reward_missing`: nothing was written. `reward_malformed`: not a number, or two different ones."""
    detail: str = ""

    @property
    def passed(self) -> bool | None:
        return None if self.value is None else self.value >= PASSING


def combine_rewards(turns: Sequence[tuple[Reward | None, float | None]], how: Literal["mean", "final"]) -> Reward:
    """Combine the rewards of several turns, each with its minimum. Turns after one below its minimum do not count.

    None instead of a reward: the turn did not begin.
    """
    values: list[float] = []
    stopped = False
    for number, (reward, least) in enumerate(turns, 1):
        if reward is not None and reward.value is None and not stopped:
            return Reward(problem=reward.problem, detail=f"turn {number}: {reward.detail}")
        values.append(0.0 if stopped or reward is None or reward.value is None else reward.value)
        stopped = stopped or (least is not None and values[-1] < least)
    value = values[-1] if how == "final" else sum(values) / len(values)
    return Reward(value=value, values={f"turn {number}": each for number, each in enumerate(values, 1)})


def read_reward(directory: Path) -> Reward:
    try:
        text, document = _read(directory, TEXT), _read(directory, OBJECT)
        values = {} if document is None else _numbers(document)
        found = [] if document is None else [values.get("reward", min(values.values()))]
        found += [] if text is None else [_number(text)]
        if not found:
            return Reward(problem="reward_missing", detail=f"neither {TEXT} nor {OBJECT} was written")
    except _Malformed as error:
        return Reward(problem="reward_malformed", detail=str(error))
    if found[0] != found[-1]:
        detail = f"{OBJECT} has {found[0]:g} but {TEXT} has {found[-1]:g}"
        return Reward(problem="reward_malformed", detail=detail)
    return Reward(value=found[0], values=values)


class _Malformed(Exception):
    pass


def _read(directory: Path, name: str) -> bytes | None:
    """Return the file's bytes, or None. Does not follow a link or block on a pipe."""
    try:
        fd = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Malformed(f"{name} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _Malformed(f"{name} is not a regular file")
        data = os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise _Malformed(f"{name} is larger than {MAX_BYTES >> 10} KiB")
    return data


def _number(data: bytes) -> float:
    try:
        value = float(data.decode("ascii").strip())
    except ValueError:
        raise _Malformed(f"{TEXT} is not a number") from None
    if not math.isfinite(value):
        raise _Malformed(f"{TEXT} is not a finite number")
    return value


def _numbers(data: bytes) -> dict[str, float]:
    try:
        found = parse_strict(data)
    except CanonicalError as error:
        raise _Malformed(f"{OBJECT} is not valid JSON: {error}") from None
    if not isinstance(found, dict) or not 0 < len(found) <= MAX_VALUES:
        raise _Malformed(f"{OBJECT} is not an object of numbers")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _Malformed(f"{OBJECT}: {name[:80]!r} is not a number")
    return {name[:200]: float(value) for name, value in found.items()}
