"""Run plans in real sandboxes, compare the results and keep them as evidence."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from isolation_page import decisions, documented
from private_engine import IMAGE, private_engine

from proofbox.cli import main
from proofbox.errors import BundleLocked, ConsentRequired, UsageError
from proofbox.evidence.bundle.lock import RunLock
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.promotion.policies import SEED_FIELDS
from proofbox.probes.comparison import compare_plan_runs
from proofbox.probes.documents import EXPECTED
from proofbox.probes.reading import parse_plan
from proofbox.probes.run import Channel, PlanRun, run_plan
from proofbox.sandbox.probing.corpus import built_in_plan
from proofbox.sandbox.probing.decoys import DRIVER

ROOT = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --dir /etc"
STRONG = (
    "bwrap --unshare-all --unshare-user --uid 1000 --gid 1000 --die-with-parent --clearenv --setenv PATH /usr/bin:/bin "
    f"{ROOT} --proc /proc --dev /dev --bind {{project}} {{project}} --chdir {{project}} {{command}}"
)
WEAKENED = {
    "the network is left on": ("--unshare-all", "--unshare-all --share-net", "network.tcp"),
    "abstract sockets are reachable": ("--unshare-all", "--unshare-all --share-net", "network.abstract"),
    "datagrams get out": ("--unshare-all", "--unshare-all --share-net", "network.udp"),
    "names resolve": ("--unshare-all", "--unshare-all --share-net", "network.dns"),
    "the host's files are readable": (ROOT, "--ro-bind / /", "outside.stat"),
    "links lead out": (ROOT, "--ro-bind / /", "outside.by-link"),
    "a host path is writable": (ROOT, "--bind / /", "outside.write"),
    "files of the host can be removed": (ROOT, "--bind / /", "outside.unlink"),
    "sockets of the host are reachable": (ROOT, "--bind / /", "network.socket"),
    "the environment is passed on": ("--clearenv", "", "environment.variable"),
    "processes of the host are visible": ("--unshare-all", "--unshare-net --unshare-ipc --unshare-uts", "process.see"),
    "a capability is kept": ("--uid 1000 --gid 1000", "--uid 0 --gid 0 --cap-add CAP_SYS_ADMIN", "mount.tmpfs"),
    "the caller stays root": ("--uid 1000 --gid 1000", "--uid 0 --gid 0", "identity.root"),
}


@pytest.fixture(scope="module")
def engine_image() -> Generator[str]:
    with private_engine() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started.host)
        yield IMAGE


def measured(out: Path, adapter: str, *probes: str) -> PlanRun:
    """Measure a foreign sandbox by the default profile."""
    return run_plan("bubblewrap", out, adapter=adapter, only_profiles=["default"], only_probes=probes, channel="direct")


def found(run: PlanRun, probe: str, profile: str = "default") -> str:
    return next(each.decision for each in run.results if (each.probe_id, each.profile) == (probe, profile))


@pytest.mark.needs("bubblewrap", "limits")
def test_bubblewrap_keeps_its_promises_and_the_run_is_promotable(tmp_path: Path) -> None:
    run = run_plan("bubblewrap", tmp_path / "out")
    assert [(each.probe_id, each.detail) for each in run.results if not each.matched] == []
    assert run.summary.unknown == 0
    assert len({each.probe_id for each in run.results}) >= 80
    assert run.path is not None
    assert {each.name for each in run.path.iterdir()} >= set(EXPECTED)
    packet = emit_promotion(run.path, policy="decision-stage")
    assert packet.promotable, packet.reasons
    manifest = json.loads((run.path / "run_manifest.json").read_text())
    assert manifest["channel"] == "spawn_clean"
    preflight = json.loads((run.path / "apply_preflight.json").read_text())
    assert preflight["apply_ok"] is True
    stated = documented("bubblewrap")
    assert stated == decisions(run), "regenerate docs/isolation.md: scripts/isolation"
    inside = preflight["profiles"][0]["status"]
    assert (inside["Seccomp"], inside["NoNewPrivs"], inside["CapEff"].strip("0")) == ("2", "1", "")


def mounts() -> set[tuple[str, ...]]:
    """Return this process's mounts, except those of containers, which other tests create."""
    found = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {tuple(each) for each in found if "proofbox-probe-" in each[4] or each[4].count("/") == 1}


