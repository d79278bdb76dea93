"""`attempt`: show single attempts, from their evidence, show what their steps changed, and interrupt them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.commands.agents.suite import RunPath
from proofbox.cli.output import columns, readable, show
from proofbox.cli.parameters import Parameter
from proofbox.core.text import printable

if TYPE_CHECKING:
    from proofbox.lab.reports.stored_attempts import StoredAttempt
    from proofbox.lab.reports.suite_run import Explanation
    from proofbox.lab.run.ledger import Ledger

Run = Annotated[Path, Parameter(name="--run", help="A run's directory, or an --out directory, for its last run.")]
Id = Annotated[str, Parameter(help="An attempt's id or a unique prefix of it, or the directory of its evidence.")]


_STOPPED = {
    "planned": "it ends within seconds and is never started",
    "claimed": "it is stopped within seconds, before its agent starts",
    "preparing": "it is stopped within seconds, before its agent starts",
    "running": "its agent is stopped within seconds, and the files it left are verified",
    "stopping": "its agent has ended; it is not verified",
    "verifying": "its verifier is stopped within seconds, so it is not verified",
    "committing": "it has already ended and is being committed",
}


def list_(run: RunPath = Path("out"), *, json: flags.Json = False) -> int:
    """List the attempts of a run, in any state. For a committed run, the results come from its evidence.

    For example:
      proofbox attempt list out
    """
    from proofbox.cli.commands.agents.documents import AttemptsDocument
    from proofbox.lab.reports.results import read_run
    from proofbox.lab.reports.suite_run import facts_of

    with _ledger(run) as (ledger, place):
        found = facts_of(read_run(place, ledger), place)
    rows: list[tuple[str, ...]] = [("ATTEMPT", "STATE", "CLAIMED", "VERIFIED", "REASON", "INFRA")]
    for each in found:
        cells = (each.claimed, each.verified, each.reason, each.infra)
        rows.append((each.attempt_id, each.state, *(cell or "-" for cell in cells)))
    show(AttemptsDocument(run_id=place.name, attempts=found), lambda: columns(rows), as_json=json)
    return 0


def show_(id: Id, *, run: Run = Path("out"), json: flags.Json = False) -> int:
    """Show the record of one attempt.

    For example:
      proofbox attempt show answer.1 --run out
      proofbox attempt show t1
    """
    from proofbox.cli.commands.agents.documents import AttemptDocument
    from proofbox.lab.reports.explain import read_documents
    from proofbox.lab.reports.suite_run import AttemptFacts

    found = find(run, id)
    facts, why_not = AttemptFacts.of(found.attempt, found.bundle), found.evidence_problem
    documents = read_documents(found.bundle)
    text = [] if why_not is None else [f"its evidence is invalid: {why_not}"]
    text += [f"{name}: {readable(getattr(facts, name))}" for name in AttemptFacts.__struct_fields__]
    text += ["documents: " + ", ".join(sorted(documents))]
    document = AttemptDocument(attempt=facts, evidence_problem=why_not, documents=documents)
    show(document, lambda: printable("\n".join(text)), as_json=json)
    return 0


def explain_(id: Id, *, run: Run = Path("out"), json: flags.Json = False) -> int:
    """Explain in plain words what happened in an attempt, the failing step first.

    For example:
      proofbox attempt explain answer.1 --run out
      proofbox attempt explain t1
    """
    from proofbox.lab.reports.explain import explain_attempt

    return _show_explanation(explain_attempt(id, run=run), json=json)


def _show_explanation(found: Explanation, *, json: bool) -> int:
    show(found, lambda: printable("\n".join(found.lines)), as_json=json)
    return 0


def diff(
    id: Id,
    *,
    step: Annotated[int | None, Parameter(name="--step", help="Only what this step changed.")] = None,
    run: Run = Path("out"),
    json: flags.Json = False,
) -> int:
    """Show what an attempt changed in its workspace, or what one of its steps changed, from its evidence.

    For example:
      proofbox attempt diff answer.1 --run out
      proofbox attempt diff t1 --step 2
    """
    from proofbox.cli.commands.agents.documents import AttemptDiffDocument
    from proofbox.lab.reports.steps import diff_attempt

    found = find(run, id)
    text = diff_attempt(found.bundle, step)
    document = AttemptDiffDocument(attempt_id=found.attempt.id, step=step, diff=text)
    show(document, lambda: printable(text.removesuffix("\n")) or "no difference", as_json=json)
    return 0


def interrupt(id: Id, *, run: Run = Path("out"), json: flags.Json = False) -> int:
    """Stop one attempt, whether queued, in setup, in its agent's turn or in verification. Other attempts continue.

    If no process conducts the run, this takes effect when the run is resumed.

    For example:
      proofbox attempt interrupt answer.1 --run out
    """
    from proofbox.cli.commands.agents.documents import InterruptDocument
    from proofbox.lab.reports.suite_run import AttemptFacts
    from proofbox.lab.run.plan import is_conducted

    with _ledger(run, read_only=False) as (ledger, place):
        attempt = ledger.interrupt(id)
    facts = AttemptFacts.of(attempt, place / attempt.path)
    conducted = is_conducted(place.parent, place.name)
    if attempt.state == "ended":
        words = "it has already ended" + (" and is not retried" if attempt.interrupt else "")
    elif not conducted:
        resume = f"proofbox suite resume {quote(str(place))}"
        words = f"no process conducts the run; the attempt is stopped when the run is resumed: {resume}"
    else:
        words = _STOPPED[facts.state]
    document = InterruptDocument(attempt=facts, conducted=conducted)
    show(document, lambda: printable(f"{attempt.id}: {words}"), as_json=json)
    return 0


@contextmanager
def _ledger(run: Path, *, read_only: bool = True) -> Iterator[tuple[Ledger, Path]]:
    """Open the ledger of a run, and yield it with the run's directory."""
    from proofbox.lab.run.ledger import Ledger
    from proofbox.lab.run.plan import find_run, ledger_path

    out, run_id = find_run(run)
    with Ledger(ledger_path(out, run_id), read_only=read_only) as ledger:
        yield ledger, out / run_id


def find(run: Path, id: str) -> StoredAttempt:
    """Find the attempt that the arguments of a command name."""
    from proofbox.lab.reports.stored_attempts import find_attempt

    return find_attempt(id, run)
