"""Evaluate a policy's rules on a bundle."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.documents import declare
from proofbox.core.text import preview
from proofbox.errors import BundleError, PolicyInvalid, ProofboxError
from proofbox.evidence.bundle.index import refuse_other_schema
from proofbox.evidence.bundle.paths import read_bounded, shown
from proofbox.evidence.bundle.reader import Bundle, as_bundle
from proofbox.evidence.documents import outcome, schedule, shape, tree
from proofbox.evidence.documents.base_tree import read_tree
from proofbox.evidence.documents.shape import ShapeError
from proofbox.evidence.promotion.policies import FIELDS, POLICIES, SCHEMA
from proofbox.evidence.verify.check import BundleCheck

MAX_POLICY_BYTES = 1 << 20
MAX_RULES = 100
MAX_MEMBER_BYTES = 1 << 23
"""Maximum size of a document that a rule reads."""

MAX_SHOWN = 1000
"""Maximum number of characters of an observed object or array that a packet contains."""
MALFORMED = "malformed"
"""The code of an artifact that lacks the member that a rule reads, or has an invalid one."""

_NAME = shape.text(200)
_MEMBER = shape.array(_NAME)
_RULES: dict[str, dict[str, shape.ValueCheck]] = {
    "integrity": {},
    "not_repaired": {},
    "not_dry": {},
    "status": {"values": shape.array(_NAME)},
    "present": {"artifact": _NAME},
    "equals": {"artifact": _NAME, "member": _MEMBER, "value": shape.anything},
    "one_of": {"artifact": _NAME, "member": _MEMBER, "values": shape.array(shape.anything)},
    "tree_manifest": {},
    "coverage": {"schedule": _NAME},
    "attempts": {"schedule": _NAME, "member": _MEMBER, "values": shape.array(shape.anything)},
    "attempts_status": {"schedule": _NAME, "values": shape.array(_NAME)},
}
POLICY = shape.record(
    {
        "schema_version": _NAME.meaning("The schema name and version."),
        "name": _NAME.meaning("The policy's name; `--policy` accepts the names of built-in policies."),
        "fields": shape.table(_NAME).meaning("The packet's pointers, and the artifact each points to."),
        "not_applicable": shape.array(_NAME).meaning("Fields that do not apply to this kind of bundle."),
        "acceptable": shape.array(_NAME).meaning("Reasons that a caller may accept by name; all others are final."),
        "rules": shape.array(shape.table(shape.anything)).meaning(
            "The conditions: `check` is one of "
            + ", ".join(_RULES)
            + "; `reason` is the name that the packet lists if it fails."
        ),
    },
    {
        "stricter": shape.array(_NAME).meaning(
            "The reasons of rules that `runtime-tools.promotion_packet.v0.2` lacks or has in a weaker form."
        )
    },
)
declare(
    SCHEMA,
    at="a custom file for `promotion emit --policy`, and inside every packet",
    meaning="The conditions under which a bundle may be relied on.",
    shape=POLICY.json_schema,
)


def check_policy(policy: Any) -> None:
    """Raise ShapeError unless this is a valid policy. The rule `integrity` is required: all others depend on it."""
    shape.table(shape.anything)(policy, "policy")
    refuse_other_schema(policy, SCHEMA)
    POLICY(policy, "policy")
    if not policy["fields"].keys() <= set(FIELDS):
        raise ShapeError(f"policy.fields has an unknown field; a packet has {', '.join(FIELDS)}")
    if len(policy["rules"]) > MAX_RULES:
        raise ShapeError(f"policy.rules has more than {MAX_RULES} rules")
    reasons = []
    for number, rule in enumerate(policy["rules"]):
        where = f"policy.rules[{number}]"
        kind = rule.get("check")
        if type(kind) is not str or kind not in _RULES:
            raise ShapeError(f"{where}.check is not one of {', '.join(_RULES)}")
        shape.record({"reason": _NAME, "check": _NAME, **_RULES[kind]})(rule, where)
        reasons.append(rule["reason"])
    if len(set(reasons)) != len(reasons):
        raise ShapeError("policy.rules has two rules with the same reason")
    if "integrity" not in {rule["check"] for rule in policy["rules"]}:
        raise ShapeError("policy.rules lacks the rule integrity")
    final = {rule["reason"] for rule in policy["rules"] if rule["check"] == "integrity"}
    if not set(policy["acceptable"]) <= set(reasons) - final:
        raise ShapeError("policy.acceptable lists an unknown reason, or that of the rule integrity")


def load_policy(name: str) -> dict[str, Any]:
    """Load a policy by name or from a JSON file."""
    known = POLICIES.get(name)
    if known is not None:
        return known
    hints = [f"use {', '.join(POLICIES)}, or a JSON file with schema {SCHEMA}"]
    if not os.path.isfile(name):
        raise PolicyInvalid(f"no policy is called {shown(name)!r}", op="promotion policy", fix_hints=hints)
    try:
        policy = parse_strict(read_bounded(os.path.realpath(name), MAX_POLICY_BYTES))
        check_policy(policy)
    except (OSError, CanonicalError, ShapeError) as error:
        raise PolicyInvalid(f"{shown(name)}: {error}", op="promotion policy", fix_hints=hints) from error
    if policy["name"] in POLICIES and not is_built_in(policy):
        raise PolicyInvalid(
            f"{shown(name)} is called {policy['name']}, but differs from the built-in policy of that name",
            op="promotion policy",
            fix_hints=["choose another name, so that it is not mistaken for the built-in policy"],
        )
    return dict(policy)


def is_built_in(policy: Mapping[str, Any]) -> bool:
    """Return whether this is exactly the built-in policy of its name."""
    known = POLICIES.get(policy["name"])
    return known is not None and _same(known, policy)


def fitting_policy(found: BundleCheck) -> dict[str, Any]:
    """Return the built-in policy for this kind of bundle."""
    artifacts = found.index.artifacts if found.index else {}
    if schedule.PATH in artifacts:
        return POLICIES["run"]
    if {"campaign.json", "runs.json"} <= artifacts.keys():
        return POLICIES["campaign"]
    return POLICIES["attempt" if outcome.PATH in artifacts else "decision-stage"]


class RuleResult(NamedTuple):
    """The result of one rule. `observed` is the value found, truncated for JSON."""

    reason: str
    held: bool
    observed: Any


def evaluate(policy: Mapping[str, Any], found: BundleCheck) -> list[RuleResult]:
    """Evaluate every rule of the policy. Return their results in order. Never raises because of a bundle's content.

    An unobservable value is `{"unknown": CODE}`, so that a packet does not depend on the wording of an error.
    """
    evidence = _Evidence(found, policy["rules"])
    rulings: dict[str, RuleResult] = {}
    # Rules about the same artifact follow each other: it is parsed once, and only one document is in memory.
    for rule in sorted(policy["rules"], key=lambda rule: str(rule.get("artifact", ""))):
        try:
            held, observed = _CHECKS[rule["check"]](evidence, rule)
        except (ProofboxError, ShapeError) as error:
            held, observed = False, {"unknown": error.code if isinstance(error, ProofboxError) else MALFORMED}
        rulings[rule["reason"]] = RuleResult(rule["reason"], held, _shown(observed))
    return [rulings[rule["reason"]] for rule in policy["rules"]]


class _Evidence:
    """The bundle that a policy's rules are about. Documents that several rules read are parsed once."""

    def __init__(self, found: BundleCheck, rules: Iterable[Mapping[str, Any]]) -> None:
        self.found = found
        self._document: tuple[str, Any] | None = None
        self._schedules: dict[str, dict[str, schedule.ScheduledAttempt]] = {}
        self._about_attempts = [rule for rule in rules if rule["check"] == "attempts"]
        self._wrong: dict[str, list[str]] | None = None
        try:
            self._bundle: Bundle | None = as_bundle(found)
        except BundleError:
            self._bundle = None

    @property
    def bundle(self) -> Bundle:
        if self._bundle is None:
            raise ShapeError("the bundle can't be read")
        return self._bundle

    def member(self, rule: Mapping[str, Any]) -> Any:
        artifact = rule["artifact"]
        if self._document is None or self._document[0] != artifact:
            self._document = None
            self._document = (artifact, _document(self.bundle, artifact))
        return _member(self._document[1], rule, artifact)

    def scheduled(self, rule: Mapping[str, Any]) -> dict[str, schedule.ScheduledAttempt]:
        path = rule["schedule"]
        if path not in self._schedules:
            self._schedules[path] = schedule.read_schedule(self.bundle.read_log(path))
        return self._schedules[path]

    def failed_attempts(self, rule: Mapping[str, Any]) -> list[str]:
        """Return the attempts that fail a rule `attempts`. All such rules are evaluated together."""
        if self._wrong is None:
            self._wrong = {each["reason"]: [] for each in self._about_attempts}
            for path in {each["schedule"] for each in self._about_attempts}:
                self._evaluate(path, self._wrong)
        return self._wrong[rule["reason"]]

    def _evaluate(self, path: str, wrong: dict[str, list[str]]) -> None:
        rules = [rule for rule in self._about_attempts if rule["schedule"] == path]
        try:
            planned = self.scheduled(rules[0])
        except (ProofboxError, ShapeError):
            return  # reading it again for each rule raises the same error
        for each in planned.values():
            inner = self.bundle.nested.get(each.path)
            try:
                document = None if inner is None else _document(inner, outcome.PATH)
            except (ProofboxError, ShapeError):
                document = None
            for rule in rules:
                read = inner is not None and inner.index.status != "failed" and document is not None
                if not (read and _has_value(document, rule)):
                    wrong[rule["reason"]].append(each.attempt)


