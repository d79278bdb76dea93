"""Opens what a user names as a suite: a suite file, or a directory of Harbor tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from proofbox.errors import UsageError
from proofbox.lab.suite.harbor.tasks import read_tasks
from proofbox.lab.suite.reading import Suite, read_suite
from proofbox.lab.suite.selecting import select_missions


def open_suite(
    spec: Path,
    *,
    host_root: bool = False,
    provider: str | None = None,
    to_run: bool = False,
    build: bool = False,
    missions: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Suite:
    """Read a suite file, or a directory of Harbor tasks. `to_run`: check what is needed to run it here.

    `missions` (patterns for ids) and `tags` select missions: the suite then consists of these alone, written as JSON.
    """
    if host_root and build:
        raise UsageError("--build and --host-root cannot be combined: with --host-root, no image is used", op="suite")
    if not spec.is_dir():
        if host_root or build:
            flag = "--host-root" if host_root else "--build"
            raise UsageError(f"{flag} applies only to Harbor tasks, and this is a suite file", op="suite")
        suite = read_suite(spec, unpacking=not to_run)
        if not missions and not tags:
            return suite
        return select_missions(suite, str(spec), missions, tags, as_json=spec.suffix == ".json")
    required = "bubblewrap" if host_root else "docker"
    if provider not in (None, required):
        raise UsageError(
            f"Harbor tasks cannot run in {provider} here: they need docker, or bubblewrap with --host-root",
            op="suite",
            fix_hints=["omit --provider", "run with this host's programs, not comparable: --host-root"],
        )
    return read_tasks(spec, host_root=host_root, to_run=to_run, build=build, missions=missions, tags=tags)
