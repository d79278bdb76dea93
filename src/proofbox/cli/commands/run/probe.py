"""`probe`: show which sandbox would be used here, by starting one."""

from __future__ import annotations

import platform

from proofbox.cli import flags
from proofbox.cli.output import Document, columns, show
from proofbox.sandbox.contract import Diagnostic, Isolation, ProbeResult


class ProbeDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.probe/1"
    provider: str
    isolation: Isolation
    was_fallback: bool
    fallback_from: str | None
    diagnostics: dict[str, Diagnostic]


def probe(*, provider: flags.Provider = None, json: flags.Json = False) -> int:
    """Show which sandbox would be used here, by starting one.

    For example:
      proofbox probe
      proofbox probe --provider bubblewrap --json
    """
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


def _text(found: ProbeResult) -> str:
    from proofbox.sandbox.providers import provider_named

    rows = [("PROVIDER", "ISOLATION", "WORKS", "REASON")]
    for name, each in found.diagnostics.items():
        mark = " (chosen)" if name == found.provider else ""
        rows.append((name + mark, each.isolation.value, "yes" if each.available else "no", each.reason))
    possible = {name for name in found.diagnostics if platform.system() in provider_named(name).systems}
    hints = [f"  fix {name}: {hint}" for name in possible for hint in found.diagnostics[name].fix_hints]
    return "\n".join([columns(rows), *hints])
