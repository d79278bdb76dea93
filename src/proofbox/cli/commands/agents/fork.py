"""`attempt fork`: continue from a step of an attempt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from proofbox.cli import flags
from proofbox.cli.commands.agents.attempt import Id, Run, find
from proofbox.cli.commands.agents.runtime_try import NO_FLAGS, AttemptArgs, summary
from proofbox.cli.output import show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable
from proofbox.errors import UsageError


def fork(
    id: Id,
    directory: Annotated[
        Path | None, Parameter(help="The new workspace. Default: a directory here, named after the attempt and step.")
    ] = None,
    *,
    step: Annotated[int, Parameter(name="--step", help="The step to continue from; 0 is the start of the attempt.")],
    run: Run = Path("out"),
    attempt: AttemptArgs = NO_FLAGS,
    trust: Annotated[
        bool, Parameter(name="--trust", help="Consent to what an attempt made elsewhere requests for its box.")
    ] = False,
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Create a workspace with the files after a step of an attempt. With a prompt, let the agent continue there.

    The agent's thread is continued if the runtime can fork threads and the thread was kept, as it is for attempts of
    `runtime try`. The fork is exact if the turn ended at that step; within a turn, it uses the thread from before the
    turn. Strategy, settings and box are the same as in the attempt, unless a flag overrides them. The files must be on
    this machine. If the attempt was made elsewhere, what it requests beyond your own settings needs your consent
    (--trust). Exit code 1 if the turn fails.

    For example:
      proofbox attempt fork answer.1 retry --step 2 --run out
      proofbox attempt fork t1 --step 3 --prompt "now try it without the cache" --out t2
    """
    from proofbox.lab.attempt.adhoc.fork import fork_attempt

    found = find(run, id)
    place = directory or _free_name(f"{found.attempt.id}-step{step}")
    prompt = attempt.read_prompt() if attempt.has_prompt else None
    made = fork_attempt(found.bundle, step, place, prompt=prompt, trust=trust, **attempt.options(box, json=json))
    continued = made.attempt
    lines = [f"files after step {step} of {found.attempt.id}: {made.workspace}"]
    show(made, lambda: printable("\n".join(lines)) if continued is None else summary(continued), as_json=json)
    return 0 if made.ok else 1


def _free_name(name: str) -> Path:
    for number in range(1, 10_000):
        path = Path(name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
    raise UsageError("found no free name for the new workspace", op="attempt fork", fix_hints=["name a directory"])