def _document(bundle: Bundle, artifact: str) -> Any:
    value = bundle.read_json(artifact, limit=outcome.MAX_BYTES if artifact == outcome.PATH else MAX_MEMBER_BYTES)
    if artifact == outcome.PATH:
        outcome.check_outcome(value)
    return value


def _member(value: Any, rule: Mapping[str, Any], artifact: str) -> Any:
    for name in rule["member"]:
        if type(value) is not dict or name not in value:
            raise ShapeError(f"{artifact} has no member {'.'.join(rule['member'])}")
        value = value[name]
    return value


def _has_value(document: Any, rule: Mapping[str, Any]) -> bool:
    try:
        value = _member(document, rule, outcome.PATH)
    except ShapeError:
        return False
    return any(_same(value, good) for good in rule["values"])


_Answer = tuple[bool, Any]


def _integrity(evidence: _Evidence, _: Mapping[str, Any]) -> _Answer:
    codes = sorted({finding.code for finding in evidence.found.findings})
    return evidence.found.ok and evidence.found.committed, codes or "strict"


def _not_repaired(evidence: _Evidence, _: Mapping[str, Any]) -> _Answer:
    repairs = sum(each.index.repairs if each.index else 0 for place, each in evidence.found.every())
    return evidence.bundle.index.repairs == 0 and repairs == 0, repairs


