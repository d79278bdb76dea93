"""The providers by name. `auto` is not a provider: it selects one (`selection.py`)."""

from __future__ import annotations

from proofbox.core.nearest import nearest
from proofbox.errors import ProviderUnknown
from proofbox.sandbox.contract import Provider
from proofbox.sandbox.providers.apple_vm import AppleVm
from proofbox.sandbox.providers.bubblewrap import Bubblewrap
from proofbox.sandbox.providers.docker import Docker
from proofbox.sandbox.providers.off import Off

AUTO = "auto"
ALIASES = {"macos": "apple-vm", "bwrap": "bubblewrap"}
PROVIDERS: dict[str, type[Provider]] = {"off": Off, "bubblewrap": Bubblewrap, "docker": Docker, "apple-vm": AppleVm}
# Strongest first. `off` is never among them: no isolation is a choice, not a fallback.
AUTO_ORDER = ("apple-vm", "bubblewrap")
WITH_AN_IMAGE = ("docker",)


def provider_named(name: str) -> Provider:
    kind = PROVIDERS.get(ALIASES.get(name, name))
    if kind is None:
        raise ProviderUnknown(
            f"unknown provider {name!r}",
            op="select",
            fix_hints=list(
                dict.fromkeys((nearest(name, (AUTO, *PROVIDERS)), f"known: {', '.join((AUTO, *PROVIDERS))}"))
            ),
            details={"provider": name},
        )
    return kind()
