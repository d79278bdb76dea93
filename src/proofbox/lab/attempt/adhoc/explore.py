"""Explore an attempt from one of its steps: run branches in parallel, and keep the best verified one.

Each branch is a fork with its own workspace and evidence. After its agent has ended, its files are verified in a fresh
box, against the files that the original attempt started from, so changes made before the step are verified as well. The
result is the best of K tries. It says less about an agent than the first try, so it is never part of a run or a rate.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Literal, NamedTuple, Unpack, cast

import anyio
import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.strategies import parse_chain
from proofbox.core.digest import sha256_file
from proofbox.core.documents import stored
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.results import Document
from proofbox.errors import ProofboxError, UsageError
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.bundle.reader import Bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.verify.pinned_bundles import EXPLORATION
from proofbox.lab.attempt import artifacts
from proofbox.lab.attempt.adhoc.fork import fork_attempt_async
from proofbox.lab.attempt.adhoc.fork_consent import require_fork_consent
from proofbox.lab.attempt.adhoc.request import AttemptOptions, AttemptRun
from proofbox.lab.attempt.documents import AttemptRecord
from proofbox.lab.attempt.expectations import refuse_expect
from proofbox.lab.attempt.final_tree import StoredTrees, final_of, stored_trees
from proofbox.lab.attempt.mission_box import requested_options
from proofbox.lab.attempt.result import Verified
from proofbox.lab.attempt.verifier import check, lay_beside, lay_out
from proofbox.lab.reports.steps import load_attempt, step_of
from proofbox.lab.run.plan import box_settings
from proofbox.lab.suite.files import SuiteFiles
from proofbox.lab.suite.reading import read_suite
from proofbox.lab.suite.spec import Mission, Verify
from proofbox.lab.suite.widening import require_consent
from proofbox.sandbox.client.signals import interrupting_waits
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.options import PolicyOptions
from proofbox.sandbox.service import Sandboxes
from proofbox.workspace.timeline.change_size import changed_lines

SCHEMA = "proofbox.exploration/1"
MAX_BRANCHES = 32
AT_ONCE = 8
BOX_OPTIONS = ("image", "runtime", "memory", "cpus", "pids")
"""Options of a branch's box that also apply to the box that verifies its files. It gets neither network nor mounts,
which the agent may have changed."""
_Path = str | os.PathLike[str]


class ExploredBranch(msgspec.Struct, frozen=True, kw_only=True):
    """One branch: a fork of the attempt, and what the verifier found."""

    number: int
    """From 1."""
    strategy: str
    """The runtime that continued; empty if no agent started."""
    status: str
    """`completed`, `failed` or `interrupted`, as in the branch's evidence; `not_started`: it has no evidence."""
    verified: Verified
    """Whether its files passed the verification. `none`: they were not verified."""
    changed_lines: int | None
    """Lines that it added and removed since the step, with binary files and very long lines in units of 100 bytes, and
    a change of a mode or path as one; null: not known."""
    tokens: int | None
    """Input and output tokens of the branch; null: not known."""
    attempt_id: str = ""
    bundle: str = ""
    """Its evidence, relative to the exploration's directory."""
    index_sha256: str = ""
    """The digest of the index of its bundle."""
    workspace: str = ""
    """Its files, relative to the exploration's directory."""
    code: str = ""
    """The error code if no agent started or the verification could not be made."""
    reason: str = ""
    """A description of that error."""


@stored(SCHEMA, at="BUNDLE/exploration.json of `proofbox explore`")
class Exploration(msgspec.Struct, frozen=True, kw_only=True):
    """Branches that continued from one step of an attempt, and the one that was kept."""

    attempt_id: str
    """The attempt that was explored."""
    step: int
    """The step that all branches continued from."""
    selection: Literal["best_of_k"] = "best_of_k"
    """The kept branch is the best of several tries. It is not comparable with the result of a single try."""
    branches: tuple[ExploredBranch, ...]
    """The branches, in the order of their numbers."""
    kept: int | None
    """The number of the verified branch with the fewest changed lines, then the fewest tokens; null: none passed."""
    schema_version: str = SCHEMA


class ExploreDocument(Document, frozen=True, kw_only=True):
    """An exploration and where its evidence is."""

    schema: str = "proofbox.explore/1"
    bundle: str
    """The bundle that records the exploration and pins the branches' evidence."""
    exploration: Exploration
    """The recorded exploration."""