def _not_dry(evidence: _Evidence, _: Mapping[str, Any]) -> _Answer:
    return not evidence.bundle.status.dry, evidence.bundle.status.dry


def _status(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    status = evidence.bundle.index.status
    return status in rule["values"], status


def _present(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    """Use the check of the whole bundle, which has read every file, instead of reading a large file again."""
    evidence.bundle.artifact(rule["artifact"])
    wrong = sorted({each.code for each in evidence.found.findings if each.path in (rule["artifact"], "")})
    return not wrong, wrong or "present"


def _equals(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    value = evidence.member(rule)
    return _same(value, rule["value"]), value


def _one_of(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    value = evidence.member(rule)
    return any(_same(value, good) for good in rule["values"]), value


def _tree_manifest(evidence: _Evidence, _: Mapping[str, Any]) -> _Answer:
    found = read_tree(evidence.bundle.read_json(tree.PATH), evidence.bundle.path)
    return True, f"{found.files} files"


def _coverage(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    planned = evidence.scheduled(rule)
    lacking = []
    for each in planned.values():
        inner = evidence.bundle.nested.get(each.path)
        if inner is None or each.index_sha256 is None or inner.index_sha256 != each.index_sha256:
            lacking.append(each.attempt)
    unplanned = sorted(set(evidence.bundle.nested) - {each.path for each in planned.values()})
    if lacking or unplanned:
        return False, {"lacking": lacking[:20], "unplanned": unplanned[:20]}
    return len(planned) > 0, f"{len(planned)} attempts"


def _attempts(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    planned = evidence.scheduled(rule)
    wrong = evidence.failed_attempts(rule)
    return not wrong and len(planned) > 0, wrong[:20] or f"{len(planned)} attempts"


def _attempts_status(evidence: _Evidence, rule: Mapping[str, Any]) -> _Answer:
    planned = evidence.scheduled(rule)
    found = {each.attempt: evidence.bundle.nested.get(each.path) for each in planned.values()}
    wrong = {id: inner.index.status if inner else "absent" for id, inner in found.items()}
    wrong = {id: status for id, status in wrong.items() if status not in rule["values"]}
    return not wrong and len(planned) > 0, dict(list(wrong.items())[:20]) or f"{len(planned)} attempts"


_CHECKS: dict[str, Callable[[_Evidence, Mapping[str, Any]], _Answer]] = {
    "integrity": _integrity,
    "not_repaired": _not_repaired,
    "not_dry": _not_dry,
    "status": _status,
    "present": _present,
    "equals": _equals,
    "one_of": _one_of,
    "tree_manifest": _tree_manifest,
    "coverage": _coverage,
    "attempts": _attempts,
    "attempts_status": _attempts_status,
}


def _same(value: Any, other: Any) -> bool:
    """Compare as JSON: 1 and true differ, though they are equal in Python. Different values are not encoded."""
    return bool(value == other) and canonical_bytes(value) == canonical_bytes(other)


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return preview(value, 300)[0]
    if isinstance(value, dict | list) and _size(value, MAX_SHOWN) > MAX_SHOWN:
        return {"omitted": "object" if isinstance(value, dict) else "array", "items": len(value)}
    return value


def _size(value: Any, limit: int) -> int:
    """Return about how many characters a JSON value has. Stops beyond `limit`: the value may be huge."""
    size = len(value) if isinstance(value, str) else 1
    if isinstance(value, dict | list):
        for item in value.items() if isinstance(value, dict) else value:
            parts = item if isinstance(value, dict) else (item,)
            size += sum(_size(part, limit - size) for part in parts)
            if size > limit:
                break
    return size
