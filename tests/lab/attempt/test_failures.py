"""A failure in an attempt ends that attempt with a code, and affects no worker, other attempt or run."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suites import HEAD, attempts, command, conduct, document, mission, patch_workers, plan, results, say, write

from proofbox.core.canonical import CanonicalError, canonical_bytes, parse_strict
from proofbox.core.clock import SystemClock
from proofbox.core.files.removal import remove_tree
from proofbox.errors import AgentError, RuntimeCrashed, UsageLimited
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.attempt.cleaning import encodable
from proofbox.lab.reports.validation import validate
from proofbox.lab.run.failures import retry_after, typed
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path
from proofbox.lab.run.running import load_run
from proofbox.lab.run.template import FORKS_OF_A_STORE, GIVEN, MAX_IDLE, Templates
from proofbox.lab.suite.reading import pinned_name
from proofbox.sandbox.conformance.context import command_line, processes_with
from proofbox.workspace import registry
from proofbox.workspace.registry import forget_workspaces
from proofbox.workspace.workspace import Workspace

ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
DOES_IT = (write("answer.txt", "42\n"), say("done"))
GOOD = ("success", "passed", None, "completed")
LOST = ("none", "none", "ATTEMPT_WORKER_LOST", "worker_lost")
boxed = pytest.mark.needs("bubblewrap")


@pytest.fixture
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one worker, so that whatever kills one attempt kills all running ones."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def until(made: Plan, out: Path, ended: str, then: str) -> Callable[[dict[str, Any]], None]:
    """When one attempt has ended, interrupt another that would never end."""

    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "ended" and event["attempt_id"] == ended:
            with Ledger(ledger_path(out, made.run_id)) as ledger:
                ledger.interrupt(then)

    return hear


def not_utf8(path: Path) -> None:
    path.write_bytes(b"do \xff it")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def gone(path: Path) -> None:
    path.unlink()


@boxed
@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize(
    ("damage", "code", "tries"),
    [(not_utf8, "PROOFBOX_INTERNAL", 1), (directory, "PROOFBOX_IO", 2), (gone, "PROOFBOX_IO", 2)],
)
def test_unexpected_error_ends_only_its_attempt(
    out: Path, tmp_path: Path, damage: Callable[[Path], None], code: str, tries: int
) -> None:
    (tmp_path / "prompt.txt").write_text("do it")
    broken = mission("broken", *DOES_IT, prompt_file="prompt.txt").replace('prompt = "do it"\n', "")
    waits = mission("waits", command("sleep 600"), verify=ANSWER)
    made = plan(HEAD + waits + broken + mission("good", *DOES_IT, verify=ANSWER), out, tmp_path, retries=1)
    damage(out / ".work" / made.run_id / "pinned" / pinned_name("prompt.txt"))
    last = "broken.1" if tries == 1 else "broken.1.r1"
    run = conduct(made, out, until(made, out, last, "waits.1"))
    failed = ("none", "none", code, "infra_failed")
    assert results(made, out) == {
        "waits.1": ("none", "failed", None, "interrupted"),
        "good.1": GOOD,
        "broken.1": failed,
        **({last: failed} if tries > 1 else {}),
    }
    found = attempts(made, out)
    assert found[last].parent == (None if tries == 1 else "broken.1")
    error = document(out, made, found["broken.1"], "attempt.json")["error"]
    assert error["code"] == code
    assert error["raised_at"].endswith(tuple("0123456789"))
    assert document(out, made, found["broken.1"], "outcome.json")["infra"]["result"] == "failed"
    assert verify(run).ok
    assert validate(load_bundle(run / found["broken.1"].path), strict=False) == []
    assert load_bundle(run).index.status == "partial"


STRANGE = "$(printf '\\377')"
DEEP = "n=$(printf 'x%.0s' $(seq 200)); for i in $(seq 90); do mkdir $n && cd $n || exit 1; done; echo > f"
WORDS = {"says": '{"status": "success", "s": "\\ud800"}', "says-much": '{"a":' * 5000 + "1" + "}" * 5000}


@boxed
@pytest.mark.usefixtures("one_worker")
def test_agent_output_cannot_end_other_attempts(out: Path, tmp_path: Path) -> None:
    hooks = command(f"mkdir {STRANGE}; echo > {STRANGE}/conftest.py; mkfifo p{STRANGE}")
    source = HEAD + "".join(
        [
            mission("plants", hooks, *DOES_IT, verify=ANSWER),
            mission("leaves", command(f"echo > {STRANGE}"), *DOES_IT, verify={**ANSWER, "take": ["answer.txt"]}),
            mission("goes-deep", command(DEEP), *DOES_IT, verify=ANSWER),
            *(mission(id, *DOES_IT[:1], say(words), verify=ANSWER) for id, words in WORDS.items()),
            mission("plain", *DOES_IT, verify=ANSWER),
        ]
    )
    made = plan(source, out, tmp_path, retries=0)
    run = conduct(made, out)
    found = results(made, out)
    assert sorted(found) == sorted(f"{id}.1" for id in ("plants", "leaves", "goes-deep", *WORDS, "plain"))
    assert {id for id, it in found.items() if it[1] == "passed"} >= set(found) - {"goes-deep.1"}
    report = document(out, made, attempts(made, out)["plants.1"], "attempt.report.json")
    assert report["put_back"] == ["\\xff/conftest.py"]
    assert verify(run).ok
    assert validate(load_bundle(run), strict=False) == []


CAN_NOT_WRITE = """
from proofbox.lab.attempt import artifacts
write_all = artifacts.write_all
def fails(bundle, story, redactor):
    write_all(bundle, story, redactor)
    if story.attempt.parent is None:
        raise OSError(28, "No space left on device")
