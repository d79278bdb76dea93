"""A hostile plan or sandbox harms neither the host nor the evidence."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest
from raw_agent import wait_until

from proofbox.core.interpreter import module_child
from proofbox.core.spec_files.problems import Problem
from proofbox.errors import PlanInvalid
from proofbox.probes.measuring_process import MeasureRequest
from proofbox.probes.reading import parse_plan
from proofbox.probes.run import Channel, PlanRun, run_plan
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.probing.corpus import built_in_plan, built_in_plans
from proofbox.sandbox.probing.decoys import Decoys
from proofbox.sandbox.probing.harm import harms


def plan_of(*probes: tuple[str, str, list[str]], expect: str = "allow", more: str = "") -> str:
    tables = "".join(
        f'[[probe]]\nid = "{id}"\noperation = "{operation}"\nargs = {json.dumps(args)}\nexpect = "{expect}"\n'
        f'reason = "test"\n{more}\n'
        for id, operation, args in probes
    )
    return f'[plan]\nid = "mine"\n[[profile]]\nid = "only"\nprovider = "off"\n{tables}'


def without_sandbox(out: Path, text: str, adapter: str = "setsid --wait {command}") -> PlanRun:
    return run_plan(parse_plan(text, name="mine"), out, adapter=adapter, channel="direct")


@pytest.mark.parametrize(
    ("operation", "args", "problem"),
    [
        ("signal", ["-1", "9"], "a signal other than 0 can only be sent to {pid}"),
        ("signal", ["1", "15"], "a signal other than 0 can only be sent to {pid}"),
        ("process-exec", ["/bin/sh", "-c", "touch /tmp/x"], "no arguments"),
        ("process-exec", ["/sbin/reboot"], "only /bin/true, /usr/bin/true and decoys can be executed"),
        ("network-tcp", ["127.0.0.1", "6379", "FLUSHALL"], "only {mark} can be sent to anything but a decoy"),
        ("network-unix", ["/run/docker.sock", "GET /"], "only {mark} can be sent to anything but a decoy"),
        ("resource-memory", ["1000000"], "at most 2048"),
        ("resource-disk", ["{new_inside}", "5000"], "at most 1024"),
        ("resource-pids", ["many"], "at most 4096"),
        ("file-write", ["{directory}/../x", "{mark}"], "can only name the probe's decoys"),
        ("file-write", ["{inside}/x", "{mark}"], "can only name the probe's decoys"),
    ],
)
def test_a_plan_that_could_harm_the_host_is_refused(operation: str, args: list[str], problem: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        parse_plan(plan_of(("bad", operation, args)), name="bad.toml")
    problems = [msgspec.convert(each, Problem) for each in refused.value.details["problems"]]
    assert problem in "\n".join(map(str, problems))


def test_the_built_in_plans_follow_the_same_rules() -> None:
    found = {probe.id: harms(probe) for name in built_in_plans() for probe in built_in_plan(name).probe}
    assert {id: each for id, each in found.items() if each} == {}


def test_no_two_probes_share_a_decoy(tmp_path: Path) -> None:
    """One could otherwise plant a link that another follows to a file of the host."""
    text = plan_of(
        ("a", "dir-list", ["{directory}"]),
        ("a.directory", "file-read", ["{inside}"]),
        ("b", "file-create", ["{new_inside}"]),
        ("b.new", "file-read", ["{inside}"]),
    )
    with Decoys(tmp_path / "decoys", program("boxprobe")) as decoys:
        places = [decoys.arguments(probe)[0] for probe in parse_plan(text, name="mine").plan.probe]
    assert len(set(places)) == 4


@pytest.mark.parametrize(("user", "mode"), [(1000, 0o700), (0, 0o711)])
def test_other_users_reach_only_the_decoys_of_root(
    user: int, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with Decoys(tmp_path / "decoys", program("boxprobe")) as decoys:
        assert decoys.root.stat().st_mode & 0o777 == mode


def test_pipes_are_not_read_and_devices_that_react_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(reader, b"kept")
    try:
        run = without_sandbox(tmp_path / "out", plan_of(("pipe", "file-read", [str(tmp_path / "pipe")])))
        assert run.results[0].decision == "unknown"
        assert os.read(reader, 4) == b"kept"
    finally:
        os.close(reader)


def test_a_connection_to_something_else_than_a_decoy_is_allowed_not_denied(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        target = ["127.0.0.1", str(other.getsockname()[1]), "{mark}"]
        run = without_sandbox(tmp_path / "out", plan_of(("tcp", "network-tcp", target)))
    assert (run.results[0].decision, run.results[0].evidence_class) == ("allow", "constrained_observation")


def test_an_absent_file_is_no_denial_without_a_baseline(tmp_path: Path) -> None:
    skip = 'baseline = "skip"\nbaseline_reason = "test"'
    text = plan_of(("absent", "file-read", [str(tmp_path / "absent")]), expect="deny", more=skip)
    run = without_sandbox(tmp_path / "out", text)
    assert (run.results[0].decision, run.results[0].mismatch) == ("unknown", "unknown")


@pytest.mark.parametrize(
    "answer",
    [
        '"result":5,"errno":0,"ns":1,"value":"not hexadecimal"',
        '"result":5,"errno":0,"ns":99999999999999999999,"value":"00"',
        '"result":99999999999999999999,"errno":0,"ns":1,"value":"00"',
        '"result":-1,"errno":-7,"ns":1,"value":""',
        '"result":5,"errno":0,"ns":1,"value":"00","more":' + "[" * 50_000,
        '"result":5,"errno":0,"ns":1,"value":"\\377"',
    ],
    ids=["text", "time", "result", "errno", "nested", "encoding"],
)
def test_a_malformed_answer_is_not_a_decision_and_ends_no_run(answer: str, tmp_path: Path) -> None:
    line = f'{{"id":"read",{answer},"timed_out":false,"signal":0}}'
    (tmp_path / "liar").write_text(f"#!/bin/sh\ncat >/dev/null\nprintf '{line}\\n'\n")
    (tmp_path / "liar").chmod(0o755)
    text = plan_of(("read", "file-read", ["{secret}"]))
    run = without_sandbox(tmp_path / "out", text, f"{tmp_path}/liar {{command}}")
    assert not run.ok
    assert run.results[0].decision != "allow"
    assert run.path is not None


def test_an_endless_answer_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofbox.sandbox.probing.lanes.MAX_OUTPUT", 1 << 16)
    monkeypatch.setattr("proofbox.sandbox.probing.lanes.MAX_FAILURES", 1)
    text = plan_of(("read", "file-read", ["{secret}"]))
    run = without_sandbox(tmp_path / "out", text, "yes {command}")
    assert (run.results[0].decision, run.results[0].mismatch) == ("unknown", "unknown")
    assert "too much output" in run.results[0].detail


@pytest.mark.parametrize("channel", ["clean", "direct"])
def test_a_secret_in_an_adapter_is_not_evidence(
    channel: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "correct-horse-battery")
    plan = parse_plan(plan_of(("read", "file-read", ["{secret}"])), name="mine")
    adapter = "sh -c 'echo correct-horse-battery >&2; exit 1' correct-horse-battery {command}"
    run = run_plan(plan, tmp_path / "out", adapter=adapter, channel=channel)
    assert run.path is not None
    assert "[redacted]" in (run.path / "run_manifest.json").read_text()
    assert "[redacted]" in (run.path / "runtime_results.json").read_text()
    assert [each.name for each in run.path.rglob("*") if b"battery" in each.read_bytes()] == []


def test_a_terminated_measurement_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(tempfile.mkdtemp())  # a short path, so that the address of a Unix socket fits

    monkeypatch.setenv("TMPDIR", str(place))
    child = module_child("proofbox.probes.measuring_process")
    plan = parse_plan(plan_of(("read", "file-read", ["{secret}"])), name="mine").plan
    request = msgspec.json.encode(MeasureRequest(plan, None, "sleep 600 {command}"))
    process = subprocess.Popen(child.argv, cwd=child.cwd, env=child.env, stdin=subprocess.PIPE, start_new_session=True)
    with process:
        assert process.stdin is not None
        process.stdin.write(request)
        process.stdin.close()
        wait_until(lambda: list(place.glob("proofbox-probe-*/project/.probe")), "the measurement begins")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) != 0
    place.rmdir()  # fails unless empty
