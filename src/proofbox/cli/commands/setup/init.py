"""`init`: write a project's settings and trust them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec

from proofbox.cli import flags
from proofbox.cli.output import Document, show
from proofbox.cli.parameters import Parameter
from proofbox.config.settings import Settings
from proofbox.errors import UsageError


class InitDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.init/1"
    path: str
    settings: Settings
    trusted: bool
    """Always true: this version of the file applies from now on."""
    written: bool
    """False if an existing file was trusted without changes."""


def init(
    *,
    project: flags.Project = Path(),
    provider: flags.Provider = None,
    box: flags.Box = flags.NO_BOX_FLAGS,
    env: Annotated[
        tuple[str, ...],
        Parameter(name="--env", help="A variable of your environment that every command gets."),
    ] = (),
    provision: Annotated[
        str | None, Parameter(name="--provision", help="A script of the project that prepares its boxes, run once.")
    ] = None,
    trust: Annotated[bool, Parameter(name="--trust", help="Trust the existing file; write nothing.")] = False,
    force: Annotated[bool, Parameter(name="--force", help="Replace an existing file.")] = False,
    json: flags.Json = False,
) -> int:
    """Write .proofbox/config.toml, the default settings for boxes over this project. Without flags, ask at a terminal.

    A file that gives a box more than the defaults (no sandbox, the network, mounts, variables, a provision script)
    applies only once you trust it: by writing it with this command, or with --trust after reading it.

    For example:
      proofbox init --access overlay --memory 2048
      proofbox init --trust
    """
    from proofbox.config.settings import PROJECT_FILE
    from proofbox.sandbox.initialize import initialize

    settings = Settings(
        provider=provider,
        image=box.image,
        runtime=box.runtime,
        network=box.network,
        access=box.access,
        cpus=box.cpus,
        memory=box.memory,
        pids=box.pids,
        disk=box.disk,
        mounts=box.mount,
        env=env,
        provision=provision,
    )
    asks = settings == Settings() and not (trust or json) and sys.stdin is not None and sys.stdin.isatty()
    if asks and (force or not (project / PROJECT_FILE).exists()):
        settings = _ask()
    done = initialize(project, settings, force=force, trust=trust)
    document = InitDocument(path=str(done.path), settings=done.settings, trusted=True, written=done.written)
    show(document, lambda: f"{'written' if done.written else 'trusted'}: {done.path}", as_json=json)
    return 0


def _ask() -> Settings:
    """Ask for the settings at a terminal; an empty answer means the default."""

    def answer(question: str) -> str | None:
        return input(f"{question}: ").strip() or None

    def words(question: str) -> tuple[str, ...]:
        return tuple((answer(question) or "").split())

    def size(question: str) -> int | str | None:
        text = answer(question)
        return int(text) if text and text.isdecimal() else text

    answers = {
        "provider": answer("Provider (auto, bubblewrap, docker, off) [auto]"),
        "image": answer("Image for docker [none]"),
        "access": answer("Access to the project (rw, ro, overlay) [rw]"),
        "cpus": answer("Cores [no limit]"),
        "memory": size("Memory limit in MB, or with a unit as in 2g [none]"),
        "mounts": words("Mounts, HOST:GUEST[:ro|rw], separated by spaces [none]"),
        "env": words("Names of your variables that every command gets [none]"),
        "provision": answer("A script of the project that prepares its boxes once [none]"),
    }
    try:
        return msgspec.convert({name: value for name, value in answers.items() if value}, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"invalid answer: {error}", op="init", fix_hints=["run it again, or use flags: proofbox init --help"]
        ) from None
