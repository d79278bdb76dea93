"""Checks that run probes of the corpus: the attacks that plans measure are the attacks that `doctor` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Unpack

import msgspec

from proofbox.sandbox.conformance.check import NotChecked, expect
from proofbox.sandbox.conformance.context import CheckContext
from proofbox.sandbox.options import PolicyOptions
from proofbox.sandbox.probing.corpus import corpus_probes
from proofbox.sandbox.probing.decoys import PLACEHOLDERS, new_decoys
from proofbox.sandbox.probing.judging import judge
from proofbox.sandbox.probing.lanes import BoxedDriver, baseline, observe
from proofbox.sandbox.probing.operations import skipped
from proofbox.sandbox.probing.plan import Probe

_CONTROL: Final = "control.project-read"
_SHOWN: Final = 4


def run_probes(context: CheckContext, *names: str, **policy: Unpack[PolicyOptions]) -> None:
    """Run probes in a box and without one, and expect that the box decides each as the corpus says.

    A name that ends with `*` stands for all probes that begin with it. If every attack on a decoy fails without a box
    too, a denial proves nothing, and the check is `not_checked`.
    """
    probes = [msgspec.structs.replace(probe, profiles=()) for probe in corpus_probes(_CONTROL, *names)]
    with new_decoys() as decoys:
        session = context.session(context.over(decoys.project), **policy)
        lane = observe(probes, decoys, BoxedDriver(lambda: session).run, "box")
        session.stop()
    results = judge(probes, [lane], baseline(probes))
    wrong = [f"{each.probe_id}: {each.mismatch}, {each.detail}" for each in results if not each.matched]
    expect(not wrong, "; ".join(wrong[:_SHOWN]) + (f"; and {len(wrong) - _SHOWN} more" if wrong[_SHOWN:] else ""))
    attacks = {probe.id for probe in probes if probe.expect == "deny" and not skipped(probe) and _has_decoy(probe)}
    outside = {each.baseline for each in results if each.probe_id in attacks}
    if outside and "allow" not in outside:
        raise NotChecked(f"{', '.join(sorted(attacks))}: denied without a sandbox too")


def probed(*names: str, **policy: Unpack[PolicyOptions]) -> Callable[[CheckContext], None]:
    """Return a check that runs these probes."""
    return lambda context: run_probes(context, *names, **policy)


def _has_decoy(probe: Probe) -> bool:
    return any(f"{{{name}}}" in argument for name in PLACEHOLDERS for argument in probe.args)