artifacts.write_all = fails
"""


@boxed
@pytest.mark.usefixtures("one_worker")
def test_unwritable_documents_fail_the_bundle_and_the_attempt_is_retried(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_workers(monkeypatch, CAN_NOT_WRITE)
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": ("none", "none", "PROOFBOX_IO", "infra_failed"), "answer.1.r1": GOOD}
    assert load_run(run).findings == ()
    failed = load_bundle(run).nested[attempts(made, out)["answer.1"].path]
    assert failed.index.status == "failed"
    assert failed.status.failure is not None
    assert "No space left" in failed.status.failure["message"]
    assert not emit_promotion(run).promotable
    assert verify(run).ok


CAN_NOT_COMMIT = """
from proofbox.evidence.bundle.writer import BundleWriter
commit = BundleWriter._commit
def fails(writer, error):
    if writer.path.name == "answer.1.e1":
        raise OSError(28, "No space left on device")
    commit(writer, error)
BundleWriter._commit = fails
"""


@boxed
@pytest.mark.usefixtures("one_worker")
def test_worker_gives_up_an_attempt_that_it_cannot_commit(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_workers(monkeypatch, CAN_NOT_COMMIT)
    waits = mission("waits", command("sleep 600"), verify=ANSWER)
    made = plan(HEAD + waits + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    run = conduct(made, out, until(made, out, "answer.1.r1", "waits.1"))
    assert results(made, out) == {
        "waits.1": ("none", "failed", None, "interrupted"),
        "answer.1": LOST,
        "answer.1.r1": GOOD,
    }
    given_up = attempts(made, out)["answer.1"]
    assert "could not commit" in document(out, made, given_up, "attempt.torn.json")["error"]["message"]
    assert document(out, made, given_up, "unfinished/attempt.report.json")["verified"] == "passed"
    assert verify(run).ok
    assert validate(load_bundle(run / given_up.path), strict=False) == []


@boxed
@pytest.mark.parametrize("left", ["", "/.proofbox-tmp-left", "/a-file"])
def test_occupied_attempt_path_fails_the_attempt_not_the_run(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Simulate a worker killed before it wrote a status, or files of another program."""
    place = f"'/'.join(sys.argv[1:3]) + '/attempts/answer.1.e1{left}'"
    patch_workers(monkeypatch, f"os.makedirs(os.path.dirname({place}), exist_ok=True)\nopen({place}, 'a').close()")
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}
    assert load_bundle(run).index.status == "partial"


def test_failed_template_is_created_again_for_the_next_attempt(tmp_path: Path) -> None:
    templates = Templates(tmp_path / "templates", "w", SystemClock())
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            templates.fork("m", tmp_path / "never")
    given = tmp_path / "templates/m" / GIVEN
    given.mkdir(parents=True)
    (given / "file").write_text("here")
    for number in range(2):
        templates.fork("m", tmp_path / f"fork-{number}").forget()
        assert (tmp_path / f"fork-{number}/file").read_text() == "here"
    forget_workspaces(tmp_path / "templates", tmp_path)


def test_one_open_template_is_kept_per_concurrent_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Workspace] = []
    closed: list[Workspace] = []
    plain_open, plain_close = Workspace.open, Workspace.close

    def counted_open(*args: Any, **options: Any) -> Workspace:
        opened.append(plain_open(*args, **options))
        return opened[-1]

    def counted_close(workspace: Workspace) -> None:
        closed.append(workspace)
        plain_close(workspace)

    monkeypatch.setattr(Workspace, "open", counted_open)
    monkeypatch.setattr(Workspace, "close", counted_close)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "templates/m" / GIVEN).mkdir(parents=True)
    templates = Templates(Path("templates"), "w", SystemClock())
    with ThreadPoolExecutor(4) as threads:
        forks = threads.map(lambda number: templates.fork("m", tmp_path / f"fork-{number}"), range(FORKS_OF_A_STORE))
        for fork in forks:
            fork.forget()
    assert 1 <= len(opened) <= 4, "at most one per concurrent fork"
    assert not set(opened) & set(closed)
    for number in range(MAX_IDLE):
        (tmp_path / f"templates/m{number}" / GIVEN).mkdir(parents=True)
        templates.fork(f"m{number}", tmp_path / f"fork-of-m{number}").forget()
    assert set(opened) & set(closed) == set(opened[:-MAX_IDLE]), "only the most recently used ones stay open"
    forget_workspaces(tmp_path / "templates", tmp_path)


