"""A project's boxes prepared by a script, once: what it leaves is kept, and every later box begins with it.

The script runs in a box of its own, with the network and the limits that the project's boxes have. It does not see the
project: what is kept is known by the digest of the script and of what it ran on, and must not depend on anything else.
What can be kept differs:

- `docker`: the whole root file system, as an image; the script is root in its container. /tmp, /var/tmp, /run and the
  home directory are a box's own, and not kept.
- `bubblewrap`: the home directory alone, since the rest is the host's, read-only. Each box has it under a throw-away
  layer, so that no box changes it for the next.
- others keep nothing, and refuse a script.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from proofbox.core.canonical import canonical_bytes
from proofbox.core.dirs import cache_dir
from proofbox.core.files.locks import locked
from proofbox.core.files.removal import remove_tree
from proofbox.errors import PolicyRefused, ProofboxError, ProvisionFailed
from proofbox.sandbox.client.connection import Connection
from proofbox.sandbox.client.requests import encode_env, make_request
from proofbox.sandbox.containers.prepared_image import PreparedImages
from proofbox.sandbox.contract import Box, BoxSpec, Event, Mount, OnEvent, Provider, stream_of
from proofbox.sandbox.egress.outlet import Outlet
from proofbox.sandbox.host.scratch import Scratch
from proofbox.sandbox.providers.prepared_home import PreparedHomes

PATIENCE = 1800.0
SAID = 4000  # of each stream, kept for the error
_INSIDE = "/.proofbox-provision"
Phase = Literal["started", "finished", "failed"]


class PreparedStore(Protocol):
    """How a provider keeps what a script did."""

    def basis(self, spec: BoxSpec) -> str:
        """What the script runs on, as far as it decides the outcome: an image's id, a machine's system."""

    def find(self, key: str, spec: BoxSpec) -> BoxSpec | None:
        """The spec of a box that begins with what was kept; None if there is nothing yet."""

    def begin(self, key: str, spec: BoxSpec) -> BoxSpec:
        """The spec of a box for the script."""

    def keep(self, key: str, box: Box) -> None:
        """The script has succeeded in this box."""

    def discard(self) -> None:
        """Remove what was begun and not kept. May be repeated."""


_KEEPERS: dict[str, type[PreparedStore]] = {"docker": PreparedImages, "bubblewrap": PreparedHomes}


def provision(provider: Provider, spec: BoxSpec, script: bytes, *, on_event: OnEvent | None = None) -> BoxSpec:
    """The same box, begun with what the script leaves. It is run if it never was; of several processes, by one."""
    kind = _KEEPERS.get(provider.name)
    if kind is None:
        raise PolicyRefused(
            f"{provider.name} can't keep what a provision script does",
            op="provision",
            fix_hints=["use bubblewrap or docker, or take `provision` out of the settings"],
            details={"provider": provider.name},
        )
    keeper = kind()
    digest = hashlib.sha256(script).hexdigest()
    facts = {"provider": provider.name, "script": digest, "basis": keeper.basis(spec)}
    key = hashlib.sha256(canonical_bytes(facts)).hexdigest()
    found = keeper.find(key, spec)
    if found is not None:
        return found
    with _one_at_a_time(key):
        found = keeper.find(key, spec)
        if found is None:
            _tell(on_event, "started", provider, key)
            try:
                _run(provider, keeper, key, spec, script, on_event)
            except ProofboxError as error:
                _tell(on_event, "failed", provider, key, code=error.code)
                raise
            _tell(on_event, "finished", provider, key)
            found = keeper.find(key, spec)
    if found is None:
        raise ProvisionFailed("what the script did was not kept", op="provision")
    return found


def _run(
    provider: Provider, keeper: PreparedStore, key: str, spec: BoxSpec, script: bytes, on_event: OnEvent | None
) -> None:
    with contextlib.ExitStack() as stack:
        scratch = Scratch()
        stack.callback(scratch.remove)
        place, project = scratch.path / "script", Path(tempfile.mkdtemp(prefix="proofbox-provision-"))
        stack.callback(remove_tree, project)
        place.write_bytes(script)
        place.chmod(0o555)
        policy = msgspec.structs.replace(spec.policy, access=None, disk_mb=None, mounts=(Mount(place, _INSIDE),))
        wanted = BoxSpec(label=f"{spec.label}-provision", project=project.resolve(), policy=policy, preparing=True)
        environment: dict[str, str] = {}
        if policy.network == "allow":
            outlet = Outlet(policy.allow, name=spec.label, on_event=on_event)
            stack.callback(outlet.close)
            wanted = msgspec.structs.replace(wanted, forwards=outlet.forwards, sockets=outlet.directory)
            environment = outlet.environment
        stack.callback(keeper.discard)
        box = provider.start(keeper.begin(key, wanted))
        stack.callback(box.destroy)
        argv = [_INSIDE] if script.startswith(b"#!") else ["/bin/sh", _INSIDE]
        env = encode_env({**box.environment, **environment})
        call = Connection(stream_of(box), box.kill).run(
            make_request(argv, cwd="/", env=env, timeout=PATIENCE, max_output=2 * SAID)
        )
        if call.error is not None:
            raise call.error
        result = call.result(
            provider=provider.name, isolation=box.isolation, policy=policy, diagnostics={}, oom_killed=False
        )
        if result.exit_code != 0:
            raise ProvisionFailed(
                f"the provision script ended with exit code {result.exit_code}"
                + (f" after {PATIENCE:g} s" if result.timed_out else ""),
                op="provision",
                fix_hints=["mend the script; it has the box's network, and does not see the project"],
                details={
                    "exit_code": result.exit_code,
                    "timed_out": result.timed_out,
                    "stdout": result.stdout[-SAID:],
                    "stderr": result.stderr[-SAID:],
                },
            )
        keeper.keep(key, box)


@contextlib.contextmanager
def _one_at_a_time(key: str) -> Iterator[None]:
    folder = cache_dir() / "provisioned"
    folder.mkdir(mode=0o700, exist_ok=True)
    with locked(folder / f"{key}.lock"):
        yield


def _tell(on_event: OnEvent | None, phase: Phase, provider: Provider, key: str, **more: str) -> None:
    if on_event is not None:
        on_event(Event("provision", phase, provider.name, {"key": key, **more}))