def test_off_behaves_as_no_sandbox_and_leaves_the_host_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mounts()
    place = Path(tempfile.mkdtemp())  # a short path, so that the address of a Unix socket fits
    monkeypatch.setenv("TMPDIR", str(place))
    run = run_plan("off", tmp_path / "out")
    assert [(each.probe_id, each.detail) for each in run.results if not each.matched] == []
    assert found(run, "outside.write") == "allow"
    assert found(run, "environment.variable") == "deny"
    assert mounts() == before
    assert [each.name for each in place.iterdir() if each.name.startswith("proofbox-probe-")] == []
    shutil.rmtree(place)


@pytest.mark.needs("docker")
@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("plan", ["docker", "docker-runsc"])
def test_containers_keep_their_promises(plan: str, engine_image: str, tmp_path: Path) -> None:
    if plan == "docker-runsc" and shutil.which("runsc") is None:
        pytest.skip("runsc is not installed")
    run = run_plan(plan, tmp_path / "out", image=engine_image)
    assert [(each.probe_id, each.detail) for each in run.results if not each.matched] == []
    assert run.path is not None
    assert emit_promotion(run.path, policy="decision-stage").promotable


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("weakness", WEAKENED)
def test_a_weakened_sandbox_is_caught(weakness: str, tmp_path: Path) -> None:
    old, new, probe = WEAKENED[weakness]
    assert old in STRONG
    strong = measured(tmp_path / "strong", STRONG, probe)
    assert [(each.probe_id, each.detail) for each in strong.results if not each.matched] == []
    weak = measured(tmp_path / "weak", STRONG.replace(old, new), probe)
    caught = next(each for each in weak.results if each.probe_id == probe)
    assert (caught.decision, caught.mismatch) == ("allow", "unexpected_allow")
    assert not weak.ok


@pytest.mark.needs("bubblewrap", "docker")
@pytest.mark.xdist_group("docker")
def test_two_foreign_sandboxes_are_measured_by_ready_adapters(engine_image: str, tmp_path: Path) -> None:
    runs = {
        name: run_plan("hostile", tmp_path / name, adapter=name, image=engine_image) for name in ("bwrap", "docker-run")
    }
    for name, run in runs.items():
        assert (run.summary.unknown, run.ok) == (0, False)
        assert {each.decision for each in run.results if each.probe_id.startswith("outside.")} == {"deny"}
        assert found(run, "control.project-write") == "allow"
        assert found(run, "socket.vsock") == "allow", "neither filters socket families"
        assert run.path is not None
        matrix = (run.path / "summary.md").read_text()
        assert f"# Plan hostile on {name}\n" in matrix
        assert "\n| default | socket.vsock | network-socket | deny | allow | constrained_observation |\n" in matrix
    assert found(runs["bwrap"], "namespace.user") == "allow"
    assert found(runs["docker-run"], "namespace.user") == "deny"


