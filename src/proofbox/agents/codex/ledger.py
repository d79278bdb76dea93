"""Two accounts of the same tokens: what Codex reports, and what passed through the gateway."""

from __future__ import annotations

from typing import Any

import msgspec

from proofbox.agents.events import TokenUsage
from proofbox.agents.traffic import added

NOTHING = TokenUsage()
MOST_THREADS = 10_000


class _Account(msgspec.Struct):
    passed: TokenUsage = NOTHING
    """All that the gateway saw for the thread, in this session."""
    compared: TokenUsage = NOTHING
    """Of it, what has not been compared yet."""
    settled: TokenUsage | None = None
    """What Codex had reported when the two were compared last. A thread that is resumed begins with its old count."""
    latest: TokenUsage | None = None


class UsageLedger:
    """Compared at the end of each turn that was completed; one that was not leaves both sides free to differ."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def passed(self, thread: str, usage: TokenUsage, *, complete: bool) -> TokenUsage:
        account = self._account(thread)
        account.passed = added(account.passed, usage)
        if complete:
            account.compared = added(account.compared, usage)
        return account.passed

    def reported(self, thread: str, total: TokenUsage, last: TokenUsage) -> None:
        """Codex's word: the thread's total, and what the last request added to it."""
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
        seen, account.compared = account.compared, NOTHING
        account.settled = account.latest = account.latest if complete else None
        if not complete or claimed == seen:
            return None
        return {"reported": msgspec.to_builtins(claimed), "seen": msgspec.to_builtins(seen)}

    def forget(self) -> None:
        """The program was started anew, and may have lost count."""
        for account in self._accounts.values():
            account.compared, account.settled, account.latest = NOTHING, None, None

    def _account(self, thread: str) -> _Account:
        if thread not in self._accounts and len(self._accounts) >= MOST_THREADS:
            return _Account()  # of a program that makes threads up
        return self._accounts.setdefault(thread, _Account())
