"""`explore`: continue from a step of an attempt in several branches, and keep the best that passes verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.commands.agents.attempt import Id, Run, find
from proofbox.cli.commands.agents.runtime_try import NO_FLAGS, AttemptArgs
from proofbox.cli.output import columns, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable
from proofbox.errors import UsageError

if TYPE_CHECKING:
    from proofbox.lab.attempt.adhoc.explore import Exploration


def explore(
    id: Id,
    *,
    step: Annotated[int, Parameter(name="--step", help="The step to continue from; 0 is the start of the attempt.")],
    branches: Annotated[int, Parameter(name="--branches", help="The number of branches.")] = 4,
    verify: Annotated[
        tuple[str, ...],
        Parameter(name="--verify", help="A command that a branch must pass, in a fresh box. Repeatable."),
    ] = (),
    suite: Annotated[
        Path | None, Parameter(name="--suite", help="Verify as this suite file does for the attempt's mission.")
    ] = None,
    run: Run = Path("out"),
    attempt: AttemptArgs = NO_FLAGS,
    trust: Annotated[
        bool,
        Parameter(name="--trust", help="Consent to what the suite, or an attempt made elsewhere, requests for a box."),
    ] = False,
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Continue from a step of an attempt in several branches, verify each, and keep the best that passes.

    Each branch gets the files after the step and, if the runtime can fork it, the agent's thread. The branches run in
    parallel; with several --strategies, they use them in turn. The one kept is verified and has the fewest changed
    lines, then the fewest tokens. All branches stay in --out as evidence. The result is the best of several tries: it
    is never counted in a run or a report. Exit code 1 if no branch passes.

    For example:
      proofbox explore t1 --step 2 --branches 4 --prompt "fix the test" --verify "pytest -q" --out tries
      proofbox explore answer.1 --step 1 --run out --suite suite.toml --prompt "try again" --out tries
    """
    from proofbox.lab.attempt.adhoc.explore import explore_attempt

    place = attempt.out
    if place is None:
        raise UsageError("explore needs a directory for its branches", op="explore", fix_hints=["--out DIR"])
    found = find(run, id)
    options = attempt.options(box, json=json)
    del options["out"]
    done = explore_attempt(
        found.bundle,
        step,
        place,
        prompt=attempt.read_prompt(),
        branches=branches,
        verify=verify,
        suite=suite,
        trust=trust,
        **options,
    )
    show(done, lambda: _text(done.exploration, done.bundle, place), as_json=json)
    return 0 if done.ok else 1


def _text(exploration: Exploration, bundle: str, place: Path) -> str:
    rows = [
        (
            str(branch.number),
            printable(branch.strategy),
            branch.status,
            branch.verified,
            "-" if branch.changed_lines is None else str(branch.changed_lines),
            "-" if branch.tokens is None else str(branch.tokens),
        )
        for branch in exploration.branches
    ]
    lines = [columns([("branch", "strategy", "status", "verified", "lines", "tokens"), *rows])]
    lines += [f"branch {each.number}: {printable(each.reason)}" for each in exploration.branches if each.reason]
    count = len(exploration.branches)
    kept = next((each for each in exploration.branches if each.number == exploration.kept), None)
    if kept is None:
        lines.append(f"no branch passed (of {count})")
    else:
        lines.append(f"kept: branch {kept.number}, the best of {count} tries: {printable(str(place / kept.workspace))}")
    lines.append(f"evidence: {printable(bundle)}")
    return "\n".join(lines)
