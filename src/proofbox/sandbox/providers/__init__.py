"""The providers by name. `auto` is not a provider: it selects one (`selection.py`)."""

from __future__ import annotations

from importlib import import_module

from proofbox.core.nearest import nearest
from proofbox.errors import ProviderUnknown
from proofbox.sandbox.contract import Provider

AUTO = "auto"
ALIASES = {"macos": "apple-vm", "bwrap": "bubblewrap"}
# The module and class of each. A provider is loaded when it is used: most commands need only one.
PROVIDERS = {
    "off": "off:Off",
    "bubblewrap": "bubblewrap:Bubblewrap",
    "docker": "docker:Docker",
    "apple-vm": "apple_vm:AppleVm",
}
# Strongest first. `off` is never among them: no isolation is a choice, not a fallback.
AUTO_ORDER = ("apple-vm", "bubblewrap")
WITH_AN_IMAGE = ("docker",)


def provider_named(name: str) -> Provider:
    target = PROVIDERS.get(ALIASES.get(name, name))
    if target is None:
        raise ProviderUnknown(
            f"unknown provider {name!r}",
            op="select",
            fix_hints=list(
                dict.fromkeys((nearest(name, (AUTO, *PROVIDERS)), f"known: {', '.join((AUTO, *PROVIDERS))}"))
            ),
            details={"provider": name},
        )
    module, _, kind = target.partition(":")
    provider: Provider = getattr(import_module(f"{__name__}.{module}"), kind)()
    return provider
