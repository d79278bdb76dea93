"""Select a provider: the one that was named, or with `auto` the first that works, determined by a trial.

A trial starts a real box and runs a command in it. A success is cached until the machine reboots or the program behind
the provider changes. A failure is never cached, since the user is likely to fix it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from proofbox.core.dirs import cache_dir
from proofbox.core.documents import stored
from proofbox.core.files.atomic import write_document
from proofbox.core.parsing.untrusted_json import parse_json
from proofbox.errors import CommandNotFound, ProofboxError, ProviderUnavailable
from proofbox.sandbox.contract import (
    BoxSpec,
    Diagnostic,
    Event,
    Isolation,
    OnEvent,
    Policy,
    Provider,
    ProviderSelection,
    stream_of,
)
from proofbox.sandbox.enforcement import refuse_unenforceable, start_box
from proofbox.sandbox.providers import AUTO, AUTO_ORDER, provider_named
from proofbox.sandbox.providers.bubblewrap import COMMAND_ID

START_TIMEOUT = 180.0
TRIAL_TIMEOUT = 10.0


class Choice(msgspec.Struct, frozen=True):
    """A provider, and how it was selected."""

    provider: Provider
    diagnostics: dict[str, Diagnostic]
    fallback_from: str | None = None

    def probe_result(self) -> ProviderSelection:
        return ProviderSelection(
            provider=self.provider.name,
            isolation=self.provider.isolation,
            was_fallback=self.fallback_from is not None,
            fallback_from=self.fallback_from,
            diagnostics=self.diagnostics,
        )

    def started(self) -> dict[str, Diagnostic]:
        """Return the diagnostics after a box has started."""
        name = self.provider.name
        return {**self.diagnostics, name: msgspec.structs.replace(self.diagnostics[name], reason=_remark(name))}


def choose(name: str, policy: Policy, *, on_event: OnEvent | None = None) -> Choice:
    """Select the provider to use.

    A provider that was named is not tried first; its start shows whether it works. `auto` tries each candidate, and
    raises an error if no provider works.
    """
    if name != AUTO:
        provider = provider_named(name)
        _refuse_other_system(provider)
        isolation = provider.enforcement(policy).isolation
        return Choice(provider, {provider.name: Diagnostic(available=True, isolation=isolation)})
    return _first_that_works(policy, on_event)


def probe(name: str, policy: Policy, *, on_event: OnEvent | None = None) -> Choice:
    """Select a provider as `choose` does, but try every candidate."""
    if name == AUTO:
        return _first_that_works(policy, on_event, look_further=True)
    provider = provider_named(name)
    diagnostic = diagnose(provider, policy)
    _emit(on_event, provider, diagnostic)
    if not diagnostic.available:
        raise _unavailable(f"{provider.name} does not work here: {diagnostic.reason}", {provider.name: diagnostic})
    return Choice(provider, {provider.name: diagnostic})


def diagnose(provider: Provider, policy: Policy) -> Diagnostic:
    """Check that a provider works here and can enforce the policy and run its image."""
    wanted = Policy(image=policy.image, runtime=policy.runtime)
    try:
        identity = f"{_boot_id()} {_namespace()} {provider.identity()} {wanted.image} {wanted.runtime}"
        refuse_unenforceable(provider.name, policy, provider.enforcement(policy))
        remembered = _Trials.load()
        if remembered.worked.get(provider.name) != identity:
            _run_trial(provider, wanted)
            remembered.worked[provider.name] = identity
            remembered.save()
    except ProofboxError as error:
        return Diagnostic(
            available=False, isolation=provider.isolation, reason=error.message, fix_hints=tuple(error.fix_hints)
        )
    return Diagnostic(available=True, isolation=provider.enforcement(policy).isolation, reason=_remark(provider.name))


def _remark(provider: str) -> str:
    """Return a line about a provider that works: how virtual machines run, since emulation is slow."""
    if provider != "vm":
        return ""
    from proofbox.sandbox.machines.acceleration import describe_acceleration

    return describe_acceleration()


def _refuse_other_system(provider: Provider) -> None:
    """Raise ProviderUnavailable for a provider of another system, before a part of the policy is refused."""
    if os.uname().sysname in provider.systems:
        return
    try:
        provider.identity()
    except ProviderUnavailable as error:
        found = Diagnostic(False, provider.isolation, error.message, tuple(error.fix_hints))
        error.details.setdefault("provider", provider.name)
        error.details.setdefault("diagnostics", msgspec.to_builtins({provider.name: found}))
        raise


def _first_that_works(policy: Policy, on_event: OnEvent | None, look_further: bool = False) -> Choice:
    diagnostics: dict[str, Diagnostic] = {}
    chosen: Provider | None = None
    passed_over: str | None = None
    for name in AUTO_ORDER:
        provider = provider_named(name)
        diagnostic = diagnostics[provider.name] = diagnose(provider, policy)
        _emit(on_event, provider, diagnostic)
        if diagnostic.available:
            chosen = chosen or provider
            if not look_further:
                break
        elif chosen is None and passed_over is None and os.uname().sysname in provider.systems:
            passed_over = provider.name
    if chosen is None:
        if policy.image is not None:
            from proofbox.sandbox.images.pull import require_built

            require_built(policy.image)
        reasons = "\n".join(f"  {name}: {found.reason}" for name, found in _on_this_system(diagnostics).items())
        raise _unavailable(f"no sandbox here can run this request:\n{reasons}", diagnostics)
    return Choice(chosen, diagnostics, passed_over)


def _unavailable(message: str, diagnostics: dict[str, Diagnostic]) -> ProviderUnavailable:
    hints = [hint for found in _on_this_system(diagnostics).values() for hint in found.fix_hints]
    return ProviderUnavailable(
        message,
        op="select",
        fix_hints=[*hints, "show what each provider lacks: proofbox doctor"],
        details={"diagnostics": msgspec.to_builtins(diagnostics)},
    )


def _on_this_system(diagnostics: dict[str, Diagnostic]) -> dict[str, Diagnostic]:
    """Return the diagnostics of the providers for this operating system; all of them if none is for it."""
    system = os.uname().sysname
    return {name: each for name, each in diagnostics.items() if system in provider_named(name).systems} or diagnostics


@contextlib.contextmanager
def trial_project(provider: Provider) -> Iterator[Path]:
    """Create an empty project that commands can write to: a trial tests the machine, not the permissions of /tmp."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="proofbox-trial-") as directory:
        if provider.isolation in (Isolation.NAMESPACE, Isolation.VM) and os.geteuid() == 0:
            with contextlib.suppress(OSError):  # root of a user namespace can't change the owner, and need not
                os.chown(directory, COMMAND_ID, COMMAND_ID)
        yield Path(directory).resolve()


