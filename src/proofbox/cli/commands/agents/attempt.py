"""`attempt`: one agent's one try, as its evidence tells it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

from cyclopts import Parameter

from proofbox.cli import flags
from proofbox.cli.commands.agents.suite import AttemptFacts, RunPath
from proofbox.cli.output import Document, columns, show
from proofbox.core.text import printable
from proofbox.lab.run.ledger import Attempt, Ledger

Run = Annotated[
    Path, Parameter(name="--run", help="A run's directory, or an --out directory, whose last run is meant.")
]
Id = Annotated[str, Parameter(help="An attempt's id, or the beginning of one.")]


class AttemptsDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempts/1"
    run_id: str
    attempts: tuple[AttemptFacts, ...]


class AttemptDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_show/1"
    attempt: AttemptFacts
    doubt: str | None
    """Why its evidence does not hold, so that nothing here can be relied on; null: it holds, or is still written."""
    documents: dict[str, Any]
    """The JSON artifacts of its bundle, by name."""


class ExplainDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_explain/1"
    attempt: AttemptFacts
    doubt: str | None
    """Why its evidence does not hold, so that nothing here can be relied on; null: it holds, or is still written."""
    lines: tuple[str, ...]
    """The story, in the order it is told: what went wrong comes first. Lines of an agent's are behind a mark."""


class InterruptDocument(Document, frozen=True, kw_only=True):
    schema: str = "proofbox.attempt_interrupt/1"
    attempt: AttemptFacts
    conducted: bool
    """Whether a process conducts the run; else it takes effect when the run is resumed."""


_STOPPED = {
    "planned": "it ends within seconds, and is never begun",
    "claimed": "it is stopped within seconds, before its agent is begun",
    "preparing": "it is stopped within seconds, before its agent is begun",
    "running": "its agent is stopped within seconds, and what it left is verified",
    "stopping": "its agent has ended; it is not verified",
    "verifying": "its verifier is stopped within seconds, so that it is not verified",
    "committing": "it has come to its end already, and is being committed",
}


def list_(run: RunPath = Path("out"), *, json: flags.Json = False) -> int:
    """List the attempts of a run, in any state; of a committed run with the results that its evidence states.

    For example:
      proofbox attempt list out
    """
    from proofbox.lab.reports.results import read_run

    with _ledger(run) as (ledger, place):
        results = read_run(place, ledger)
    found = tuple(AttemptFacts.of(each, place) for each in results.attempts)
    rows: list[tuple[str, ...]] = [("ATTEMPT", "STATE", "CLAIMED", "VERIFIED", "REASON", "INFRA")]
    for each in found:
        cells = (each.claimed, each.verified, each.reason, each.infra)
        rows.append((each.attempt_id, each.state, *(cell or "-" for cell in cells)))
    show(AttemptsDocument(run_id=place.name, attempts=found), lambda: columns(rows), as_json=json)
    return 0


def show_(id: Id, *, run: Run = Path("out"), json: flags.Json = False) -> int:
    """Show what is recorded of one attempt.

    For example:
      proofbox attempt show answer.1 --run out
    """
    from proofbox.lab.reports.explain import doubt, read_documents

    attempt, place, _ = _attempt(run, id)
    facts = AttemptFacts.of(attempt, place)
    documents = read_documents(place / attempt.path)
    why_not = doubt(attempt, place / attempt.path)
    text = [] if why_not is None else [f"its evidence does not hold: {why_not}"]
    text += [f"{name}: {getattr(facts, name)}" for name in AttemptFacts.__struct_fields__]
    text += ["documents: " + ", ".join(sorted(documents))]
    document = AttemptDocument(attempt=facts, doubt=why_not, documents=documents)
    show(document, lambda: printable("\n".join(text)), as_json=json)
    return 0


def explain_(id: Id, *, run: Run = Path("out"), json: flags.Json = False) -> int:
    """Say in plain words what happened in an attempt, the failing step first.

    For example:
      proofbox attempt explain answer.1 --run out
    """
    from proofbox.lab.reports.explain import doubt, explain

    attempt, place, replacement = _attempt(run, id)
    bundle = place / attempt.path
    why_not = doubt(attempt, bundle)
    lines = tuple(explain(attempt, bundle, doubt=why_not, replacement=replacement))
    document = ExplainDocument(attempt=AttemptFacts.of(attempt, place), doubt=why_not, lines=lines)
    show(document, lambda: printable("\n".join(lines)), as_json=json)
    return 0


def interrupt(id: Id, *, run: Run = Path("out"), json: flags.Json = False) -> int:
    """Stop one attempt, wherever it is: queued, in its setup, its agent's turn or its verification. Its siblings go on.

    Where nobody conducts the run, that takes effect when it is resumed.

    For example:
      proofbox attempt interrupt answer.1 --run out
    """
    from proofbox.lab.run.plan import is_conducted

    with _ledger(run, read_only=False) as (ledger, place):
        attempt = ledger.interrupt(id)
    facts = AttemptFacts.of(attempt, place)
    conducted = is_conducted(place.parent, place.name)
    if attempt.state == "ended":
        words = "it has ended already" + (", and is not tried again" if attempt.interrupt else "")
    elif not conducted:
        words = (
            f"nobody conducts the run; it is stopped when that is resumed: proofbox suite resume {quote(str(place))}"
        )
    else:
        words = _STOPPED[facts.state]
    document = InterruptDocument(attempt=facts, conducted=conducted)
    show(document, lambda: printable(f"{attempt.id}: {words}"), as_json=json)
    return 0


@contextmanager
def _ledger(run: Path, *, read_only: bool = True) -> Iterator[tuple[Ledger, Path]]:
    """The ledger of the run that is meant, and the run's directory."""
    from proofbox.lab.run.conductor import find_run
    from proofbox.lab.run.plan import ledger_path

    out, run_id = find_run(run)
    with Ledger(ledger_path(out, run_id), read_only=read_only) as ledger:
        yield ledger, out / run_id


def _attempt(run: Path, id: str) -> tuple[Attempt, Path, str | None]:
    """The attempt that is meant, its run's directory, and the attempt that was made in its place."""
    with _ledger(run) as (ledger, place):
        attempt = ledger.attempt(id)
        children = (each.id for each in ledger.attempts() if each.parent == attempt.id)
        return attempt, place, next(children, None)
