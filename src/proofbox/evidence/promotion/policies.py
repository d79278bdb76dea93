"""The built-in promotion policies. Policies are data: `--policy FILE` accepts a custom policy in the same format.

    name            its name for `--policy`
    fields          the packet's pointers, and the artifact each points to
    not_applicable  fields of the packet that do not apply to this kind of bundle
    acceptable      reasons that a caller may accept by name; all others are final
    rules           the conditions; `reason` is the name that the packet lists if one fails
    stricter        optional: the reasons of rules that the contract `runtime-tools.promotion_packet.v0.2` lacks, or has
                    in a weaker form

A rule needs positive evidence: it fails for a value that is absent, unreadable or of another type.

    integrity                                 the whole bundle matches its index, with its logs and nested bundles
    not_repaired, not_dry                     for the bundle and nested bundles; for the run
    status         values                     of the index
    present        artifact
    equals         artifact, member, value    `member` is a list of names, from the outside in
    one_of         artifact, member, values
    tree_manifest                             the bundle's tree_manifest.json is valid
    coverage       schedule                   exactly the attempts of the schedule are present, and all finished
    attempts       member, values             the same member of every scheduled attempt's outcome.json; fails for an
                                              attempt whose bundle failed
    attempts_status  schedule, values         of the index of every scheduled attempt
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA = "proofbox.promotion_policy/1"

SEED_FIELDS = {
    "run_manifest": "run_manifest.json",
    "expected_matrix": "expected_matrix.json",
    "runtime_results": "runtime_results.json",
    "runtime_events": "runtime_events.normalized.json",
    "baseline_results": "baseline_results.json",
    "oracle_results": "oracle_results.json",
    "mismatch_packets": "mismatch_packets.jsonl",
    "summary": "summary.json",
}
OPTIONAL_FIELDS = {"path_witnesses": "path_witnesses.json", "impact_map": "impact_map.json"}
FIELDS = (*SEED_FIELDS, *OPTIONAL_FIELDS, "outcome", "tree_manifest", "schedule")
"""All pointer fields of a packet."""

_EVERY_BUNDLE: list[dict[str, Any]] = [
    {"reason": "integrity_failed", "check": "integrity"},
    {"reason": "bundle_repaired", "check": "not_repaired"},
    {"reason": "run_dry", "check": "not_dry"},
]

DECISION_STAGE: dict[str, Any] = {
    "schema_version": SCHEMA,
    "name": "decision-stage",
    "fields": {**SEED_FIELDS, **OPTIONAL_FIELDS},
    "not_applicable": [],
    "acceptable": ["bundle_repaired"],
    # The contract accepts a preflight that does not say whether it was sandboxed, and lacks the other rules.
    "stricter": ["bundle_repaired", "run_dry", "run_failed", "already_sandboxed"],
    "rules": [
        *_EVERY_BUNDLE,
        {"reason": "run_failed", "check": "status", "values": ["ok", "partial"]},
        {
            "reason": "channel_not_clean",
            "check": "one_of",
            "artifact": "run_manifest.json",
            "member": ["channel"],
            "values": ["launchd_clean", "spawn_clean"],
        },
        {"reason": "preflight_absent", "check": "present", "artifact": "apply_preflight.json"},
        {
            "reason": "preflight_not_ok",
            "check": "equals",
            "artifact": "apply_preflight.json",
            "member": ["apply_ok"],
            "value": True,
        },
        {
            "reason": "already_sandboxed",
            "check": "equals",
            "artifact": "apply_preflight.json",
            "member": ["sandbox_check_self", "sandboxed"],
            "value": False,
        },
        {"reason": "runtime_results_absent", "check": "present", "artifact": "runtime_results.json"},
        {"reason": "runtime_events_absent", "check": "present", "artifact": "runtime_events.normalized.json"},
        {"reason": "expected_matrix_absent", "check": "present", "artifact": "expected_matrix.json"},
    ],
}

# The contract knows one clean channel, so no run on Linux is promotable by it.
DECISION_STAGE_V02: dict[str, Any] = {
    **DECISION_STAGE,
    "name": "decision-stage-v0.2",
    "acceptable": [],
    "rules": [
        {
            "reason": "channel_not_launchd_clean",
            "check": "equals",
            "artifact": "run_manifest.json",
            "member": ["channel"],
            "value": "launchd_clean",
        }
        if rule["reason"] == "channel_not_clean"
        else rule
        for rule in DECISION_STAGE["rules"]
    ],
}

ATTEMPT: dict[str, Any] = {
    "schema_version": SCHEMA,
    "name": "attempt",
    "fields": {"outcome": "outcome.json", "tree_manifest": "tree_manifest.json", **OPTIONAL_FIELDS},
    "not_applicable": sorted(SEED_FIELDS),
    "acceptable": ["bundle_repaired"],
    "rules": [
        *_EVERY_BUNDLE,
        {"reason": "coverage_incomplete", "check": "status", "values": ["ok"]},
        {
            "reason": "outcome_not_verified",
            "check": "equals",
            "artifact": "outcome.json",
            "member": ["verified", "result"],
            "value": "passed",
        },
        {
            "reason": "infra_failed",
            "check": "equals",
            "artifact": "outcome.json",
            "member": ["infra", "result"],
            "value": "ok",
        },
        {"reason": "tree_unknown", "check": "tree_manifest"},
    ],
}

# A run can be promoted as a measurement: its missions may have failed, but all of their verdicts must be known.
RUN: dict[str, Any] = {
    "schema_version": SCHEMA,
    "name": "run",
    "fields": {"schedule": "schedule.jsonl", "summary": "summary.json", **OPTIONAL_FIELDS},
    "not_applicable": sorted(set(SEED_FIELDS) - {"summary"}),
    "acceptable": ["bundle_repaired"],
    "rules": [
        *_EVERY_BUNDLE,
        {"reason": "run_incomplete", "check": "status", "values": ["ok"]},
        {"reason": "coverage_incomplete", "check": "coverage", "schedule": "schedule.jsonl"},
        {
            "reason": "attempt_incomplete",
            "check": "attempts_status",
            "schedule": "schedule.jsonl",
            "values": ["ok"],
        },
        {
            "reason": "outcome_not_verified",
            "check": "attempts",
            "schedule": "schedule.jsonl",
            "member": ["verified", "result"],
            "values": ["passed", "failed"],
        },
        {
            "reason": "infra_failed",
            "check": "attempts",
            "schedule": "schedule.jsonl",
            "member": ["infra", "result"],
            "values": ["ok"],
        },
    ],
}

POLICIES = {policy["name"]: policy for policy in (DECISION_STAGE, DECISION_STAGE_V02, ATTEMPT, RUN)}

# A measurement may be reliable and still say that the code is bad. A policy approves code only if it requires both of
# these rules and allows neither to be accepted.
_APPROVING: tuple[dict[str, Any], ...] = (
    {"check": "equals", "artifact": "outcome.json", "member": ["verified", "result"], "value": "passed"},
    {"check": "tree_manifest"},
)


def approves_code(policy: Mapping[str, Any]) -> bool:
    """Return whether the policy approves code: a satisfying bundle shows that a verifier passed its recorded tree."""
    final = [
        {name: value for name, value in rule.items() if name != "reason"}
        for rule in policy["rules"]
        if rule["reason"] not in policy["acceptable"]
    ]
    return all(rule in final for rule in _APPROVING)
