"""What the declared rules answer for a call: one meaning for whatever asks, a tool of ours, the funnel or Codex.

The first rule whose pattern fits decides. Where some rule accepts, what none of them fits is declined. Where none does,
nothing was said of what is not declined: who asks nobody goes on, and who asks for leave is not given it.
"""

from __future__ import annotations

from collections.abc import Sequence

from proofbox.agents.contract import ApprovalRule

NO_RULE = "no rule"


def subject_of(tool: str, command: str) -> str:
    """What rules and conditions see of a call: a command line as it is; of any other tool its name and arguments."""
    if tool == "command":
        return command
    return f"{tool} {command}" if command else tool


def decide(subject: str, rules: Sequence[ApprovalRule]) -> tuple[str, str] | None:
    """`accept` or `decline`, and the rule's name; None where the rules say nothing of it."""
    for number, rule in enumerate(rules, 1):
        if fits(rule.command, subject):
            return ("accept" if rule.answer == "accept" else "decline"), rule.name or f"rule {number}"
    return ("decline", NO_RULE) if any(rule.answer == "accept" for rule in rules) else None


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
