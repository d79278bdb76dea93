"""Writes docs/isolation.md by running the built-in plans of the sandboxes. Needs bubblewrap, docker, runsc and QEMU.

scripts/isolation            write the page
scripts/isolation --check    exit 1, with the difference, if the page is stale
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from measured_pages import ROOT, write_or_check

from proofbox.probes.run import PlanRun, run_plan
from proofbox.sandbox.probing.corpus import built_in_plan

PAGE = ROOT / "docs/isolation.md"
TITLES = {"bubblewrap": "bubblewrap", "vm": "vm", "docker": "docker", "docker-runsc": "docker with gVisor"}
FOREIGN = {"bwrap": "bwrap", "docker-run": "docker run"}
"""Adapters, and the titles of their columns."""
WORDS = {"allow": "allowed", "deny": "denied", "unknown": "unknown"}
INTRODUCTION = """<!-- Written by scripts/isolation, which measures all of it. Do not edit. -->

# What the sandboxes isolate

The results of the [built-in plans](probes.md) in the profile `default`: no network, a writable project, no limits. Each
operation was tried in the sandbox by a small program, and checked from outside where its effect shows there. Names in
braces are [decoys](probes.md#write-a-plan). `proofbox doctor --deep` measures the same on your machine. Without a
sandbox (`off`), each operation has the result that your user has. The project belonged to root.
"""

OTHERS = """## Other sandboxes

The plan `hostile`, run by root with the ready [adapters](probes.md#measure-another-sandbox) `bwrap` and `docker-run`: a
careful command line, without proofbox. Operations that should be denied but were allowed are in bold.
"""


def main() -> int:
    return write_or_check(PAGE, __doc__ or "", lambda: page(measured()))


def measured() -> dict[str, dict[str, str]]:
    """Run every plan, and return the decisions by plan and probe. Raises if a result is not as the plan expects."""
    sys.path[:0] = [str(ROOT / "tests")]
    from private_engine import IMAGE, private_engine

    found = {}
    with tempfile.TemporaryDirectory(prefix="isolation-") as place, private_engine() as engine:
        os.environ["DOCKER_HOST"] = engine.host
        for name in TITLES:
            image = IMAGE if name.startswith("docker") else None
            run = run_plan(name, Path(place) / name, image=image, only_profiles=["default"])
            if not run.ok:
                wrong = ", ".join(f"{each.probe_id} ({each.detail})" for each in run.unexplained)
                raise SystemExit(f"isolation: {name} is not as its plan expects: {wrong}")
            found[name] = decisions(run)
        for name in FOREIGN:
            found[name] = decisions(run_plan("hostile", Path(place) / name, adapter=name, image=IMAGE))
    return found


def decisions(run: PlanRun) -> dict[str, str]:
    return {each.probe_id: WORDS[each.decision] for each in run.results if each.profile == "default"}


def documented(provider: str) -> dict[str, str]:
    """Return the decisions that the page's first table states."""
    table = PAGE.read_text().partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    column = rows[0].index(TITLES[provider])
    return {row[0].strip("`"): row[column] for row in rows[1:] if row[column] != "not tried"}


def page(found: Mapping[str, Mapping[str, str]]) -> str:
    plans = {name: {probe.id: probe for probe in built_in_plan(name).probe} for name in TITLES}
    ids = list(dict.fromkeys(id for name in TITLES for id in plans[name] if id in found[name]))
    lines = [INTRODUCTION, f"| probe | operation | {' | '.join(TITLES.values())} |", "|---|---|" + "---|" * len(TITLES)]
    differences = []
    for id in ids:
        probe = next(plans[name][id] for name in TITLES if id in plans[name])
        cells = [found[name].get(id, "not tried") for name in TITLES]
        operation = " ".join((probe.operation, *probe.args)).replace("|", "\\|")
        lines.append(f"| `{id}` | `{operation}` | {' | '.join(cells)} |")
        if len(set(cells)) > 1:
            reasons: dict[str, list[str]] = {}
            for name in TITLES:
                if found[name].get(id) == WORDS["allow"]:
                    reasons.setdefault(plans[name][id].reason, []).append(TITLES[name])
            why = "; ".join(f"allowed in {' and '.join(names)}: {reason}" for reason, names in reasons.items())
            differences.append(f"- `{id}`: {why or 'not tried everywhere'}.")
    lines += ["", "## Why some differ", "", *differences, "", OTHERS]
    lines += [f"| probe | operation | {' | '.join(FOREIGN.values())} |", "|---|---|" + "---|" * len(FOREIGN)]
    for probe in built_in_plan("hostile").probe:
        cells = [found[name][probe.id] for name in FOREIGN]
        shown = [f"**{cell}**" if probe.expect == "deny" and cell != "denied" else cell for cell in cells]
        lines.append(f"| `{probe.id}` | `{' '.join((probe.operation, *probe.args))}` | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
