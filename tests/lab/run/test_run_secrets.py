"""Secrets are kept out of the evidence, other values are not redacted, and neither ends a worker or a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, results, say, write

from proofbox.core.redaction.redactor import Redactor
from proofbox.errors import BundleSecretFound, SuiteInvalid
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import Plan, ledger_path, redactor_of

TOKEN = "tok-4f9a1c7b2d"
ANSWER = {"commands": ["grep -qx 42 answer.txt"]}
DOES_IT = (write("answer.txt", "42\n"), say("done"))
GOOD = ("success", "passed", None, "completed")
LEAKED = ("success", "none", "BUNDLE_SECRET_FOUND", "infra_failed")
LOST = ("none", "none", "ATTEMPT_WORKER_LOST", "worker_lost")
boxed = pytest.mark.needs("bubblewrap")


def assert_nowhere(secret: str, place: Path) -> None:
    for path in place.rglob("*"):
        assert secret not in path.name
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


@boxed
def test_cloud_and_forge_variables_are_not_secret_by_prefix(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/something")
    monkeypatch.setenv("RUNNER_NAME", "answer.txt")
    monkeypatch.setenv("SIGNING_KEY", "release")  # a word that environment.json contains as well
    about = mission("region", write("us-east-1.txt", "someone/something"), *DOES_IT, verify=ANSWER)
    made = plan(HEAD + about.replace("do it", "deploy someone/something to us-east-1"), out, tmp_path)
    run = conduct(made, out)
    assert results(made, out) == {"region.1": GOOD}
    assert load_bundle(run).index.status == "ok"


def test_redactor_of_a_run_covers_secret_variables_and_configured_keys() -> None:
    made = Plan(
        run_id="r",
        suite_name="s",
        suite_source="",
        base="",
        chain="scripted",
        chain_origin="flag",
        concurrency=1,
        flags={"api_key_env": "MINE"},
    )
    env = {"MINE": "value-of-mine", "DB_PASSWORD": "value-of-password", "GITHUB_ACTOR": "value-of-actor"}
    redactor = redactor_of(made, env)
    known = [name for name, value in env.items() if redactor.contains_secret(value.encode())]
    assert known == ["MINE", "DB_PASSWORD"]


@boxed
def test_a_secret_in_a_file_s_name_ends_the_attempt_and_nothing_else(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", TOKEN)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one worker for both
    leaks = mission("leaks", command(f"a={TOKEN[:6]}; touch ${{a}}{TOKEN[6:]}"), *DOES_IT, verify=ANSWER)
    made = plan(HEAD + leaks + mission("good", *DOES_IT, verify=ANSWER), out, tmp_path, retries=3)
    run = conduct(made, out)
    assert results(made, out) == {"leaks.1": LEAKED, "good.1": GOOD}
    attempt = attempts(made, out)["leaks.1"]
    error = document(out, made, attempt, "attempt.json")["error"]
    assert error["paths"] == ["tree_manifest.json"]
    assert any("unset" in hint for hint in error["fix_hints"])
    found = load_bundle(run)
    assert found.nested[attempt.path].index.missing == ("tree_manifest.json",)
    assert found.index.status == "partial"
    assert verify(run).ok
    assert_nowhere(TOKEN, run)


@boxed
@pytest.mark.parametrize("place", ["prompt", "file", "script"])
def test_a_suite_that_holds_a_secret_is_refused_before_anything_is_written(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    source = HEAD + mission("leaks", *([say(TOKEN)] if place == "script" else []), *DOES_IT, verify=ANSWER)
    if place == "prompt":
        source = source.replace("do it", f"use {TOKEN}")
    if place == "file":
        (tmp_path / "prompt.txt").write_text(f"use {TOKEN}")
        source = source.replace('prompt = "do it"', 'prompt_file = "prompt.txt"')
    monkeypatch.setenv("DEPLOY_TOKEN", TOKEN)
    with pytest.raises(SuiteInvalid, match="value of DEPLOY_TOKEN") as caught:
        plan(source, out, tmp_path)
    assert TOKEN not in str(caught.value.as_dict())
    assert "unset DEPLOY_TOKEN" in caught.value.fix_hints[1]
    assert not out.exists()
    # Planned without it, the run is refused with it, and can be resumed after that.
    monkeypatch.delenv("DEPLOY_TOKEN")
    made = plan(source, out, tmp_path)
    monkeypatch.setenv("DEPLOY_TOKEN", TOKEN)
    with pytest.raises(SuiteInvalid, match="value of DEPLOY_TOKEN"):
        conduct(made, out)
    monkeypatch.delenv("DEPLOY_TOKEN")
    conduct(made, out)
    assert results(made, out) == {"leaks.1": GOOD}


@boxed
def test_torn_attempt_with_a_secret_is_closed_and_the_run_continues(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker died, and so did the conductor that began to close it."""
    made = plan(HEAD + mission("answer", *DOES_IT, verify=ANSWER), out, tmp_path)
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        attempt = ledger.claim("gone", ledger.begin_epoch(), 60.0)
    assert attempt is not None
    BundleWriter.create(out, run_id=made.run_id)
    torn = BundleWriter.create_nested(out / made.run_id, attempt.path, run_id=f"{made.run_id}.{attempt.id}")
    torn.write_bytes("prompt.txt", f"use {TOKEN}".encode())
    torn.write_json("attempt.torn.json", {"schema_version": "proofbox.torn_attempt/1"})
    for status in out.rglob("run_status.json"):
        status.write_bytes(status.read_bytes().replace(b'"pid":%d' % os.getpid(), b'"pid":1'))
    monkeypatch.setenv("DEPLOY_TOKEN", TOKEN)
    run = conduct(made, out)
    assert results(made, out) == {"answer.1": LOST, "answer.1.r1": GOOD}
    assert verify(run).ok
    assert_nowhere(TOKEN, run)


def test_files_with_secrets_are_withheld_and_the_rest_is_committed(tmp_path: Path) -> None:
    redactor = Redactor([TOKEN])
    with BundleWriter.create(tmp_path, run_id="r", expected=["a", "b"], redactor=redactor) as bundle:
        bundle.write_bytes("a", TOKEN.encode())
        bundle.write_bytes("b", b"clean")
        assert bundle.withhold_secrets() == ("a",)
        (bundle.path / "deep").mkdir()
        (bundle.path / "deep/foreign").write_text(TOKEN)
        bundle.write_bytes("outputs/late", TOKEN.encode())
    found = load_bundle(tmp_path)
    assert (found.index.status, found.index.missing) == ("partial", ("a",))
    assert sorted(found.artifacts) == ["b", "run_status.json"]
    assert len(found.status.partial_reasons) == 3
    assert_nowhere(TOKEN, tmp_path)


def test_secret_that_is_not_withheld_prevents_the_commit(tmp_path: Path) -> None:
    bundle = BundleWriter.create(tmp_path, run_id="r", redactor=Redactor([TOKEN]))
    bundle.write_bytes("a", TOKEN.encode())
    with pytest.raises(BundleSecretFound):
        bundle.commit()
