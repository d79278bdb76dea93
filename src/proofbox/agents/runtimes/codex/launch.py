"""Prepare the start of Codex: its home, its access to the model, and the mounts of its box."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from proofbox.agents.contract import SessionOptions
from proofbox.agents.gateway.server import PREFIX, ModelGateway
from proofbox.agents.runtimes.codex.binary import Binary
from proofbox.agents.runtimes.codex.program import Launch
from proofbox.agents.runtimes.codex.settings import CodexSettings, config_toml
from proofbox.core.files.atomic import write_document
from proofbox.core.files.removal import remove_tree
from proofbox.errors import UsageError
from proofbox.sandbox.contract import Door, Mount

GATEWAY_PORT = 4011
INSIDE = "/run/codex"


@contextlib.asynccontextmanager
async def open_model_route(
    gateway: ModelGateway, options: SessionOptions, directory: Path
) -> AsyncIterator[tuple[str, tuple[Door, ...]]]:
    """Run the gateway. Yield the address for Codex, and the door in the box that leads to the gateway."""
    if not options.sandboxed or options.policy.get("network") == "full":  # the agent shares the host's loopback
        async with gateway.listening_on_loopback() as base_url:
            yield base_url, ()
        return
    os.mkdir(directory, 0o700)
    try:
        async with gateway.listening_at(directory) as path:
            yield f"http://127.0.0.1:{GATEWAY_PORT}{PREFIX}", (Door(GATEWAY_PORT, path),)
    finally:
        remove_tree(directory)


def prepare(
    options: SessionOptions,
    settings: CodexSettings,
    binary: Binary,
    home: Path,
    base_url: str,
    doors: tuple[Door, ...],
) -> Launch:
    _write_home(home, config_toml(settings, base_url), options)
    program, inside = str(binary.path), str(home)
    mounts: tuple[Mount, ...] = ()
    policy = options.policy.copy()
    if options.sandboxed:
        inside = f"{INSIDE}/home"
        program, mount = _program_inside(binary)
        mounts = (mount, Mount(home, inside, writable=True))
        if policy.get("network") is None:
            policy["network"] = "none"
    return Launch(
        argv=[program, "app-server"],
        env={**options.env, "CODEX_HOME": inside},
        provider=options.provider if options.sandboxed else "off",
        policy=policy,
        mounts=mounts,
        doors=doors,
        seconds=options.request_timeout,
    )


def _write_home(home: Path, config: str, options: SessionOptions) -> None:
    """Write the configuration into the home.

    An agent could write to an existing home, so no link in it is followed and nothing in it is executed on the host.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not options.sandboxed and any(home.iterdir()):
        raise UsageError(
            "a home that an agent could write to can't be used outside a box",
            op="start",
            fix_hints=["resume in a box, or start with a new home"],
        )
    write_document(home / "config.toml", config.encode(), mode=0o600)
    if os.geteuid() == 0:  # commands in the box run as the owner of the workspace
        owner = options.workspace.stat()
        os.chown(home, owner.st_uid, owner.st_gid)
        for _, folders, files, fd in os.fwalk(home):
            for name in (*folders, *files):
                os.chown(name, owner.st_uid, owner.st_gid, dir_fd=fd, follow_symlinks=False)


def _program_inside(binary: Binary) -> tuple[str, Mount]:
    if binary.package is None:
        return f"{INSIDE}/codex", Mount(binary.path, f"{INSIDE}/codex")
    path = binary.path.relative_to(binary.package)
    return f"{INSIDE}/package/{path}", Mount(binary.package, f"{INSIDE}/package")
