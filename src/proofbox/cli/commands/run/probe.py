"""`probe`: show which sandbox would be used here, by starting one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from proofbox.cli import flags
from proofbox.cli.output import columns, show

if TYPE_CHECKING:
    from proofbox.sandbox.contract import ProviderSelection


def probe(*, provider: flags.Provider = None, json: flags.Json = False) -> int:
    """Show which sandbox would be used here, by starting one.

    For example:
      proofbox probe
      proofbox probe --provider bubblewrap --json
    """
    from proofbox.cli.commands.run.documents import ProbeDocument
    from proofbox.sandbox.service import Sandboxes

    with Sandboxes() as boxes:
        found = boxes.probe(provider)
    document = ProbeDocument(
        provider=found.provider,
        isolation=found.isolation,
        was_fallback=found.was_fallback,
        fallback_from=found.fallback_from,
        diagnostics=dict(found.diagnostics),
    )
    show(document, lambda: _text(found), as_json=json)
    return 0


def _text(found: ProviderSelection) -> str:
    from proofbox.sandbox.providers import provider_named

    rows = [("PROVIDER", "ISOLATION", "WORKS", "REASON")]
    for name, each in found.diagnostics.items():
        mark = " (chosen)" if name == found.provider else ""
        rows.append((name + mark, each.isolation.value, "yes" if each.available else "no", each.reason))
    possible = {name for name in found.diagnostics if os.uname().sysname in provider_named(name).systems}
    hints = [f"  fix {name}: {hint}" for name in possible for hint in found.diagnostics[name].fix_hints]
    return "\n".join([columns(rows), *hints])
