"""Which of the declared rules answers for a call: the first whose pattern fits what it is about."""

from __future__ import annotations

from collections.abc import Sequence

from proofbox.agents.contract import ApprovalRule


def subject_of(tool: str, command: str) -> str:
    """What rules and conditions see of a call: a command line as it is; of any other tool its name and arguments."""
    if tool == "command":
        return command
    return f"{tool} {command}" if command else tool


def decide(subject: str, rules: Sequence[ApprovalRule]) -> tuple[str, str] | None:
    """`accept` or `decline`, and the rule's name; None where no rule is about it."""
    for number, rule in enumerate(rules, 1):
        if fits(rule.command, subject):
            return ("accept" if rule.answer == "accept" else "decline"), rule.name or f"rule {number}"
    return None


def fits(pattern: str, subject: str) -> bool:
    """Whether the pattern covers all of the subject; a star is any text. Each piece is sought once, from the left."""
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