def explore_attempt(
    attempt: _Path,
    step: int,
    directory: _Path,
    *,
    prompt: str,
    branches: int = 4,
    verify: Sequence[str] = (),
    suite: _Path | None = None,
    trust: bool = False,
    **options: Unpack[AttemptOptions],
) -> ExploreDocument:
    """Continue from a step of an attempt in several branches, verify each, and keep the best that passes.

    For example:

        done = proofbox.explore_attempt("t1", 2, "tries", prompt="fix the test", branches=4, verify=["pytest -q"])
        print(done.exploration.kept, done.bundle)

    The branches are verified with the commands in `verify`, or as the mission of the attempt in the file `suite`. Like
    `run_suite`, this needs the user's consent to everything that the suite asks for beyond the user's settings; `trust`
    is that consent, and also the consent that `fork_attempt` needs. A mission with conditions in `expect` is refused.

    With several `strategies`, the branches use them in turn. `directory` is new, for the workspaces and the evidence of
    all branches. The other parameters are as in `fork_attempt`.
    """
    run = partial(
        explore_attempt_async,
        attempt,
        step,
        directory,
        prompt=prompt,
        branches=branches,
        verify=verify,
        suite=suite,
        trust=trust,
        **options,
    )
    with interrupting_waits():
        return anyio.run(run)


async def explore_attempt_async(
    attempt: _Path,
    step: int,
    directory: _Path,
    *,
    prompt: str,
    branches: int = 4,
    verify: Sequence[str] = (),
    suite: _Path | None = None,
    trust: bool = False,
    **options: Unpack[AttemptOptions],
) -> ExploreDocument:
    """Like `explore_attempt`, for async programs.

    For example:

        done = await proofbox.explore_attempt_async("t1", 2, "tries", prompt="fix the test", verify=["pytest -q"])
    """
    if not 1 <= branches <= MAX_BRANCHES:
        raise UsageError(f"the number of branches must be between 1 and {MAX_BRANCHES}", op="explore")
    if options.get("out") is not None:
        raise UsageError("the branches of an exploration can't share one `out`", op="explore")
    source = await run_sync(load_attempt, Path(attempt))
    record = await run_sync(artifacts.read_document, source, artifacts.ATTEMPT, AttemptRecord)
    given = final_of(record).given
    await run_sync(_check_step, source, record, step)
    await run_sync(partial(require_fork_consent, source, options, trust=trust, command="proofbox explore"))
    how = await run_sync(partial(_verification, record, verify, suite, trust=trust))
    place = await run_sync(_new_directory, Path(directory))
    chosen = options.get("strategies")
    strategies = [str(each.strategy) for each in parse_chain(chosen, "flag").candidates] if chosen else []
    limiter = anyio.CapacityLimiter(AT_ONCE)
    found: dict[int, ExploredBranch] = {}

    async def one(number: int) -> None:
        async with limiter:
            own: AttemptOptions = {**options, "out": place / str(number) / "bundle", "on_event": None}
            if strategies:
                own["strategies"] = f"{strategies[(number - 1) % len(strategies)]}!"
            await run_sync((place / str(number)).mkdir)
            files = place / str(number) / "workspace"
            try:
                fork = await fork_attempt_async(attempt, step, files, prompt=prompt, trust=trust, **own)
                made = cast("AttemptRun", fork.attempt)
                found[number] = await run_sync(_branch, number, made, place, given, how)
            except ProofboxError as error:
                found[number] = _not_started(number, own, error)

    async with anyio.create_task_group() as tasks:
        for number in range(1, branches + 1):
            tasks.start_soon(one, number)
    explored = tuple(found[number] for number in sorted(found))
    key = (options.get("settings") or {}).get("api_key_env")
    redactor = Redactor.for_evidence(os.environ, [key] if isinstance(key, str) else [])
    found_all = Exploration(attempt_id=record.attempt_id, step=step, branches=explored, kept=best(explored))
    exploration = msgspec.convert(redactor.redact_json(msgspec.to_builtins(found_all)), Exploration)
    bundle = await run_sync(_commit, exploration, place / "exploration", redactor)
    return ExploreDocument(ok=exploration.kept is not None, bundle=bundle, exploration=exploration)


def _check_step(source: Bundle, record: AttemptRecord, step: int) -> None:
    """Raise what would keep every branch from starting at the step."""
    if step != 0:
        step_of(source, step)
    with stored_trees(final_of(record), record.attempt_id, "explore"):
        pass


def _new_directory(path: Path) -> Path:
    try:
        path.mkdir(parents=True)
    except OSError as error:
        why = "already exists" if path.exists() else f"can't be created: {error.strerror}"
        hints = ["choose a new directory with --out"]
        raise UsageError(f"{path} {why}", op="explore", fix_hints=hints) from None
    return path.resolve()


def best(branches: Sequence[ExploredBranch]) -> int | None:
    """Return the verified branch with the fewest changed lines, then the fewest tokens, then the lowest number."""
    last = float("inf")

    def rank(branch: ExploredBranch) -> tuple[float, float, int]:
        lines, tokens = branch.changed_lines, branch.tokens
        return (last if lines is None else lines, last if tokens is None else tokens, branch.number)

    passed = [branch for branch in branches if branch.verified == "passed"]
    return min(passed, key=rank).number if passed else None


