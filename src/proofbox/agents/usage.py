"""Count tokens: by the gateway, which is the truth, and by the agent's own reports, which are compared with it.

Usage is stated per thread. What a session or an attempt used is the sum over its threads, sub-agents included, and over
requests that name no thread, such as those that a program in the box sends to the gateway directly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from proofbox.agents.events import Source, TokenUsage, Usage
from proofbox.agents.gateway.traffic import Exchange

NOTHING = TokenUsage()
MOST_THREADS = 10_000
MEMBERS = TokenUsage.__struct_fields__


def added(one: TokenUsage, other: TokenUsage, sign: int = 1) -> TokenUsage:
    return TokenUsage(**{name: getattr(one, name) + sign * getattr(other, name) for name in MEMBERS})


class TokenCount:
    """Sums up `Usage` events over threads.

    With `shared`, other attempts use the same session: requests that name no known thread may be theirs, and are left
    out. The session tells of them as a finding.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._shared = shared
        self._latest: dict[tuple[Source, str], Usage] = {}

    def add(self, event: Usage) -> None:
        if not (self._shared and event.source == "gateway" and not event.thread):
            self._latest[event.source, event.thread] = event

    def by_source(self) -> dict[str, TokenUsage]:
        """The sums, by who counted. The gateway is left out if no response stated its usage: that is not zero."""
        found: dict[str, TokenUsage] = {}
        for (source, _), event in sorted(self._latest.items()):
            if event.total != NOTHING or not (event.without_usage or event.broken_off):
                found[source] = added(found.get(source, NOTHING), event.total)
        return found

    @property
    def without_usage(self) -> int:
        """Responses whose usage the endpoint did not state."""
        return sum(event.without_usage for event in self._latest.values())

    @property
    def broken_off(self) -> int:
        """Responses that broke off, whose usage is known in part or not at all."""
        return sum(event.broken_off for event in self._latest.values())

    @property
    def source(self) -> Source | None:
        """Whose count holds: the gateway's, unless no model was reached through one."""
        sources = {source for source, _ in self._latest}
        return "gateway" if "gateway" in sources else "runtime_reported" if sources else None

    def total(self) -> TokenUsage | None:
        """The count that holds; None: unknown."""
        return self.by_source().get(self.source or "")

    def spent(self) -> int:
        """Input and output, for a budget. Where responses stated no usage, the higher of both counts: each may lack
        something."""
        sums = self.by_source()
        if self.source == "gateway" and not self.without_usage and not self.broken_off:
            sums.pop("runtime_reported", None)
        return max((each.input_tokens + each.output_tokens for each in sums.values()), default=0)


class _Account(msgspec.Struct):
    passed: TokenUsage = NOTHING
    """All that the gateway saw for the thread, in this session."""
    without_usage: int = 0
    broken_off: int = 0
    compared: TokenUsage = NOTHING
    """Of it, what has not been compared yet."""
    partial: TokenUsage = NOTHING
    """The same, of responses that broke off: an agent may report them or not."""
    settled: TokenUsage | None = None
    """What the agent had reported when the two were compared last. A resumed thread begins with its old count."""
    latest: TokenUsage | None = None
    complete: bool = False
    """The thread's last turn was completed, and compared."""


class UsageLedger:
    """Two accounts of the same tokens for each thread: what passed through the gateway, and what the agent reports.

    Compared at the end of each turn that was completed; one that was not leaves both sides free to differ.
    """

    def __init__(self, members: Sequence[str] = MEMBERS) -> None:
        """`members` are the counts that the agent states in the same way as the gateway."""
        self._members = members
        self._accounts: dict[str, _Account] = {}

    def passed(self, thread: str, exchange: Exchange) -> Usage | None:
        """Count an exchange that is over. The event to tell, if it changed the count."""
        if exchange.usage is None and not exchange.unmeasured:
            return None
        if thread not in self._accounts and len(self._accounts) >= MOST_THREADS:
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
        """The agent's word: the thread's total, and what it has added to it since its last word."""
        account = self._account(thread)
        if account.settled is None:
            account.settled = added(total, last, -1)
        account.latest = total

    def restored(self, thread: str, total: TokenUsage) -> None:
        """What a thread brings along from before, told when it is resumed or forked."""
        account = self._account(thread)
        account.settled = account.latest = total

    def settle(self, thread: str, *, complete: bool) -> dict[str, Any] | None:
        """At a turn's end: how the accounts differ, if they do."""
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
        """At a session's end: how the accounts of threads differ that had completed their last turn, and since then."""
        idle = [thread for thread, account in self._accounts.items() if account.complete and thread not in busy]
        found = {thread: self.settle(thread, complete=True) for thread in idle}
        return {thread: difference for thread, difference in found.items() if difference is not None}

    def forget(self) -> None:
        """The program was started anew, and may have lost count."""
        for account in self._accounts.values():
            account.compared, account.partial = NOTHING, NOTHING
            account.settled, account.latest, account.complete = None, None, False

    def _agree(self, claimed: TokenUsage, seen: TokenUsage, partial: TokenUsage) -> bool:
        most = added(seen, partial)
        return all(getattr(seen, each) <= getattr(claimed, each) <= getattr(most, each) for each in self._members)

    def _account(self, thread: str) -> _Account:
        if thread and thread not in self._accounts and len(self._accounts) >= MOST_THREADS:
            return _Account()  # of a program that makes threads up
        return self._accounts.setdefault(thread, _Account())
