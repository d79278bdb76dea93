"""The documents that `runtime` prints with `--json`, except those that the SDK returns."""

from __future__ import annotations

from proofbox.agents.contract import RuntimeCapabilities
from proofbox.agents.runtimes.listing import RuntimeFacts
from proofbox.cli.output import Document, ErrorBody
from proofbox.sandbox.conformance.check import CheckResult


class RuntimesDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.runtimes/1"
    runtimes: tuple[RuntimeFacts, ...]
    """All installed runtimes, in alphabetical order."""
    chain: str
    """The strategies that are tried here without --strategies."""
    chain_origin: str


class RuntimeCheckDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.runtime_check/1"
    strategy: str
    version: str
    capabilities: RuntimeCapabilities
    passed: int
    failed: int
    results: tuple[CheckResult, ...]
    error: ErrorBody | None = None
