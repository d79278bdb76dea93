"""Answer the requests of Codex immediately, by the declared rules.

Requests to approve a command or a file change are decided by `proofbox.agents.approvals`; if no rule decides, they are
declined. Requests that need a person are declined, because the session runs unattended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proofbox.agents.approvals import NO_RULE, decide
from proofbox.agents.contract import ApprovalRule
from proofbox.agents.jsonrpc.peer import METHOD_NOT_FOUND, RpcRefusal
from proofbox.core.text import preview

SHOWN = 4000
NO_PERSON = "there is no person"
UNKNOWN = "unknown request"


class ApprovalAnswer(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    answer: str
    rule: str
    reply: Any = None
    refusal: tuple[int, str] | None = None

    def result(self) -> Any:
        if self.refusal is not None:
            raise RpcRefusal(*self.refusal)
        return self.reply


def answer(method: str, params: Any, rules: Sequence[ApprovalRule], paths: Sequence[str] = ()) -> ApprovalAnswer:
    """Answer a request. `paths` are the paths of the item, if the request is about a file change."""
    params = params if isinstance(params, dict) else {}
    if method in ("item/commandExecution/requestApproval", "execCommandApproval"):
        command = params.get("command")
        subject = " ".join(map(str, command)) if isinstance(command, list) else str(command or "")
        chosen, rule = _decide(subject, rules)
        return ApprovalAnswer(subject=_shown(subject), answer=chosen, rule=rule, reply=_decision(method, chosen))
    if method in ("item/fileChange/requestApproval", "applyPatchApproval"):
        changes = params.get("fileChanges")
        requested = list(paths) or (list(changes) if isinstance(changes, dict) else [])
        # Every path must be accepted: the first decision that declines a path wins.
        decisions = [_decide(path, rules) for path in requested] or [_decide("", rules)]
        chosen, rule = next((each for each in decisions if each[0] != "accept"), decisions[0])
        return ApprovalAnswer(
            subject=_shown(", ".join(requested)), answer=chosen, rule=rule, reply=_decision(method, chosen)
        )
    if method == "item/permissions/requestApproval":
        permissions = params.get("permissions")
        subject = msgspec.json.encode(permissions).decode()
        chosen, rule = _decide(subject, rules)
        granted = permissions if chosen == "accept" else {}
        return ApprovalAnswer(
            subject=_shown(subject), answer=chosen, rule=rule, reply={"permissions": granted, "scope": "turn"}
        )
    if method == "item/tool/requestUserInput":
        return _declined(params.get("questions"), {"answers": {}})
    if method == "mcpServer/elicitation/request":
        return _declined(params.get("message") or params.get("request"), {"action": "decline"})
    if method == "item/tool/call":
        content = [{"type": "inputText", "text": "unknown tool"}]
        return _declined(params.get("tool"), {"contentItems": content, "success": False})
    return ApprovalAnswer(
        subject="", answer="refused", rule=UNKNOWN, refusal=(METHOD_NOT_FOUND, f"{method[:100]} is not supported")
    )


def _decide(subject: str, rules: Sequence[ApprovalRule]) -> tuple[str, str]:
    return decide(subject, rules) or ("decline", NO_RULE)


def _decision(method: str, chosen: str) -> dict[str, str]:
    if method in ("execCommandApproval", "applyPatchApproval"):  # older methods use other names for the decisions
        return {"decision": "approved" if chosen == "accept" else "denied"}
    return {"decision": chosen}


def _declined(subject: Any, reply: Any) -> ApprovalAnswer:
    text = subject if isinstance(subject, str) else msgspec.json.encode(subject).decode()
    return ApprovalAnswer(subject=_shown(text), answer="decline", rule=NO_PERSON, reply=reply)


def _shown(text: str) -> str:
    return preview(text, SHOWN)[0]
