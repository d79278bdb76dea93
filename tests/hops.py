"""Records the modules through which a command of proofbox reaches a function, over tasks, threads and processes.

A program executes this file before it imports proofbox, and writes to HOPS_FILE, one JSON array per call of a TARGETS
function: the modules from the command line to that function, without successive duplicates.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import json
import os
import subprocess
import sys
import threading
from types import CodeType, FrameType
from typing import Any

TARGETS = ("sandbox.client.wire:execute", "evidence.bundle.writer:BundleWriter.commit")
PACKAGE = "/src/proofbox/"
Chain = tuple[str, ...]
Owner = tuple[int, int]

inherited: Chain = tuple(json.loads(os.environ.get("HOPS_FROM", "[]")))
current: contextvars.ContextVar[Chain] = contextvars.ContextVar("current", default=inherited)
started_by: contextvars.ContextVar[tuple[Owner | None, Chain]] = contextvars.ContextVar(
    "started_by", default=(None, inherited)
)
names: dict[CodeType, str] = {}


def module_of(frame: FrameType) -> str:
    code = frame.f_code
    if code not in names:
        _, found, path = code.co_filename.rpartition(PACKAGE)
        names[code] = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") if found else ""
    return names[code]


def on_stack(frame: FrameType | None) -> list[str] | None:
    """Return the modules of proofbox on the stack of this thread or task; None while something is imported."""
    found: list[str] = []
    while frame is not None:
        code, module = frame.f_code, module_of(frame)
        if code.co_filename.startswith("<frozen importlib"):
            return None
        if code.co_name == "_run" and code.co_filename.endswith("asyncio/events.py"):
            break  # the event loop itself did not call the task
        if module:
            found.append(module)
        frame = frame.f_back
    return found[::-1]


def owner() -> Owner:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident(), id(task)


def profile(frame: FrameType, event: str, _: object) -> None:
    if event not in ("call", "return") or not module_of(frame):
        return
    modules = on_stack(frame if event == "call" else frame.f_back)
    if modules is None:
        return
    # A task or thread starts with a copy of the variables of the task or thread that started it.
    last_owner, above = started_by.get()
    if last_owner != owner():
        above = current.get()
        started_by.set((owner(), above))
    chain = tuple(name for name, _ in itertools.groupby((*above, *modules)))
    current.set(chain)
    if event == "call" and f"{chain[-1]}:{frame.f_code.co_qualname}" in TARGETS:
        with open(os.environ["HOPS_FILE"], "a") as file:
            file.write(json.dumps(chain) + "\n")


class Popen(subprocess.Popen[Any]):
    """Also records in child interpreters of proofbox."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        if isinstance(args, list) and args[0] == sys.executable and "-c" in args:
            place = args.index("-c") + 1
            args = [*args[:place], prelude() + args[place], *args[place + 1 :]]
            options["env"] = {**options["env"], "HOPS_FROM": json.dumps(current.get())}
        super().__init__(args, *more, **options)


def prelude() -> str:
    return f"exec(compile(open({__file__!r}).read(), {__file__!r}, 'exec'), {{'__file__': {__file__!r}}})\n"


subprocess.Popen = Popen  # type: ignore[misc]
threading.setprofile(profile)
sys.setprofile(profile)
