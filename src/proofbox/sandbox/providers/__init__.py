"""The providers by name. `auto` is not a provider: it selects one (`selection.py`)."""

from __future__ import annotations

from collections.abc import Callable

from proofbox.core.nearest import nearest
from proofbox.errors import ProviderUnknown
from proofbox.sandbox.contract import Provider


# A provider is loaded when it is used: most commands need only one.
def _off() -> Provider:
    from proofbox.sandbox.providers.off import Off

    return Off()


def _bubblewrap() -> Provider:
    from proofbox.sandbox.providers.bubblewrap import Bubblewrap

    return Bubblewrap()


def _docker() -> Provider:
    from proofbox.sandbox.providers.docker import Docker

    return Docker()


def _vm() -> Provider:
    from proofbox.sandbox.providers.vm import Vm

    return Vm()


def _apple_vm() -> Provider:
    from proofbox.sandbox.providers.apple_vm import AppleVm

    return AppleVm()


AUTO = "auto"
ALIASES = {"macos": "apple-vm", "bwrap": "bubblewrap"}
PROVIDERS: dict[str, Callable[[], Provider]] = {
    "off": _off,
    "bubblewrap": _bubblewrap,
    "docker": _docker,
    "vm": _vm,
    "apple-vm": _apple_vm,
}
# The first that works is used. `off` is never among them: no isolation is a choice, not a fallback.
AUTO_ORDER = ("apple-vm", "bubblewrap", "docker")


def provider_named(name: str) -> Provider:
    create = PROVIDERS.get(ALIASES.get(name, name))
    if create is None:
        raise ProviderUnknown(
            f"unknown provider {name!r}",
            op="select",
            fix_hints=list(
                dict.fromkeys((nearest(name, (AUTO, *PROVIDERS)), f"known: {', '.join((AUTO, *PROVIDERS))}"))
            ),
            details={"provider": name},
        )
    return create()
