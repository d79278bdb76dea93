"""Every provider passes the conformance suite, as root and as an ordinary user.

Each check is a separate test. If the tests run as root, the checks as an ordinary user run in a process of that user,
which reads names of checks from stdin and prints reports.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec
import pytest
from capabilities import OrdinaryUser
from pacing import SOON, in_time

from proofbox.errors import ProviderUnknown, UsageError
from proofbox.sandbox import conformance
from proofbox.sandbox.conformance import CHECKS, CheckResult, ProviderCheck, Report, run_conformance
from proofbox.sandbox.conformance import context as context_module
from proofbox.sandbox.conformance.check import MEMORY, NETWORK, NOTHING, Need, NotChecked, expect
from proofbox.sandbox.conformance.context import CheckContext, processes_with
from proofbox.sandbox.conformance.probing import probed
from proofbox.sandbox.contract import Enforcement
from proofbox.sandbox.probing.plan import Probe

NAMES = [check.name for check in CHECKS]

SERVE = """
import sys
import msgspec
from proofbox.sandbox.conformance import run_conformance
for line in sys.stdin:
    provider, check = line.split()
    print(msgspec.json.encode(run_conformance(provider, only=[check])).decode(), flush=True)
"""

RunCheck = Callable[[str, str], Report]


@pytest.fixture(scope="module")
def as_ordinary_user(ordinary_user: OrdinaryUser) -> Generator[RunCheck]:
    process = subprocess.Popen(
        [ordinary_user.python, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env=dict(ordinary_user.env),
        **ordinary_user.identity,
    )
    questions, answers = process.stdin, process.stdout
    assert questions is not None
    assert answers is not None

    def run_check(provider: str, check: str) -> Report:
        questions.write(f"{provider} {check}\n")
        questions.flush()
        return msgspec.json.decode(answers.readline(), type=Report)

    yield run_check
    questions.close()
    answers.close()
    assert process.wait(60) == 0


def verdict(report: Report) -> None:
    [result] = report.results
    if result.outcome == "failed":
        pytest.fail(result.detail, pytrace=False)
    if result.outcome == "not_applicable":
        # Not a skip: the provider declares what it does not enforce, and `policy.refusals` tests that it refuses it.
        assert result.detail, "a check that does not apply must give a reason"
    if result.outcome == "not_checked":
        pytest.skip(result.detail)


@pytest.mark.parametrize("check", NAMES)
def test_off(check: str) -> None:
    verdict(run_conformance("off", only=[check]))


@pytest.mark.needs("bubblewrap", "root")
@pytest.mark.parametrize("check", NAMES)
def test_bubblewrap_as_root(check: str) -> None:
    verdict(run_conformance("bubblewrap", only=[check]))


@pytest.mark.needs("bubblewrap", "unprivileged-user")
@pytest.mark.parametrize("check", NAMES)
def test_bubblewrap_as_ordinary_user(check: str, as_ordinary_user: RunCheck) -> None:
    verdict(as_ordinary_user("bubblewrap", check))


@pytest.mark.needs("unprivileged-user")
@pytest.mark.parametrize(
    "check", [name for name in NAMES if name.startswith(("killing", "loss", "detached", "policy"))]
)
def test_off_as_ordinary_user(check: str, as_ordinary_user: RunCheck) -> None:
    verdict(as_ordinary_user("off", check))


# The runner itself.


def run_one(
    monkeypatch: pytest.MonkeyPatch, run: Callable[[CheckContext], None], needs: Need = NOTHING, seconds: float = 60
) -> CheckResult:
    check = ProviderCheck("runner.sample", "runner", needs, run, seconds=seconds)
    monkeypatch.setattr(conformance, "CHECKS", (check,))
    [result] = run_conformance("off").results
    return result


def passes(context: CheckContext) -> None:
    expect(context.project.is_dir(), "the project is missing")


def test_check_that_returns_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_one(monkeypatch, passes)
    assert (result.outcome, result.detail) == ("passed", "")
    assert result.duration_ms > 0


def test_unmet_expectation_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_one(monkeypatch, lambda _: expect(False, "three instead of two"))
    assert (result.outcome, result.detail) == ("failed", "three instead of two")


def test_unexpected_error_is_a_failure_with_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(context: CheckContext) -> None:
        context.refused(UsageError, "a sum", lambda: 1 // 0)

    result = run_one(monkeypatch, run)
    assert result.outcome == "failed"
    assert result.detail.startswith("ZeroDivisionError at context.py:")


def test_hanging_check_fails_and_its_box_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    markers = []

    def run(context: CheckContext) -> None:
        markers.append(context.marker)
        with contextlib.suppress(Exception):
            context.sh(context.session(), "sleep 60", timeout=60)

    began = time.monotonic()
    result = in_time(lambda limit: run_one(monkeypatch, run, seconds=limit), lambda _: markers)
    assert result.outcome == "failed"
    assert result.detail.startswith("still running after ")
    assert time.monotonic() - began < SOON
    assert processes_with(markers[-1]) == []


def test_not_checked_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: CheckContext) -> None:
        raise NotChecked("no interpreter")

    result = run_one(monkeypatch, run)
    assert (result.outcome, result.detail) == ("not_checked", "no interpreter")


def test_unclaimed_check_is_not_applicable_with_the_provider_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_one(monkeypatch, passes, NETWORK)
    assert result.outcome == "not_applicable"
    assert "the provider is off" in result.detail


def test_check_of_probes_fails_for_an_attack_that_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run_one(monkeypatch, probed("outside.write", "network.tcp", network="full"))
    assert result.outcome == "failed"
    assert "outside.write: unexpected_allow, changed on the host" in result.detail
    assert "network.tcp: unexpected_allow, the listener received it" in result.detail


def test_attack_that_fails_without_a_box_too_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(id="read", operation="file-read", args=("{directory}",), expect="deny", reason="it is a directory")
    monkeypatch.setattr("proofbox.sandbox.conformance.probing.corpus_probes", lambda *_: [probe])
    result = run_one(monkeypatch, probed("read", network="full"))
    assert (result.outcome, result.detail) == ("not_checked", "read: denied without a sandbox too")


def test_unknown_probes_fail_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the corpus has no probe outside.wrote" in run_one(monkeypatch, probed("outside.wrote")).detail


def test_gap_without_a_reason_is_named() -> None:
    assert MEMORY.unmet("box", Enforcement()) == "box does not enforce memory"
    assert MEMORY.unmet("box", Enforcement(memory=True)) is None


def test_process_left_by_a_check_is_a_failure_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []

    def run(context: CheckContext) -> None:
        left.append(subprocess.Popen(["sh", "-c", "read -r _", context.marker], stdin=subprocess.PIPE))

    monkeypatch.setattr(context_module, "SETTLE_SECONDS", 0.3)
    result = run_one(monkeypatch, run)
    assert result.outcome == "failed"
    assert "still running" in result.detail
    left[0].communicate()
    assert left[0].returncode == -9


def test_check_directories_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def run(context: CheckContext) -> None:
        seen.append(context.scratch)
        deep = context.project / "a" / "b"
        deep.mkdir(parents=True)
        (deep / "c").write_text("x")
        deep.chmod(0)

    assert run_one(monkeypatch, run).outcome == "passed"
    assert not seen[0].exists()


def test_only_selects_checks_and_on_result_gets_each_result() -> None:
    seen: list[CheckResult] = []
    report = run_conformance("off", only=["policy", "commands.exit-codes"], on_result=seen.append)
    assert tuple(seen) == report.results
    assert {result.subject for result in seen} == {"policy", "commands"}
    assert [result.check for result in seen if result.subject == "commands"] == ["commands.exit-codes"]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown check 'commands\.nothing'"):
        run_conformance("off", only=["commands.nothing"])
    with pytest.raises(ProviderUnknown):
        run_conformance("elsewhere")


def test_report_survives_json() -> None:
    report = run_conformance("off", only=["commands.exit-codes"])
    plain = msgspec.to_builtins(report)
    assert plain["schema_version"] == "proofbox.conformance/1"
    assert plain["results"][0]["outcome"] == "passed"
    assert msgspec.convert(plain, Report) == report
    assert report.ok


def test_check_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(check.name.startswith(f"{check.subject}.") for check in CHECKS)
