"""Answer the requests of an ACP agent immediately: permissions by the declared rules, everything else with an error.

An agent in a box has its own tools for files and commands, which the box restricts and the snapshots observe. So the
methods `fs/*` and `terminal/*`, which ask the client to act for the agent, are not offered and are refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from proofbox.agents.approvals import decide, subject_of
from proofbox.agents.contract import ApprovalRule
from proofbox.agents.runtimes.acp.decoder import AcpOpenCall
from proofbox.core.text import preview

SHOWN = 4000
PERMISSION = "session/request_permission"
UNDECIDED = "undecided"
_KINDS = {"accept": ("allow_once", "allow_always"), "decline": ("reject_once", "reject_always")}


class AcpPermissionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    answer: str
    """`accept` or `decline`."""
    rule: str
    reply: dict[str, Any]


def answer_permission(
    call: AcpOpenCall | None, options: Any, rules: Sequence[ApprovalRule], workspace: str, undecided: str
) -> AcpPermissionAnswer:
    """Choose one of the options that the agent offers. Paths are matched relative to the workspace.

    If the agent offers no option with the chosen meaning, the request is cancelled, which the agent must treat as a no.
    """
    subjects = ["unknown"]
    if call is not None and call.changes_files:
        subjects = [path.removeprefix(f"{workspace}/") for path in call.paths]
    elif call is not None:
        subjects = [subject_of(*call.tool_and_command())]
    # Every path must be accepted: the first decision that declines a path wins.
    decisions = [decide(subject, rules) or (undecided, UNDECIDED) for subject in subjects]
    answer, rule = next((each for each in decisions if each[0] != "accept"), decisions[0])
    option = _option(options, _KINDS[answer])
    if option is None:
        answer, outcome = "decline", {"outcome": "cancelled"}
    else:
        outcome = {"outcome": "selected", "optionId": option}
    return AcpPermissionAnswer(
        subject=preview(", ".join(subjects), SHOWN)[0], answer=answer, rule=rule, reply={"outcome": outcome}
    )


def _option(options: Any, kinds: Sequence[str]) -> str | None:
    offered = [each for each in options if isinstance(each, dict)] if isinstance(options, list) else []
    for kind in kinds:
        for option in offered:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return str(option["optionId"])
    return None