def _run_trial(provider: Provider, policy: Policy) -> None:
    from proofbox.sandbox.client.connection import Connection
    from proofbox.sandbox.client.requests import encode_env, make_request, make_settings

    with trial_project(provider) as project:
        # The label contains the directory's name, which is unique: trials may run in parallel.
        box = start_box(provider, BoxSpec(label=project.name, project=project, policy=policy))
        try:
            settings = make_settings(box.project, timeout=TRIAL_TIMEOUT)
            request = make_request(["true"], settings, encode_env(box.environment))
            connection = Connection(stream_of(box), box.kill)
            connection.wait_for_hello(START_TIMEOUT)  # a virtual machine has to boot
            call = connection.run(request)
        except ProofboxError as error:
            stderr = box.stderr()
            reason, hints = provider.explain(stderr)
            raise ProviderUnavailable(
                reason, op="probe", fix_hints=[*hints, *error.fix_hints], details={"account": stderr}
            ) from error
        finally:
            box.destroy()
    # An image may lack `true`; "not found" from the box agent is as good an answer.
    if not isinstance(call.error, CommandNotFound) and (call.exit is None or call.exit.code != 0):
        raise ProviderUnavailable("the box started, but `true` failed in it", op="probe")


def _emit(on_event: OnEvent | None, provider: Provider, found: Diagnostic) -> None:
    if on_event is not None:
        phase: Literal["selected", "rejected"] = "selected" if found.available else "rejected"
        on_event(Event("provider", phase, provider.name, {"reason": found.reason, "isolation": found.isolation.value}))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


def _namespace() -> str:
    """Identify the user namespace: a provider may work in one and fail in another, with the same cache."""
    try:
        return os.readlink("/proc/self/ns/user")
    except OSError:
        return ""


@stored("proofbox.trials/1", at="CACHE/trials.json")
class _Trials(msgspec.Struct):
    """The trials that succeeded. A missing or malformed file is ignored; it only costs new trials."""

    worked: dict[str, str] = {}
    """By provider, what its trial is valid for: boot, user namespace, program, image and runtime."""
    schema_version: str = "proofbox.trials/1"

    @classmethod
    def load(cls) -> _Trials:
        try:
            return parse_json((cache_dir() / "trials.json").read_bytes(), cls)
        except (OSError, ProofboxError, msgspec.DecodeError):
            return cls()

    def save(self) -> None:
        try:
            write_document(cache_dir() / "trials.json", msgspec.json.encode(self))
        except (OSError, ProofboxError):
            pass
