"""Decide calls by the declared approval rules, in the same way for our own tools, the funnel and Codex.

The first matching rule decides. If at least one rule accepts, calls that match no rule are declined. If no rule
accepts, the rules do not decide calls that match none of them: tools that need no approval run, and requests for
approval are declined.
"""

from __future__ import annotations

from collections.abc import Sequence

from proofbox.agents.contract import ApprovalRule

NO_RULE = "no rule"


def subject_of(tool: str, command: str) -> str:
    """Return the text that rules and conditions match: the command line, or the tool's name and arguments."""
    if tool == "command":
        return command
    return f"{tool} {command}" if command else tool


def decide(subject: str, rules: Sequence[ApprovalRule]) -> tuple[str, str] | None:
    """Return `accept` or `decline` and the rule's name, or None if the rules do not decide this call."""
    for number, rule in enumerate(rules, 1):
        if matches(rule.command, subject):
            return ("accept" if rule.answer == "accept" else "decline"), rule.name or f"rule {number}"
    return ("decline", NO_RULE) if any(rule.answer == "accept" for rule in rules) else None


def matches(pattern: str, subject: str) -> bool:
    """Return whether the pattern matches the whole subject. A star matches any text. Runs in linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return subject == first
    if not subject.startswith(first):
        return False
    at = len(first)
    for piece in rest[:-1]:
        found = subject.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(subject) - at >= len(rest[-1]) and subject.endswith(rest[-1])
