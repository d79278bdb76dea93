"""Checks for pairs of a sync and an async class: equal interfaces, and no async call that blocks its event loop."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import anyio
import pytest

PATIENCE = 60.0

# Calls of the C library and the kernel that may wait for a disk, a process, another program or a timer.
BLOCKING = frozenset(
    {
        *("open", "stat", "lstat", "statvfs", "scandir", "listdir", "access", "readlink", "mkdir", "rmdir", "unlink"),
        *("rename", "replace", "chmod", "chown", "utime", "link", "symlink", "fsync", "sync_file_range"),
        *("waitpid", "wait4", "waitid", "fork_exec", "posix_spawn", "flock", "lockf", "sleep", "poll", "select"),
        *("connect", "accept", "sendall", "getaddrinfo", "read", "readall", "readinto", "readline", "write", "flush"),
    }
)
OWNERS = frozenset({"posix", "io", "_io", "time", "select", "_socket", "socket", "fcntl", "_posixsubprocess"})
LOOPS = ("anyio", "asyncio", "trio", "selectors", "httpcore2")  # and a library written for them


def assert_same_interface(sync: type, other: type) -> None:
    """Assert that two classes have the same public methods, parameters, defaults, properties and docstrings."""
    ours, theirs = _public(sync), _public(other)
    assert set(ours) == set(theirs)
    for name, signature in ours.items():
        same = theirs[name]
        assert list(same.parameters.values()) == list(signature.parameters.values()), name
        assert str(same.return_annotation).replace("Async", "") == str(signature.return_annotation), name
        assert inspect.iscoroutinefunction(vars(other)[name]), name
        assert vars(sync)[name].__doc__, f"{sync.__name__}.{name} has no docstring"
        assert vars(other)[name].__doc__, f"{other.__name__}.{name} has no docstring"
    properties = [{n for n, v in vars(kind).items() if isinstance(v, property)} for kind in (sync, other)]
    assert properties[0] == properties[1]
    made = [
        [(p.name, p.kind, p.default) for p in inspect.signature(kind).parameters.values()] for kind in (sync, other)
    ]
    assert made[0] == made[1]


def coroutines(kind: type) -> set[str]:
    return {
        name for name, value in vars(kind).items() if not name.startswith("_") and inspect.iscoroutinefunction(value)
    }


@contextlib.contextmanager
def blocking_calls() -> Iterator[list[str]]:
    """Collect the blocking calls that code of proofbox makes on this thread, with the place in proofbox."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or function.__name__ not in BLOCKING:
            return
        if (function.__module__ or type(function.__self__).__module__) not in OWNERS:
            return  # the same name elsewhere, such as `str.replace`
        caller: FrameType | None = frame
        while caller is not None:
            module = str(caller.f_globals.get("__name__", ""))
            if module.startswith(LOOPS) or module.startswith(("importlib", "_frozen_importlib")):
                return  # the loop's own work, or a module that is imported once
            if module.startswith("proofbox"):
                found.append(f"{function.__name__} in {module}.{caller.f_code.co_name}")
                return
            caller = caller.f_back

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)


class Ticker:
    """Counts in the event loop. A watched function first waits for the next tick, which never comes while it blocks the
    loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._ticked = threading.Condition()
        self._ticks = 0
        self.watched: list[str] = []

    async def run(self) -> None:
        while True:
            with self._ticked:
                self._ticks += 1
                self._ticked.notify_all()
            await anyio.sleep(0.005)

    def watch(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def after_a_tick(*args: Any, **options: Any) -> Any:
            with self._ticked:
                now = self._ticks
                assert self._ticked.wait_for(lambda: self._ticks > now, PATIENCE), f"{name} blocks the event loop"
            self.watched.append(name)
            return function(*args, **options)

        self._monkeypatch.setattr(owner, name, after_a_tick)


def _public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(value)
    }