def test_adapter_that_does_not_start_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = "sh -c 'echo first >&2; echo second >&2; exit 7' {command}"
    assert main(["plan", "run", "hostile", "--adapter", adapter, "--out", str(tmp_path), "--channel", "direct"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("0 allowed, 0 denied, 133 unknown")
    assert "131 results are unknown: the driver gave no answers: sh exited 7: first second" in shown
    assert len(shown) < 8


@pytest.mark.needs("bubblewrap")
def test_two_foreign_sandboxes_can_be_compared(tmp_path: Path) -> None:
    strong = measured(tmp_path / "strong", STRONG)
    weak = measured(tmp_path / "weak", "setsid --wait {command}")
    assert strong.path is not None
    assert weak.path is not None
    compared = compare_plan_runs(strong.path, weak.path)
    assert [each.name for each in compared.facts] == ["provider"]
    changed = {each.probe_id: (each.first, each.second) for each in compared.decisions}
    assert changed["outside.write"] == ("deny", "allow")
    assert changed["network.tcp"] == ("deny", "allow")
    assert "control.project-write" not in changed


PLAN = """
[plan]
id = "mine"
[[profile]]
id = "only"
provider = "off"
network = "full"
[[probe]]
id = "write"
operation = "file-write"
args = ["{victim}", "{mark}"]
expect = "allow"
reason = "there is no sandbox"
[[probe]]
id = "read-hostname"
operation = "file-read"
args = ["/etc/hostname"]
expect = "allow"
reason = "everyone may read it"
"""


@pytest.mark.parametrize(
    ("program", "decision", "detail"),
    [
        ("sleep 60", "unknown", "no answer"),
        ("kill -9 $$", "unknown", "exited"),
        ("echo nonsense", "unknown", "exited 0"),
        ('echo \'{"id":"other","result":0,"errno":0,"ns":1,"timed_out":false,"signal":0}\'', "unknown", "exited"),
        ("head -c 1000000 /dev/zero", "unknown", "exited"),
    ],
)
def test_a_driver_that_hangs_crashes_or_lies_is_contained(
    program: str, decision: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proofbox.sandbox.probing.lanes.START_SECONDS", 0.5)
    monkeypatch.setattr("proofbox.sandbox.probing.lanes.PROBE_SECONDS", 0.1)
    plan = parse_plan(PLAN, name="mine")
    run = run_plan(plan, tmp_path / "out", adapter=f"sh -c {json.dumps(program)} {{command}}", channel="direct")
    result = run.results[0]
    assert (result.decision, result.mismatch) == (decision, "unknown")
    assert detail in result.detail or "in time" in result.detail
    assert not run.ok


def test_a_lie_about_a_denial_is_refuted_from_outside(tmp_path: Path) -> None:
    """The driver does what it was asked, and claims that it was not allowed to."""
    liar = '{command} | sed \'s/"result":[0-9]*/"result":-1/; s/"errno":0/"errno":13/\''
    plan = parse_plan(PLAN.replace('expect = "allow"', 'expect = "deny"'), name="mine")
    run = run_plan(plan, tmp_path / "out", adapter=f'sh -c "{liar}"', channel="direct")
    write = run.results[0]
    assert (write.decision, write.evidence_class, write.mismatch) == ("allow", "host_fact", "unexpected_allow")


def test_a_driver_that_was_replaced_proves_nothing(tmp_path: Path) -> None:
    new, old = f"{{project}}/{DRIVER}.new", f"{{project}}/{DRIVER}"
    replace = f'sh -c "echo x >> {new}; mv {new} {old}" {{command}}'
    run = run_plan(parse_plan(PLAN, name="mine"), tmp_path / "out", adapter=replace, channel="direct")
    assert {each.mismatch for each in run.results} == {"driver_changed"}


def test_content_of_the_hosts_own_files_is_not_evidence(tmp_path: Path) -> None:
    run = run_plan(parse_plan(PLAN, name="mine"), tmp_path / "out", provider="off", channel="direct")
    assert found(run, "read-hostname", "only") == "allow"
    assert run.path is not None
    name = Path("/etc/hostname").read_bytes().strip()
    for file in run.path.rglob("*"):
        if file.is_file() and file.name not in ("run_manifest.json", "run_status.json", "artifact_index.json"):
            assert name.hex().encode() not in file.read_bytes()


def test_a_second_run_respects_the_lock_in_both_modes(tmp_path: Path) -> None:
    plan = parse_plan(PLAN, name="mine")
    (tmp_path / "out").mkdir()
    with RunLock(tmp_path / "out", mode="fail", purpose="test"):
        with pytest.raises(BundleLocked):
            run_plan(plan, tmp_path / "out", provider="off", channel="direct", lock_mode="fail")
        with pytest.raises(BundleLocked):
            run_plan(plan, tmp_path / "out", provider="off", channel="direct", lock_mode="wait", lock_timeout=0.2)
    assert run_plan(plan, tmp_path / "out", provider="off", channel="direct", lock_mode="wait").ok


def test_a_strangers_plan_needs_consent_for_what_it_asks(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(PLAN)
    name = str(tmp_path / "mine.toml")
    with pytest.raises(ConsentRequired) as refused:
        run_plan(name, tmp_path / "out")
    assert 'provider = "off"' in refused.value.message
    assert not (tmp_path / "out").exists()
    assert run_plan(name, tmp_path / "out", trust=True).ok
    assert run_plan(name, tmp_path / "out").ok


@pytest.mark.parametrize("channel", ["clean", "direct"])
def test_progress_names_each_lane(channel: Channel, tmp_path: Path) -> None:
    lanes: list[tuple[str, int, int]] = []
    run_plan(
        "off",
        tmp_path / "out",
        channel=channel,
        only_probes=["outside.write"],
        progress=lambda *lane: lanes.append(lane),
    )
    assert lanes == [("default", 0, 2), ("baseline", 1, 2)]


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    run = run_plan("off", tmp_path / "out", dry=True)
    assert (run.path, run.results) == (None, ())
    assert not (tmp_path / "out").exists()


def test_unknown_profiles_probes_and_adapters_without_a_command_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no profile x"):
        run_plan("off", tmp_path / "out", only_profiles=["x"])
    with pytest.raises(UsageError, match="no probe x"):
        run_plan("off", tmp_path / "out", only_probes=["x"])
    with pytest.raises(UsageError, match=r"no \{command\}"):
        run_plan("off", tmp_path / "out", adapter="unshare")
    with pytest.raises(UsageError, match="either a provider or an adapter"):
        run_plan("off", tmp_path / "out", provider="off", adapter="{command}")


def test_the_bundle_has_the_fields_of_the_decision_stage_contract(tmp_path: Path) -> None:
    run = run_plan("off", tmp_path / "out")
    assert run.path is not None
    bundle = load_bundle(run.path)
    for artifact in SEED_FIELDS.values():
        assert bundle.artifact(artifact)
    results = bundle.read_json("runtime_results.json")["results"]
    assert {each["probe_id"] for each in results} == {probe.id for probe in built_in_plan("off").probe}
    witnesses = bundle.read_json("path_witnesses.json")["witnesses"]
    assert all(each["observed_path"] and each["normalized_path"] for each in witnesses)
    links = {each["requested_path"].rpartition("/")[2]: each["followed_links"] for each in witnesses}
    assert links["link"] is True
    assert links["outside.create@new_outside"] is False


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(("rules", "wrong"), [("true", []), ("false", ["hidden", "frozen"])])
def test_rules_hide_and_protect_parts_of_the_project(rules: str, wrong: list[str], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(f"""
[plan]
id = "ruled"
[[profile]]
id = "one"
provider = "bubblewrap"
rules = {rules}
[[probe]]
id = "hidden"
operation = "file-stat"
args = ["{{hidden}}"]
expect = "deny"
reason = "hidden"
[[probe]]
id = "frozen"
operation = "file-write"
args = ["{{frozen}}", "{{mark}}"]
expect = "deny"
reason = "read-only"
""")
    run = run_plan(tmp_path / "plan.toml", tmp_path / "out")
    assert [(each.probe_id, each.mismatch) for each in run.unexplained] == [(id, "unexpected_allow") for id in wrong]
