"""Consent to what a recorded attempt requests, for forks that continue it.

An attempt's evidence may come from a stranger, and a fork takes its box and its agent's settings from there. An attempt
that was made here is recorded as agreed to, because the user has chosen its options; so is a run with its attempts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import UNSET

from proofbox.config import consent
from proofbox.config.consent import Widening
from proofbox.evidence.bundle.paths import enclosing
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.verify.check import check_bundle
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.adhoc.request import AttemptOptions
from proofbox.lab.attempt.documents import AttemptRecord, RunnerRef
from proofbox.lab.reports.steps import load_attempt


def require_fork_consent(
    bundle: Bundle, options: AttemptOptions, *, trust: bool, command: str = "proofbox attempt fork"
) -> None:
    """Raise `ConsentRequired` unless the user has consented to what the attempt requests and `options` do not override.

    `trust` is that consent. `command` is the beginning of the command line that records it.
    """
    if _of_own_run(bundle):
        return
    place = Path(bundle.path).resolve()  # consent is to one directory, also if it is named relative to another
    asked = _requests(bundle, options.get("provider"), options.get("policy", {}), options.get("settings", {}))
    if trust:
        consent.agree(place, asked)
    consent.require(place, asked, command=f"{command} {quote(bundle.path)} --trust …")


def agree_to_forks(path: Path) -> None:
    """Record that the user has chosen the options of this attempt."""
    bundle = load_attempt(path.resolve())
    if asked := _requests(bundle, None, {}, {}):
        consent.agree(Path(bundle.path), asked)


def _of_own_run(bundle: Bundle) -> bool:
    """Return whether the attempt belongs to a run that was committed here and has not changed since."""
    run, place = enclosing(bundle.path), os.path.realpath(bundle.path)
    if run == place or not consent.knows_run(os.path.basename(run)):
        return False
    found = check_bundle(run)  # reads all of it, so only for runs that are known
    inner = found.nested.get(os.path.relpath(place, run))
    pinned = inner is not None and inner.index_sha256 == bundle.index_sha256
    return found.ok and pinned and consent.knows_run(os.path.basename(run), found.index_sha256)


def _requests(
    bundle: Bundle, provider: str | None, policy: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[Widening, ...]:
    record = artifacts.read_document(bundle, artifacts.ATTEMPT, AttemptRecord)
    runner = artifacts.read_document(bundle, artifacts.RUNNER, RunnerRef)
    used = {} if runner.settings is UNSET else runner.settings
    return consent.recorded_requests(
        None if provider else record.requested.provider,
        {name: value for name, value in record.policy.items() if not policy.get(name)},
        "" if runner.runtime is UNSET else runner.runtime,
        {name: value for name, value in used.items() if name not in settings},
    )
