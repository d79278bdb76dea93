"""`new_plan`: write a commented plan to start from."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Final

from proofbox.core.files.atomic import create_only
from proofbox.errors import UsageError

NAME: Final = "plan.toml"


def new_plan(directory: str | os.PathLike[str]) -> Path:
    """Write a commented example of a plan to `directory/plan.toml`, and return its path.

    For example:

        path = proofbox.new_plan("measurements")
        run = proofbox.run_plan(str(path), "plan-runs")

    The directory is created if it does not exist. An existing file is never replaced.
    """
    place = Path(directory)
    path = place / NAME
    try:
        place.mkdir(parents=True, exist_ok=True)
        create_only(path, (files("proofbox.probes") / "example.toml").read_bytes())
    except FileExistsError:
        raise UsageError(
            f"{path} already exists" if place.is_dir() else f"{place} is not a directory",
            op="new plan",
            fix_hints=["choose another directory: nothing is replaced"],
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", op="new plan") from error
    return path
