"""`session`: boxes that stay alive between commands and can be used from any process by id."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from proofbox.cli import flags
from proofbox.cli.commands.run.exec import NO_FLAGS, CommandArgs, finish
from proofbox.cli.output import columns, readable, show
from proofbox.cli.parameters import Parameter
from proofbox.errors import UsageError
from proofbox.sandbox import DEFAULT_TTL

if TYPE_CHECKING:
    from proofbox.sandbox.sessions import SessionInfo

SessionId = Annotated[str, Parameter(help="The session's id, as `session start` or `session list` shows it.")]


def start(
    *,
    provider: flags.Provider = None,
    project: flags.Project = Path(),
    ttl: Annotated[float, Parameter(name="--ttl", help="Idle seconds after which the session stops.")] = DEFAULT_TTL,
    box: flags.Box = flags.NO_BOX_FLAGS,
    json: flags.Json = False,
) -> int:
    """Start a box that lives until it is stopped or idle for --ttl seconds. Prints its id.

    For example:
      id=$(proofbox session start)
      proofbox session exec "$id" -- make
      proofbox session stop "$id"
    """
    from proofbox.cli.commands.run.documents import SessionDocument
    from proofbox.sandbox.service import Sandboxes

    if not 1 <= ttl <= 10**7:
        raise UsageError(
            f"--ttl {ttl} is not between 1 and 10000000 seconds", op="session start", fix_hints=["--ttl 3600"]
        )
    with Sandboxes(project) as boxes:
        session = boxes.start_session(
            provider=provider,
            detached=True,
            ttl=ttl,
            **box.options(),
        )
    show(SessionDocument(session=session.info), lambda: session.id, as_json=json)
    return 0


def exec_(
    session_id: SessionId,
    /,
    *argv: str,
    command: CommandArgs = NO_FLAGS,
    json: flags.Json = False,
) -> int:
    """Run a command in a session: proofbox session exec [OPTIONS] SESSION_ID -- COMMAND [ARG]...

    Exit codes, output and signals work as with `proofbox exec`.

    For example:
      proofbox session exec ses-01… -- make
      proofbox session exec ses-01… --json --timeout 60 --shell 'make test'
    """
    from proofbox.sandbox.service import Sandboxes

    words = command.words(argv)
    with Sandboxes() as boxes, command.options(as_json=json) as options:
        result = boxes.exec_in_session(session_id, words, **options)
    return finish(result, as_json=json)


def list_(*, json: flags.Json = False) -> int:
    """List the sessions of this user, running and ended.

    For example:
      proofbox session list
      proofbox session list --json
    """
    from proofbox.cli.commands.run.documents import SessionsDocument
    from proofbox.sandbox.service import Sandboxes

    with Sandboxes() as boxes:
        found = tuple(boxes.list_sessions())
    show(SessionsDocument(sessions=found), lambda: _table(found), as_json=json)
    return 0


def show_(session_id: SessionId, /, *, json: flags.Json = False) -> int:
    """Show one session: its state, provider, project and policy.

    For example:
      proofbox session show ses-01…
    """
    from proofbox.cli.commands.run.documents import SessionDocument
    from proofbox.sandbox.service import Sandboxes

    with Sandboxes() as boxes:
        found = boxes.get_session(session_id)
    show(SessionDocument(session=found), lambda: _details(found), as_json=json)
    return 0


def stop(session_id: SessionId, /, *, json: flags.Json = False) -> int:
    """Stop a session and kill every process in it. Stopping an ended session is not an error.

    For example:
      proofbox session stop ses-01…
    """
    from proofbox.cli.commands.run.documents import SessionDocument
    from proofbox.sandbox.service import Sandboxes

    with Sandboxes() as boxes:
        found = boxes.stop_session(session_id)
    show(SessionDocument(session=found), lambda: f"{found.id} {found.state}", as_json=json)
    return 0


def prune(
    *,
    all: Annotated[bool, Parameter(name="--all", help="Stop running sessions first.")] = False,
    json: flags.Json = False,
) -> int:
    """Remove ended sessions and everything they left behind.

    For example:
      proofbox session prune
      proofbox session prune --all
    """
    from proofbox.cli.commands.run.documents import PrunedDocument
    from proofbox.sandbox.service import Sandboxes

    stopped: list[str] = []
    with Sandboxes() as boxes:
        if all:
            stopped = [session.id for session in boxes.list_sessions() if session.state == "running"]
            for session_id in stopped:
                boxes.stop_session(session_id)
        removed = boxes.prune_sessions()
    document = PrunedDocument(stopped=tuple(stopped), removed=tuple(removed))
    show(document, lambda: f"{len(stopped)} stopped, {len(removed)} removed", as_json=json)
    return 0


def _table(found: tuple[SessionInfo, ...]) -> str:
    if not found:
        return "no sessions; start one: proofbox session start"
    rows = [("SESSION", "STATE", "PROVIDER", "CREATED", "PROJECT")]
    rows += [(each.id, each.state, each.provider, each.created_at[:19] + "Z", each.project) for each in found]
    return columns(rows)


def _details(found: SessionInfo) -> str:
    import msgspec

    facts = msgspec.to_builtins(found, enc_hook=str)
    policy = facts.pop("policy")
    rows = [(name, readable(value)) for name, value in facts.items()]
    rows += [(f"policy {name}", readable(value)) for name, value in policy.items() if value not in (None, (), [])]
    return columns(rows)
