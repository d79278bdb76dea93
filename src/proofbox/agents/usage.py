"""Count tokens. The gateway's count is authoritative; the agent's reports are compared with it.

Usage is counted per thread. The usage of a session or an attempt is the sum over its threads, including sub-agents, and
over requests without a thread, such as those that a program in the box sends to the gateway directly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from proofbox.agents.events import Source, TokenUsage, Usage
from proofbox.agents.gateway.traffic import Exchange

NOTHING = TokenUsage()
MAX_THREADS = 10_000
MEMBERS = TokenUsage.__struct_fields__


def added(one: TokenUsage, other: TokenUsage, sign: int = 1) -> TokenUsage:
    return TokenUsage(**{name: getattr(one, name) + sign * getattr(other, name) for name in MEMBERS})


class TokenCount:
    """Sums `Usage` events over threads.

    With `shared`, other attempts use the same session. Requests without a known thread may belong to them and are not
    counted; the session reports them as a finding.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._latest: dict[tuple[Source, str], Usage] = {}

    def add(self, event: Usage) -> None:
        if not (self._shared and event.source == "gateway" and not event.thread):
            self._latest[event.source, event.thread] = event

    def by_source(self) -> dict[str, TokenUsage]:
        """The sums by source. The gateway is omitted if no response stated its usage, because unknown is not zero."""
        found: dict[str, TokenUsage] = {}
        for (source, _), event in sorted(self._latest.items()):
            if event.total != NOTHING or not (event.without_usage or event.broken_off):
                found[source] = added(found.get(source, NOTHING), event.total)
        return found

    @property
    def without_usage(self) -> int:
        """Number of responses whose usage the endpoint did not state."""
        return sum(event.without_usage for event in self._latest.values())

    @property
    def broken_off(self) -> int:
        """Number of responses that broke off; their usage is known in part or not at all."""
        return sum(event.broken_off for event in self._latest.values())

    @property
    def source(self) -> Source | None:
        """The authoritative source: the gateway, unless no gateway was used."""
        sources = {source for source, _ in self._latest}
        return "gateway" if "gateway" in sources else "runtime_reported" if sources else None

    def total(self) -> TokenUsage | None:
        """The count of the authoritative source. None: unknown."""
        return self.by_source().get(self.source or "")

    def spent(self) -> int:
        """Input plus output tokens, for a budget. If responses did not state their usage, both counts may be too low,
        so the higher one is used."""
        sums = self.by_source()
        if self.source == "gateway" and not self.without_usage and not self.broken_off:
            sums.pop("runtime_reported", None)
        return max((each.input_tokens + each.output_tokens for each in sums.values()), default=0)


class _Account(msgspec.Struct):
    passed: TokenUsage = NOTHING
    """The gateway's count for the thread in this session."""
    without_usage: int = 0
    broken_off: int = 0
    compared: TokenUsage = NOTHING
    """The part of `passed` that was not compared yet."""
    partial: TokenUsage = NOTHING
    """The same for responses that broke off, which an agent may or may not report."""
    settled: TokenUsage | None = None
    """The agent's count at the last comparison. A resumed thread begins with its old count."""
    latest: TokenUsage | None = None
    complete: bool = False
    """The thread's last turn was completed and compared."""


class UsageLedger:
    """Keeps two token counts for each thread: the gateway's, and the one that the agent reports.

    They are compared at the end of each completed turn. After other turns, they may differ legitimately.
    """

    def __init__(self, members: Sequence[str] = MEMBERS) -> None:
        """`members` are the counts that the agent and the gateway define in the same way."""
        self._members = members
        self._accounts: dict[str, _Account] = {}

    def passed(self, thread: str, exchange: Exchange) -> Usage | None:
        """Count a finished exchange. Return the event to report if the count changed."""
        if exchange.usage is None and not exchange.unmeasured:
            return None
        if thread not in self._accounts and len(self._accounts) >= MAX_THREADS:
            thread = ""
        account = self._account(thread)
        usage = exchange.usage or NOTHING
        account.passed = added(account.passed, usage)
        account.without_usage += exchange.unmeasured == "no_usage"
        account.broken_off += exchange.unmeasured == "broken_off"
        if exchange.outcome == "completed":
            account.compared = added(account.compared, usage)
        else:
            account.partial = added(account.partial, usage)
        return Usage(
            session="",
            thread=thread,
            total=account.passed,
            source="gateway",
            without_usage=account.without_usage,
            broken_off=account.broken_off,
        )

    def reported(self, thread: str, total: TokenUsage, last: TokenUsage) -> None:
        """Record the agent's report: the thread's total, and the increase since its previous report."""
        account = self._account(thread)
        if account.settled is None:
            account.settled = added(total, last, -1)
        account.latest = total

    def restored(self, thread: str, total: TokenUsage) -> None:
        """Record the initial count of a resumed or forked thread."""
        account = self._account(thread)
        account.settled = account.latest = total

    def settle(self, thread: str, *, complete: bool) -> dict[str, Any] | None:
        """Compare the counts at the end of a turn. Return the difference, or None."""
        account = self._accounts.get(thread)
        if account is None:
            return None
        claimed = added(account.latest, account.settled or NOTHING, -1) if account.latest is not None else NOTHING
        seen, partial = account.compared, account.partial
        account.compared = account.partial = NOTHING
        account.settled = account.latest = account.latest if complete else None
        account.complete = complete
        if not complete or self._agree(claimed, seen, partial):
            return None
        return {"reported": msgspec.to_builtins(claimed), "seen": msgspec.to_builtins(seen)}

    def settle_idle(self, busy: Collection[str]) -> dict[str, dict[str, Any]]:
        """Compare the counts at the end of a session, for threads whose last turn was completed."""
        idle = [thread for thread, account in self._accounts.items() if account.complete and thread not in busy]
        found = {thread: self.settle(thread, complete=True) for thread in idle}
        return {thread: difference for thread, difference in found.items() if difference is not None}

    def forget(self) -> None:
        """Reset the comparison after a restart of the program, whose count may be lost."""
        for account in self._accounts.values():
            account.compared, account.partial = NOTHING, NOTHING
            account.settled, account.latest, account.complete = None, None, False

    def _agree(self, claimed: TokenUsage, seen: TokenUsage, partial: TokenUsage) -> bool:
        most = added(seen, partial)
        return all(getattr(seen, each) <= getattr(claimed, each) <= getattr(most, each) for each in self._members)

    def _account(self, thread: str) -> _Account:
        if thread and thread not in self._accounts and len(self._accounts) >= MAX_THREADS:
            return _Account()  # too many threads: the program may be inventing them
        return self._accounts.setdefault(thread, _Account())