def test_broken_idle_template_does_not_affect_other_missions(tmp_path: Path) -> None:
    templates = Templates(tmp_path / "templates", "w", SystemClock())
    for number in range(MAX_IDLE + 2):
        (tmp_path / f"templates/m{number}" / GIVEN).mkdir(parents=True)
        fork = templates.fork(f"m{number}", tmp_path / f"fork-{number}")
        if number == 0:
            remove_tree(registry.store_path(fork.store_id))
            registry.forget(fork._registration)
        else:
            fork.forget()
    assert not list((tmp_path / "fork-1").iterdir())


def group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("several", [ExceptionGroup("inner", list(errors))])


def test_every_error_maps_to_a_typed_error() -> None:
    ours = RuntimeCrashed("it is gone", op="turn")
    assert typed(ours) is ours
    assert typed(group(ValueError("x"), ours)) is ours, "found inside a task group"
    assert typed(group(KeyError("x"))).code == "PROOFBOX_INTERNAL"
    full = typed(OSError(errno.ENOSPC, "No space left on device"))
    assert (full.code, full.retryable) == ("PROOFBOX_IO", True)
    internal = typed(ZeroDivisionError("division by zero"))
    assert (internal.code, internal.retryable) == ("PROOFBOX_INTERNAL", False)
    assert "ZeroDivisionError" in internal.message


def test_only_retryable_failures_are_retried() -> None:
    clock = SystemClock()
    assert retry_after(None, clock) is None
    assert retry_after(AgentError("no", op="turn"), clock) is None
    assert retry_after(RuntimeCrashed("gone", op="turn"), clock) == 1.0
    later = clock.now().timestamp() + 100
    assert 90 < (retry_after(UsageLimited("no", op="turn", details={"resets_at": later}), clock) or 0) <= 100


@given(st.recursive(st.text(st.characters(categories=None)), lambda it: st.lists(it) | st.dictionaries(st.text(), it)))
def test_any_agent_text_can_be_recorded(said: Any) -> None:
    written = encodable(said)
    parse_strict(canonical_bytes(written))
    try:
        assert written == said or not canonical_bytes(said)
    except CanonicalError:
        assert "\N{REPLACEMENT CHARACTER}" in str(written)


@boxed
@pytest.mark.parametrize(
    ("chain", "provider", "fields", "code"),
    [
        ("scripted", None, {"provider": "docker", "image": "nothere"}, "SANDBOX_UNAVAILABLE"),
        ("oracle", "off", {"solution": "solve.sh"}, "SANDBOX_POLICY_REFUSED"),
    ],
)
def test_unavailable_box_does_not_count_against_the_agent(
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chain: str,
    provider: str | None,
    fields: dict[str, Any],
    code: str,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    (tmp_path / "solve.sh").write_text("echo 42 > answer.txt\n")
    source = HEAD + mission("a", *DOES_IT, expect={"file": [{"path": "answer.txt"}]}, **fields)
    made = plan(source, out, tmp_path, chain=chain, provider=provider, retries=0, trust=True)
    conduct(made, out)
    assert results(made, out) == {"a.1": ("none", "none", code, "infra_failed")}


@boxed
def test_box_failure_at_first_command_does_not_count_against_the_agent(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "bwrap").write_text("#!/bin/sh\nexit 1\n")
    (programs / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    source = HEAD + mission("a", expect={"file": [{"path": "answer.txt"}]})
    runtimes = {"process": {"command": ["/bin/sh", "-s"]}}
    made = plan(source, out, tmp_path, chain="process", runtimes=runtimes, retries=0)
    conduct(made, out)
    assert results(made, out) == {"a.1": ("none", "none", "SANDBOX_START_FAILED", "infra_failed")}


@boxed
def test_lost_box_is_retried_and_does_not_count_against_the_agent(out: Path, tmp_path: Path) -> None:
    source = HEAD + mission("a", expect={"file": [{"path": "answer.txt"}]})
    runtimes = {"process": {"command": ["/bin/sh", "-c", "echo > up; sleep 600"]}}
    made = plan(source, out, tmp_path, chain="process", runtimes=runtimes, retries=0)

    def kill_box() -> None:
        work = out / ".work" / made.run_id
        # A mounted workspace is empty here, and its layer has the files.
        while not any((work / "attempts/a.1.e1" / place / "up").exists() for place in ("workspace", "layers/upper")):
            time.sleep(0.02)
        for pid in processes_with(str(work)):
            if "boxagent" in command_line(pid).split(" ")[0]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(kill_box)
        conduct(made, out)
        killed.result()
    assert results(made, out) == {"a.1": ("none", "none", "SANDBOX_LOST", "infra_failed")}