class _Verification(NamedTuple):
    """How the branches are verified."""

    mission: Mission
    at: Callable[[str], Path]
    """Returns the path of a file that the mission names."""
    in_box_of_branch: bool
    """The box is like the one of the branch's agent, not like a suite's."""


def _verification(record: AttemptRecord, verify: Sequence[str], suite: _Path | None, *, trust: bool) -> _Verification:
    """Return how to verify the branches. A suite needs the user's consent to all its requests, as before a run."""
    if bool(verify) == (suite is not None):
        raise UsageError(
            "state how to verify the branches: either commands, or the attempt's suite",
            op="explore",
            fix_hints=["--verify 'pytest -q'", "or: --suite suite.toml"],
        )
    if not all(command.strip() for command in verify):
        raise UsageError("a command of --verify is empty, so it would always pass", op="explore")
    if suite is None:
        mission = Mission(id=record.mission_id, prompt="", verify=Verify(commands=tuple(verify)))
        return _Verification(mission, Path, in_box_of_branch=True)
    read = read_suite(Path(suite))
    named = [each for each in read.missions if each.id == record.mission_id]
    if not named or not named[0].verify.commands:
        raise UsageError(f"{suite} has no mission {record.mission_id} with commands in verify", op="explore")
    mission = named[0]
    if mission.then:
        raise UsageError(
            f"mission {record.mission_id} has several turns, each with its own verification, but a branch is one turn",
            op="explore",
            fix_hints=["state how to verify the branches: --verify 'pytest -q'"],
        )
    refuse_expect([mission], "explore")
    name = os.fspath(suite)
    with SuiteFiles(read.base) as files:
        command = f"proofbox explore --suite {quote(name)} --trust …"
        require_consent(read, files, box_settings(), name=name, provider=None, trust=trust, command=command)
    return _Verification(mission, read.at, in_box_of_branch=False)


def _branch(number: int, made: AttemptRun, place: Path, given: str, how: _Verification) -> ExploredBranch:
    bundle = Path(made.bundle)
    verified: Verified = "none"
    code = reason = ""
    changed = None
    if made.snapshot_after:
        record = artifacts.read_document(load_attempt(bundle), artifacts.ATTEMPT, AttemptRecord)
        try:
            with stored_trees(final_of(record), made.attempt_id, "explore") as trees:
                changed = trees.compare(final_of(record).given, final_of(record).snapshot, changed_lines)
                if made.infra is None:
                    verified = _verify(record, trees, given, how)
        except ProofboxError as error:
            code, reason = error.code, error.message
    return ExploredBranch(
        number=number,
        strategy=made.strategy,
        status=made.status,
        verified=verified,
        changed_lines=changed,
        tokens=None if made.usage is None else made.usage.input_tokens + made.usage.output_tokens,
        attempt_id=made.attempt_id,
        bundle=str(bundle.relative_to(place)),
        index_sha256=sha256_file(bundle / INDEX)[0],
        workspace=str(Path(made.workspace).relative_to(place)),
        code=code,
        reason=reason,
    )


def _not_started(number: int, options: AttemptOptions, error: ProofboxError) -> ExploredBranch:
    return ExploredBranch(
        number=number,
        strategy=str(options.get("strategies") or "").rstrip("!"),
        status="not_started",
        verified="none",
        changed_lines=None,
        tokens=None,
        code=error.code,
        reason=error.message,
    )


def _verify(record: AttemptRecord, trees: StoredTrees, given: str, how: _Verification) -> Verified:
    """Verify a branch's final files in a fresh box."""
    mission, at, in_box_of_branch = how
    verify = mission.verify
    files = None if verify.files is None else at(verify.files)
    with tempfile.TemporaryDirectory(prefix="proofbox-explore-") as scratch:
        place = Path(scratch)
        place.chmod(0o755)
        tree = place / "verified"
        with lay_out(trees, given, final_of(record).snapshot, verify, files, tree):
            pass  # a copy, which stays
        provider, policy = mission.provider, requested_options(mission)
        if in_box_of_branch:
            kept = {name: value for name, value in record.policy.items() if name in BOX_OPTIONS}
            provider, policy = record.requested.provider, cast("PolicyOptions", kept)
        if mission.workdir is not None:
            policy["mounts"] = [Mount(tree, mission.workdir, writable=True)]
        with Sandboxes(tree, settings=box_settings()) as boxes:
            redactor = Redactor.for_evidence(os.environ)
            beside = lay_beside(verify, at, place / "beside")
            result = check(boxes, verify, redactor, provider=provider, policy=policy, beside=beside)
    return "none" if result.passed is None else "passed" if result.passed else "failed"


def _commit(exploration: Exploration, place: Path, redactor: Redactor) -> str:
    with BundleWriter.create(place, expected=(EXPLORATION,), redactor=redactor) as bundle:
        bundle.write_json(EXPLORATION, msgspec.to_builtins(exploration))
    return str(bundle.path)
