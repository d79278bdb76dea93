"""Prepare a project's boxes with a script. It runs once; its result is stored, and later boxes start from it.

The script runs in a separate box, with the network and the limits of the project's boxes. It can't see the project: the
stored result is identified by the digest of the script and of its base, and must not depend on anything else. Providers
differ in what they store:

- `docker`: the whole root file system, as an image; the script runs as root in its container. /tmp, /var/tmp, /run and
  the home directory are private to each box and are not stored.
- `bubblewrap`: only the home directory, since the rest is the host's, read-only. Each box has it under a throw-away
  layer, so that no box changes it for the next.
- The others can't store anything, and refuse a script.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from proofbox.core.dirs import cache_dir
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.errors import PolicyRefused, ProofboxError, ProvisionFailed
from proofbox.sandbox.client.connection import Connection
from proofbox.sandbox.client.requests import encode_env, make_request, make_settings
from proofbox.sandbox.contract import Box, BoxSpec, Event, Mount, OnEvent, Provider, stream_of
from proofbox.sandbox.egress.box_proxy import BoxProxy
from proofbox.sandbox.enforcement import start_box
from proofbox.sandbox.host.scratch import Scratch

PROVISION_TIMEOUT = 1800.0
OUTPUT_SHOWN = 4000  # bytes of each stream, for the error
_INSIDE = "/.proofbox-provision"
Phase = Literal["started", "finished", "failed"]


class PreparedStore(Protocol):
    """Stores the result of a provision script for one provider."""

    def basis(self, spec: BoxSpec) -> str:
        """Identify what affects the result besides the script: an image id, the host's system."""

    def find(self, key: str, spec: BoxSpec) -> BoxSpec | None:
        """Return the spec of a box that starts from the stored result; None if nothing is stored."""

    def begin(self, key: str, spec: BoxSpec) -> BoxSpec:
        """Return the spec of a box that runs the script."""

    def keep(self, key: str, box: Box) -> None:
        """Store the result of the script, which has succeeded in this box."""

    def discard(self) -> None:
        """Remove a result that was begun and not stored. Idempotent."""


def provision(provider: Provider, spec: BoxSpec, script: bytes, *, on_event: OnEvent | None = None) -> BoxSpec:
    """Return the spec of a box that starts from the script's result. Run the script first if needed, in one process."""
    import hashlib

    from proofbox.core.canonical import canonical_bytes

    prepared = _store_for(provider)
    digest = hashlib.sha256(script).hexdigest()
    facts = {"provider": provider.name, "script": digest, "basis": prepared.basis(spec)}
    key = hashlib.sha256(canonical_bytes(facts)).hexdigest()
    found = prepared.find(key, spec)
    if found is not None:
        return found
    with _one_at_a_time(key):
        found = prepared.find(key, spec)
        if found is None:
            _emit(on_event, "started", provider, key)
            try:
                _run(provider, prepared, key, spec, script, on_event)
            except ProofboxError as error:
                _emit(on_event, "failed", provider, key, code=error.code)
                raise
            _emit(on_event, "finished", provider, key)
            found = prepared.find(key, spec)
    if found is None:
        raise ProvisionFailed("the result of the provision script was not stored", op="provision")
    return found


def _store_for(provider: Provider) -> PreparedStore:
    if provider.name == "docker":
        from proofbox.sandbox.containers.prepared_image import PreparedImages

        return PreparedImages()
    if provider.name in ("bubblewrap", "vm"):
        from proofbox.sandbox.providers.prepared_home import PreparedHomes

        return PreparedHomes()
    raise PolicyRefused(
        f"{provider.name} does not support provision scripts",
        op="provision",
        fix_hints=["use bubblewrap, docker or vm, or remove `provision` from the settings"],
        details={"provider": provider.name},
    )


def _run(
    provider: Provider, prepared: PreparedStore, key: str, spec: BoxSpec, script: bytes, on_event: OnEvent | None
) -> None:
    from tempfile import mkdtemp

    with contextlib.ExitStack() as stack:
        scratch = Scratch()
        stack.callback(scratch.remove)
        place, project = scratch.path / "script", Path(mkdtemp(prefix="proofbox-provision-"))
        stack.callback(remove_tree, project)
        place.write_bytes(script)
        place.chmod(0o555)
        policy = msgspec.structs.replace(spec.policy, access=None, disk_mb=None, mounts=(Mount(place, _INSIDE),))
        wanted = BoxSpec(label=f"{spec.label}-provision", project=project.resolve(), policy=policy, preparing=True)
        environment: dict[str, str] = {}
        if policy.network == "allow":
            proxy = BoxProxy(policy.allow, name=spec.label, on_event=on_event)
            stack.callback(proxy.close)
            wanted = msgspec.structs.replace(wanted, forwards=proxy.forwards, sockets=proxy.directory)
            environment = proxy.environment
        stack.callback(prepared.discard)
        box = start_box(provider, prepared.begin(key, wanted))
        stack.callback(box.destroy)
        argv = [_INSIDE] if script.startswith(b"#!") else ["/bin/sh", _INSIDE]
        env = encode_env({**box.environment, **environment})
        settings = make_settings("/", timeout=PROVISION_TIMEOUT, max_output=2 * OUTPUT_SHOWN)
        call = Connection(stream_of(box), box.kill).run(make_request(argv, settings, env))
        if call.error is not None:
            raise call.error
        result = call.result(
            provider=provider.name, isolation=box.isolation, policy=policy, diagnostics={}, oom_killed=False
        )
        if result.exit_code != 0:
            raise ProvisionFailed(
                f"the provision script failed with exit code {result.exit_code}"
                + (f" after {PROVISION_TIMEOUT:g} s" if result.timed_out else ""),
                op="provision",
                fix_hints=["fix the script; it has the box's network, and can't see the project"],
                details={
                    "exit_code": result.exit_code,
                    "timed_out": result.timed_out,
                    "stdout": result.stdout[-OUTPUT_SHOWN:],
                    "stderr": result.stderr[-OUTPUT_SHOWN:],
                },
            )
        prepared.keep(key, box)


@contextlib.contextmanager
def _one_at_a_time(key: str) -> Iterator[None]:
    folder = cache_dir() / "provisioned"
    folder.mkdir(mode=0o700, exist_ok=True)
    with locked(folder / f"{key}.lock"):
        yield


def _emit(on_event: OnEvent | None, phase: Phase, provider: Provider, key: str, **more: str) -> None:
    if on_event is not None:
        on_event(Event("provision", phase, provider.name, {"key": key, **more}))
