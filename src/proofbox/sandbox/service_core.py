"""Code shared by the sync and the async service: everything from a caller's options to a started box."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from proofbox.config import settings as config
from proofbox.config.settings import Settings, load
from proofbox.core.clock import Clock, SystemClock, isoformat
from proofbox.core.dirs import state_dir
from proofbox.core.ids import IdSource
from proofbox.errors import PolicyRefused, ProofboxError, ProviderUnavailable, SandboxLost, StartFailed
from proofbox.sandbox.box_handle import BoxHandle
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.ownership import kill_container, our_containers, reap_containers
from proofbox.sandbox.contract import Box, BoxSpec, Diagnostic, Event, OnEvent, Policy, ProbeResult, Provider
from proofbox.sandbox.egress.detached_outlet import DetachedOutlet
from proofbox.sandbox.egress.outlet import Outlet
from proofbox.sandbox.enforcement import start_box
from proofbox.sandbox.host import cgroups
from proofbox.sandbox.host.processes import kill_group_of
from proofbox.sandbox.host.scratch import sweep_scratch
from proofbox.sandbox.options import PolicyOptions, make_policy
from proofbox.sandbox.paths import refuse_planted_program, resolve_project
from proofbox.sandbox.providers import ALIASES, AUTO, provider_named
from proofbox.sandbox.provisioning import provision
from proofbox.sandbox.selection import choose, probe
from proofbox.sandbox.sessions import PREFIX, SessionInfo, SessionRecord, SessionStore, State

ENDED_REMEMBERED = 1000


class OpenedBox(msgspec.Struct, frozen=True):
    """A started box, with everything needed to use it and to explain its end."""

    id: str
    created_at: str
    provider: Provider
    box: Box
    inside: BoxHandle
    outlet: Outlet | None = None

    def end(self) -> None:
        """Kill the box and close its outlet. Can be repeated."""
        self.box.destroy()
        if self.outlet is not None:
            self.outlet.close()

    def info(self, state: State) -> SessionInfo:
        return SessionInfo.of(self.id, self.created_at, self.inside, state, ttl=None)

    def explain_loss(self, error: ProofboxError, greeted: bool) -> ProofboxError:
        """Turn the loss of a box that never greeted into `StartFailed`. Adds the stderr of its programs."""
        if not isinstance(error, SandboxLost):
            return self.inside.annotate(error)
        account = self.box.account()
        if not greeted:
            reason, hints = self.provider.explain(account)
            error = StartFailed(f"{self.provider.name} did not start a box: {reason}", op="start", fix_hints=hints)
        error.details["account"] = account
        return self.inside.annotate(error)


def kill_detached(record: SessionRecord) -> None:
    """Kill the box of a detached session whose agent does not answer, through its process group or its engine."""
    if record.holder:
        cgroups.sweep(cgroups.tree(), record.id)
        kill_group_of(record.holder)
        return
    engine = ContainerEngine.find()
    container = our_containers(engine).get(record.id)
    if container is not None:
        kill_container(engine, container)


class ServiceCore:
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
        self._clock: Clock = clock or SystemClock()
        self._ids = ids or IdSource(self._clock)
        self._ended_here: dict[str, SessionInfo] = {}

    @property
    def store(self) -> SessionStore:
        return SessionStore(state_dir() / "sessions")

    def tell(self, event: Event) -> None:
        if self.on_event is not None:
            self.on_event(event)

    def probe(self, provider: str | None) -> ProbeResult:
        project = resolve_project(self.project_root)
        settings = self._settings_for(project)
        policy = self._policy(project, provider, {}, settings)
        return probe(_named(provider, settings), policy, on_event=self.on_event).probe_result()

    def chosen(self, provider: str | None, options: PolicyOptions) -> str:
        """Return the name of the provider that `open` would use."""
        project = resolve_project(self.project_root)
        settings = self._settings_for(project)
        name, policy = _named(provider, settings), self._policy(project, provider, options, settings)
        return provider_named(name).name if name != AUTO else choose(name, policy).provider.name

    def open(self, provider: str | None, options: PolicyOptions, *, ttl: float | None = None) -> OpenedBox:
        """Start a box; with a ttl, one that listens in the session store and is recorded there."""
        project = resolve_project(self.project_root)
        settings = self._settings_for(project)
        policy = self._policy(project, provider, options, settings)
        choice = choose(_named(provider, settings), policy, on_event=self.on_event)
        id, created_at = self._ids.new_id(PREFIX), isoformat(self._clock.now())
        self.tell(Event("session", "starting", id, {"provider": choice.provider.name}))
        spec = BoxSpec(label=id, project=project, policy=policy)
        with contextlib.ExitStack() as on_failure:
            outlet: Outlet | DetachedOutlet | None = None
            if policy.doors and ttl is not None:
                raise PolicyRefused(
                    "doors are not supported in a session that outlives its client: no process would serve them",
                    op="start",
                    fix_hints=["start the session without `detached`, and keep it in one process"],
                )
            script = config.script(project, settings, given=self.settings is not None)
            if script is not None:
                spec = provision(choice.provider, spec, script, on_event=self.on_event)
            store = self.store
            if ttl is not None:
                on_failure.callback(store.forget, id)
                spec = msgspec.structs.replace(spec, listen=store.create(id), ttl=ttl, log=store.log(id))
            if policy.network == "allow":
                if spec.listen is None:
                    outlet = Outlet(policy.allow, name=id, on_event=self.on_event)
                else:
                    outlet = DetachedOutlet(policy.allow, name=id, session=spec.listen, log=store.network_log(id))
                on_failure.callback(outlet.close)
                spec = msgspec.structs.replace(spec, forwards=outlet.forwards, sockets=outlet.directory)
            box = self._start(choice.provider, spec, choice.diagnostics)
            on_failure.callback(box.destroy)
            inside = BoxHandle.of(
                box,
                project,
                provider=choice.provider.name,
                diagnostics=choice.diagnostics,
                forwards=settings.env,
                more=outlet.environment if outlet is not None else {},
            )
            if ttl is not None:
                store.save(SessionRecord(id, created_at, ttl, inside, box.holder))
            if isinstance(outlet, DetachedOutlet):
                outlet.release()
                outlet = None
            on_failure.pop_all()
        return OpenedBox(id, created_at, choice.provider, box, inside, outlet)

    def sessions(self) -> list[SessionInfo]:
        store = self.store
        return [store.info(record) for record in store.records()]

    def remember_end(self, ended: SessionInfo) -> None:
        """Keep the information about an ended session, for the last `ENDED_REMEMBERED` sessions."""
        self._ended_here[ended.id] = ended
        if len(self._ended_here) > ENDED_REMEMBERED:
            del self._ended_here[next(iter(self._ended_here))]

    def ended_here(self, session_id: str) -> SessionInfo | None:
        return self._ended_here.get(session_id)

    def session_info(self, session_id: str) -> SessionInfo:
        """Return the information about a session that ended in this process, or a detached one."""
        ended = self.ended_here(session_id)
        if ended is not None:
            return ended
        store = self.store
        return store.info(store.load(session_id))

    def ended(self, record: SessionRecord) -> None:
        """Record that a detached session was stopped, and remove the rest of it."""
        self.store.save(msgspec.structs.replace(record, stopped=True))
        cgroups.sweep(cgroups.tree(), record.id)

    def prune(self) -> list[str]:
        """Remove every session that has ended, and the leftovers of interrupted starts."""
        store = self.store
        gone = [record.id for record in store.records() if not store.running(record.id)] + store.leftovers()
        for id in gone:
            store.forget(id)
            cgroups.sweep(cgroups.tree(), id)
        cgroups.sweep(cgroups.tree())
        gone += reap_containers(store.running)
        sweep_scratch()
        return sorted(set(gone))

    def _policy(self, project: Path, provider: str | None, options: PolicyOptions, settings: Settings) -> Policy:
        policy = make_policy(project, options, settings)
        name = _named(provider, settings)
        if ALIASES.get(name, name) in (AUTO, "bubblewrap"):
            refuse_planted_program("bwrap", project, policy.mounts)
        return policy

    def _settings_for(self, project: Path) -> Settings:
        return load(project) if self.settings is None else self.settings

    def _start(self, provider: Provider, spec: BoxSpec, diagnostics: Mapping[str, Diagnostic]) -> Box:
        try:
            return start_box(provider, spec)
        except ProofboxError as error:
            found = dict(diagnostics)
            if isinstance(error, ProviderUnavailable):
                found[provider.name] = Diagnostic(False, provider.isolation, error.message, error.fix_hints)
            error.details.setdefault("provider", provider.name)
            error.details.setdefault("diagnostics", msgspec.to_builtins(found))
            self.tell(Event("session", "failed", spec.label, {"code": error.code}))
            raise


def _named(provider: str | None, settings: Settings) -> str:
    return provider if provider is not None else settings.provider if settings.provider is not None else AUTO
