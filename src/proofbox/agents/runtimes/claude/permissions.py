"""Answer the requests of Claude Code immediately, by the declared rules.

With approval rules, a hook asks about every tool call before it runs: in most modes, the program asks for permission
only for some calls. Requests that need a person are declined, because the session runs unattended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proofbox.agents.approvals import NO_RULE, decide, subject_of
from proofbox.agents.contract import ApprovalRule
from proofbox.agents.runtimes.claude.decoder import changed_paths, tool_and_command
from proofbox.core.text import preview

HOOK = "approve"
SHOWN = 4000
NO_PERSON = "there is no person"
UNKNOWN = "unknown request"
_QUESTIONS = ("AskUserQuestion", "ExitPlanMode")


class PermissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    item: str = ""
    subject: str = ""
    answer: str = ""
    """`accept` or `decline`; empty if the rules do not decide the call, which is then left to Claude Code."""
    rule: str = ""
    reply: dict[str, Any] | None = None
    """None: the request is unknown and answered with an error."""


def hooks(rules: Sequence[ApprovalRule]) -> dict[str, Any] | None:
    """Return the hooks to register: one before each tool call, if there are rules."""
    return {"PreToolUse": [{"matcher": None, "hookCallbackIds": [HOOK]}]} if rules else None


def answer(request: dict[str, Any], rules: Sequence[ApprovalRule], workspace: str) -> PermissionAnswer:
    """Answer a `can_use_tool` or `hook_callback` request. Paths are matched relative to the workspace."""
    kind = request.get("subtype")
    members = request.get("input")
    asked: dict[str, Any] = members if isinstance(members, dict) else {}
    if kind == "can_use_tool":
        name, given = request.get("tool_name"), members
    elif kind == "hook_callback" and request.get("callback_id") == HOOK:
        name, given = asked.get("tool_name"), asked.get("tool_input")
    else:
        return PermissionAnswer(answer="refused", rule=UNKNOWN)
    named = (name, request.get("tool_use_id"))
    name, item = (preview(each, 200)[0] if isinstance(each, str) else "" for each in named)
    arguments = given if isinstance(given, dict) else {}
    subjects = [path.removeprefix(f"{workspace}/") for path in changed_paths(name, arguments)]
    subjects = subjects or [subject_of(*tool_and_command(name, arguments))]
    # Every path must be accepted: the first decision that declines a path wins.
    decisions = [decide(subject, rules) for subject in subjects]
    chosen = next((each for each in decisions if each is not None and each[0] != "accept"), decisions[0])
    if kind == "can_use_tool":
        chosen = ("decline", NO_PERSON) if name in _QUESTIONS else chosen or ("decline", NO_RULE)
        allowed: dict[str, Any] = {"behavior": "allow", "updatedInput": arguments}
        denied = {"behavior": "deny", "message": f"declined by proofbox: {chosen[1]}"}
        reply = allowed if chosen[0] == "accept" else denied
    elif chosen is None:
        reply = {}
    else:
        reply = {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "allow" if chosen[0] == "accept" else "deny",
                "permissionDecisionReason": f"decided by proofbox: {chosen[1]}",
            }
        }
    verdict, rule = chosen or ("", "")
    return PermissionAnswer(
        item=item, subject=preview(", ".join(subjects), SHOWN)[0], answer=verdict, rule=rule, reply=reply
    )
