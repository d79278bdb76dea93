"""Open a box: everything from a caller's options to a started box.

Modules that start boxes are imported when one is opened: a client of a running session does not need them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from proofbox.config import settings as config
from proofbox.config.settings import Settings, load
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.files.programs import distrust, find_program
from proofbox.core.ids import IdSource
from proofbox.core.text import printable
from proofbox.errors import PolicyRefused, ProofboxError, ProviderUnavailable, SandboxLost, StartFailed
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.contract import Box, BoxSpec, Diagnostic, Event, OnEvent, Policy, Provider, ProviderSelection
from proofbox.sandbox.options import PolicyOptions, make_policy
from proofbox.sandbox.paths import resolve_project
from proofbox.sandbox.providers import ALIASES, AUTO, provider_named
from proofbox.sandbox.sessions import PREFIX, SessionInfo, SessionRecord, State, session_store

if TYPE_CHECKING:
    from proofbox.sandbox.egress.box_proxy import BoxProxy
    from proofbox.sandbox.egress.detached_proxy import DetachedProxy


_MACHINE = "boxvm: "  # says which program of a machine has ended


class OpenedBox(msgspec.Struct, frozen=True):
    """A started box, with everything needed to use it and to explain its end."""

    id: str
    created_at: str
    provider: Provider
    box: Box
    inside: BoxHandle
    proxy: BoxProxy | None = None

    def end(self) -> None:
        """Kill the box and close its proxy. Idempotent."""
        self.box.destroy()
        if self.proxy is not None:
            self.proxy.close()

    def info(self, state: State) -> SessionInfo:
        return SessionInfo.of(self.id, self.created_at, self.inside, state, ttl=None)

    def explain_loss(self, error: ProofboxError, greeted: bool) -> ProofboxError:
        """Turn the loss of a box that never greeted into `StartFailed`. Adds the stderr of its programs."""
        if not isinstance(error, SandboxLost):
            return self.inside.add_diagnostics(error)
        stderr = self.box.stderr()
        if not greeted:
            reason, hints = self.provider.explain(stderr)
            error = StartFailed(f"{self.provider.name} did not start a box: {reason}", op="start", fix_hints=hints)
        elif ended := [line for line in stderr.splitlines() if line.startswith(_MACHINE)]:
            cause = printable(ended[-1].removeprefix(_MACHINE))[:200]
            error = SandboxLost(
                f"{error.message}: {cause}", op=error.op, fix_hints=error.fix_hints, details=error.details
            )
        error.details["account"] = stderr
        return self.inside.add_diagnostics(error)


class BoxOpener:
    """Opens boxes over one project, with its settings, a clock and a source of ids."""

    def __init__(
        self,
        project_root: str | os.PathLike[str],
        *,
        on_event: OnEvent | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self.project_root = project_root
        self.settings = settings
        self.on_event = on_event
        self.clock: Clock = clock or SystemClock()
        self.ids = ids or IdSource(self.clock)

    def emit(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def probe(self, provider: str | None) -> ProviderSelection:
        """Return the provider that would be used, after a real trial."""
        from proofbox.sandbox.selection import probe

        project = resolve_project(self.project_root)
        settings = self._settings_for(project)
        policy = self._policy(project, provider, {}, settings)
        return probe(_named(provider, settings), policy, on_event=self.on_event).probe_result()

    def chosen(self, provider: str | None, options: PolicyOptions) -> str:
        """Return the name of the provider that `open` would use."""
        from proofbox.sandbox.selection import choose

        project = resolve_project(self.project_root)
        settings = self._settings_for(project)
        name, policy = _named(provider, settings), self._policy(project, provider, options, settings)
        return provider_named(name).name if name != AUTO else choose(name, policy).provider.name

    def open(self, provider: str | None, options: PolicyOptions, *, ttl: float | None = None) -> OpenedBox:
        """Start a box; with a ttl, one that listens in the session store and is recorded there."""
        from proofbox.sandbox.selection import choose

        project = resolve_project(self.project_root)
        settings = self._settings_for(project)
        policy = self._policy(project, provider, options, settings)
        choice = choose(_named(provider, settings), policy, on_event=self.on_event)
        id, created_at = self.ids.new_id(PREFIX), isoformat(self.clock.now())
        self.emit(Event("session", "starting", id, {"provider": choice.provider.name}))
        self._prepare(choice.provider, policy, detached=ttl is not None)
        spec = BoxSpec(label=id, project=project, policy=policy, template=bool(settings.vm_template))
        with contextlib.ExitStack() as on_failure:
            proxy: BoxProxy | DetachedProxy | None = None
            kept: BoxProxy | None = None
            released: DetachedProxy | None = None
            if policy.doors and ttl is not None:
                raise PolicyRefused(
                    "doors are not supported in a session that outlives its client: no process would serve them",
                    op="start",
                    fix_hints=["start the session without `detached`, and keep it in one process"],
                )
            script = config.script(project, settings, given=self.settings is not None)
            if script is not None:
                from proofbox.sandbox.provisioning import provision

                spec = provision(choice.provider, spec, script, on_event=self.on_event)
            store = session_store()
            if ttl is not None:
                on_failure.callback(store.forget, id)
                spec = msgspec.structs.replace(spec, listen=store.create(id), ttl=ttl, log=store.log(id))
            if policy.network == "allow":
                if spec.listen is None:
                    from proofbox.sandbox.egress.box_proxy import BoxProxy

                    proxy = kept = BoxProxy(policy.allow, name=id, on_event=self.on_event)
                else:
                    from proofbox.sandbox.egress.detached_proxy import DetachedProxy

                    log = store.network_log(id)
                    proxy = released = DetachedProxy(policy.allow, name=id, session=spec.listen, log=log)
                on_failure.callback(proxy.close)
                spec = msgspec.structs.replace(spec, forwards=proxy.forwards, sockets=proxy.directory)
            box = self._start(choice.provider, spec, choice.diagnostics)
            on_failure.callback(box.destroy)
            inside = BoxHandle.of(
                box,
                project,
                provider=choice.provider.name,
                diagnostics=choice.started(),
                forwards=settings.env,
                more=proxy.environment if proxy is not None else {},
            )
            if ttl is not None:
                store.save(SessionRecord(id, created_at, ttl, inside, box.holder))
            if released is not None:
                released.release()
            on_failure.pop_all()
        return OpenedBox(id, created_at, choice.provider, box, inside, kept)

    def _policy(self, project: Path, provider: str | None, options: PolicyOptions, settings: Settings) -> Policy:
        policy = make_policy(project, options, settings)
        name = _named(provider, settings)
        distrust((project, *(mount.host for mount in policy.mounts if mount.writable)))
        if ALIASES.get(name, name) in (AUTO, "bubblewrap"):
            find_program("bwrap")  # `auto` would take a refused program for a missing one
        return policy

    def _settings_for(self, project: Path) -> Settings:
        return load(project) if self.settings is None else self.settings

    def _prepare(self, provider: Provider, policy: Policy, *, detached: bool) -> None:
        """Get what the first box of a provider needs: the default image, or the kernel for virtual machines.

        That may take minutes, so a policy that would be refused at the start is refused first.
        """

        def tell(line: str) -> None:
            self.emit(Event("provision", "started", provider.name, {"image": line}))

        if provider.name == "docker" and policy.image is None:
            from proofbox.sandbox.containers.images import prepare_default_image as prepare
        elif provider.name == "vm":
            from proofbox.sandbox.machines.kernel import prepare_kernel as prepare
        else:
            return
        from proofbox.sandbox.enforcement import refuse_unenforceable

        refuse_unenforceable(provider.name, policy, provider.enforcement(policy), detached=detached)
        prepare(tell)

    def _start(self, provider: Provider, spec: BoxSpec, diagnostics: Mapping[str, Diagnostic]) -> Box:
        from proofbox.sandbox.enforcement import start_box

        try:
            return start_box(provider, spec)
        except ProofboxError as error:
            found = dict(diagnostics)
            if isinstance(error, ProviderUnavailable):
                found[provider.name] = Diagnostic(False, provider.isolation, error.message, error.fix_hints)
            error.details.setdefault("provider", provider.name)
            error.details.setdefault("diagnostics", msgspec.to_builtins(found))
            self.emit(Event("session", "failed", spec.label, {"code": error.code}))
            raise


def _named(provider: str | None, settings: Settings) -> str:
    return provider if provider is not None else settings.provider if settings.provider is not None else AUTO
