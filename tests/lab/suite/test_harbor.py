"""Harbor tasks as missions: read unchanged, run with the controls, and decided by the reward alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from harbor_tasks import PASSES_IF, TOML, Ran, put, task
from suites import serving_model

from proofbox.errors import ImageAbsent, StartFailed, SuiteInvalid, UsageError
from proofbox.evidence.bundle.reader import load_bundle
from proofbox.evidence.verify.verifier import verify
from proofbox.lab.reports.validation import validate
from proofbox.lab.suite.harbor import task_tree
from proofbox.lab.suite.harbor.task_image import BUILD
from proofbox.lab.suite.harbor.tasks import HOST_ROOT, read_tasks
from proofbox.lab.suite.opening import open_suite

# Run


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of all kinds. A control runs them all at once, because starting a run takes longest."""
    place = tmp_path_factory.mktemp("harbor") / "tasks"
    put(place / "README.md", "not a task")
    root = task(
        place / "Sum It",
        dockerfile="FROM python:3.12\nWORKDIR /srv\nWORKDIR work\nENV MARK=set\nRUN make\n"
        "COPY data/ data/\nCOPY x /etc/x\n",
        test=PASSES_IF.format(condition='[ "$(pwd) $MARK" = "/srv/work set" ] && grep -qx 6 sum && [ -e /tests/more ]'),
        solve='#!/bin/sh\n[ "$(pwd)" = /srv/work ] && [ "$MARK" = set ] && [ ! -e /tests ] &&\n'
        "expr $(cat data/a) + $(cat data/b) > /srv/work/sum\n",
    )
    put(root / "environment/data/a", "2\n")
    put(root / "environment/data/b", "4\n")
    put(root / "environment/x", "")
    put(root / "tests/more", "")
    # The oracle represents any agent here: what it writes to the verifier's paths is gone later.
    solve = (
        "#!/bin/sh\nls -d /tests /logs > /app/seen 2>/dev/null\nmkdir -p /logs/verifier && "
        "echo 1 > /logs/verifier/reward.txt\n"
    )
    clean = "[ -e /app/seen ] && [ ! -s /app/seen ] && [ ! -e /solution ] && [ ! -e /logs/verifier/reward.txt ]"
    task(place / "cheats", test=PASSES_IF.format(condition=clean), solve=solve)
    stepped(place / "steps")
    for id, (strategy, min_reward, _) in COMBINED.items():
        put(stepped(place / id, strategy, min_reward) / "tests/helper", "wanted=3\n")
    return place


@pytest.fixture(scope="module")
def oracle(tasks: Path) -> Ran:
    return Ran(tasks, tasks.parent / "oracle", "oracle")


@pytest.fixture(scope="module")
def nop(tasks: Path) -> Ran:
    more = tasks.parent / "nop-tasks"
    for id, (left, _, _) in REWARDS.items():
        task(more / id, test=f"#!/bin/sh\n{left}\n")
    hurried = TOML.replace("[verifier]\ntimeout_sec = 60.0", "[verifier]\ntimeout_sec = 0.5")
    task(more / "hangs", toml=hurried, test="#!/bin/sh\necho 1 > /logs/verifier/reward.txt\nsleep 60\n")
    shutil.copytree(tasks / "Sum It", more / "Sum It")
    return Ran(more, tasks.parent / "nop", "nop")


@pytest.mark.needs("bubblewrap")
def test_oracle_passes_and_nop_fails_on_host_root_without_comparable_results(oracle: Ran, nop: Ran) -> None:
    assert oracle.verdict("sum-it") == ("passed", None, "completed")
    assert [call["command"] for call in oracle.calls("sum-it")] == ["/solution/solve.sh"]
    assert oracle.document("attempt.json", "sum-it")["verification"]["reward"] == {"value": 1.0}
    for name in ("attempt.json", "attempt.report.json"):
        recorded = oracle.document(name, "sum-it")
        assert (recorded["comparable"], recorded["not_comparable"]) == (False, [HOST_ROOT])
    assert oracle.document("attempt.report.json", "sum-it")["reward"] == 1.0
    notes = oracle.document("attempt.json", "sum-it")["origin"]["notes"]
    assert "environment/Dockerfile: not executed: RUN make" in notes
    assert "environment/Dockerfile: /etc/x is outside /srv/work and was omitted" in notes
    summary = json.loads((oracle.path / "summary.json").read_bytes())
    assert (summary["comparable"], summary["missions"][0]["comparable"]) == (False, False)
    assert verify(oracle.path).ok
    assert load_bundle(oracle.path).index.status == "ok"
    assert nop.verdict("sum-it") == ("failed", None, "completed")
    assert nop.document("attempt.json", "sum-it")["verification"]["reward"] == {"value": 0.0}


@pytest.mark.needs("bubblewrap")
def test_directory_of_tasks_is_a_suite(oracle: Ran) -> None:
    assert set(oracle.attempts) == {"sum-it", "cheats", "steps", *COMBINED}


REWARDS: dict[str, tuple[str, tuple[str, str], dict[str, Any]]] = {
    "half": ("echo 0.5 > /logs/verifier/reward.txt", ("failed", "completed"), {"value": 0.5}),
    "least": (
        """echo '{"tests": 1, "style": 0.25}' > /logs/verifier/reward.json""",
        ("failed", "completed"),
        {"value": 0.25, "values": {"tests": 1.0, "style": 0.25}},
    ),
    "named": (
        """echo '{"reward": 1.0, "style": 0.25}' > /logs/verifier/reward.json; exit 7""",
        ("passed", "completed"),
        {"value": 1.0, "values": {"reward": 1.0, "style": 0.25}},
    ),
    "missing": ("exit 0", ("none", "reward_missing"), {"problem": "reward_missing"}),
    "malformed": (
        "echo yes > /logs/verifier/reward.txt",
        ("none", "reward_malformed"),
        {"problem": "reward_malformed"},
    ),
}
"""What a verifier leaves, and the result and the reward that follow."""


COMBINED = {"mean": ("mean", "", 0.5), "final": ("final", "", 1.0), "gated": ("final", "min_reward = 1.0", 0.0)}
"""How the rewards of two steps are combined, and the result if only the second step passes."""


@pytest.mark.needs("bubblewrap")
def test_only_the_reward_decides_and_a_verifier_that_hangs_does_not_pass(nop: Ran) -> None:
    for id, (_, verdict, reward) in REWARDS.items():
        assert nop.verdict(id) == (verdict[0], None, verdict[1]), id
        found = nop.document("attempt.json", id)["verification"]["reward"]
        found.pop("detail", None)
        assert found == reward, id
    assert nop.verdict("hangs") == ("failed", None, "completed")


@pytest.mark.needs("bubblewrap")
def test_agent_cannot_see_tests_or_solution_or_write_a_reward(oracle: Ran) -> None:
    assert oracle.verdict("cheats") == ("passed", None, "completed")


@pytest.mark.needs("bubblewrap")
def test_tests_changed_after_planning_have_no_effect(tmp_path: Path) -> None:
    root = task(tmp_path / "t", solve="#!/bin/sh\nexit 1\n")
    planned = Ran(root, tmp_path / "out", "nop", conducted=False)
    put(root / "tests/test.sh", PASSES_IF.format(condition="true"))
    assert planned.conduct().verdict() == ("failed", None, "completed"), "the tests as planned fail"


@pytest.mark.needs("bubblewrap", "codex")
def test_agent_works_in_the_workdir_of_the_task(tmp_path: Path) -> None:
    root = task(tmp_path / "t")
    put(root / "instruction.md", "[[run pwd > where; expr 40 + 2 > /app/answer.txt]] [[say done]]")
    put(root / "tests/test.sh", PASSES_IF.format(condition="grep -qx 42 answer.txt && grep -qx /app where"))
    with serving_model() as model:
        ran = Ran(root, tmp_path / "out", "codex_app_server!", flags={"base_url": model, "model": "fake-model"})
    assert ran.verdict() == ("passed", None, "completed")


# Read


def mission_of(root: Path, *, host_root: bool = True) -> Any:
    (mission,) = read_tasks(root, host_root=host_root).missions
    return mission


def test_task_fields_become_mission_fields(tmp_path: Path) -> None:
    toml = """\
version = "1.0"
source = "elsewhere"
[metadata]
difficulty = "easy"
tags = ["a", "b"]
[agent]
timeout_sec = 12.5
[verifier]
timeout_sec = 34
env = { MODE = "strict", KEY = "${YOUR_KEY}", LEVEL = "${LEVEL:-3}" }
network_mode = "no-network"
[environment]
docker_image = "example/image:1"
cpus = 2
memory = "1G"
storage_mb = 100
allowed_hosts = ["example.org"]
env = { LANG_OF = "x" }
skills_dir = "/skills"
"""
    mission = mission_of(task(tmp_path / "t", toml=toml), host_root=False)
    assert (mission.id, mission.prompt, mission.tags) == ("t", "Write 42 into /app/answer.txt\n", ("a", "b"))
    assert (mission.timeout, mission.provider, mission.image, mission.workdir) == (
        12.5,
        "docker",
        "example/image:1",
        "/app",
    )
    assert (mission.limits.cpus, mission.limits.memory_mb, mission.limits.disk_mb) == (2, 1024, 100)
    assert (mission.network, mission.verify.network) == ("allow:example.org", "none")
    assert mission.env == ("LANG_OF=x",)
    assert (mission.verify.timeout, mission.verify.env) == (34, {"LANG_OF": "x", "MODE": "strict", "LEVEL": "3"})
    assert mission.verify.mounts == {"/tests": "tests"}
    assert mission.solution == "solution"
    assert set(mission.origin.notes) == {
        "task.toml: source is not supported and was ignored",
        "task.toml: environment.skills_dir is not supported and was ignored",
    }
    assert mission.origin.not_comparable == (
        "verifier.env.KEY needs the host variable YOUR_KEY, which boxes do not receive",
    )


def test_unsupported_requirements_make_a_task_not_comparable(tmp_path: Path) -> None:
    toml = TOML + "gpus = 1\n"
    mission = mission_of(
        task(tmp_path / "t", toml=toml, test="#!/bin/sh\n# apt-get install no\napt-get -y install curl\n"),
        host_root=False,
    )
    assert len(mission.origin.not_comparable) == 2
    assert any("tests/test.sh installs" in each for each in mission.origin.not_comparable)


def test_an_image_to_be_built_is_named_after_its_files(tmp_path: Path) -> None:
    root = task(tmp_path / "t")
    before = mission_of(root, host_root=False).image
    assert before.startswith("harbor-t:")
    put(root / "environment/more", "x")
    assert mission_of(root, host_root=False).image != before


def problems(root: Path, **options: Any) -> list[str]:
    with pytest.raises(SuiteInvalid) as caught:
        read_tasks(root, **options)
    found: list[dict[str, Any]] = caught.value.details["problems"]
    return [each["message"] for each in found]


def test_every_problem_of_a_task_is_reported(tmp_path: Path) -> None:
    bad = '[agent]\ntimeout_sec = "long"\n[environment]\nmemory = "lots"\ncpus = -1\nnetwork_mode = "?"\n'
    root = task(tmp_path / "tasks/bad", toml=bad)
    with pytest.raises(SuiteInvalid) as caught:
        read_tasks(root)
    assert [each["line"] for each in caught.value.details["problems"]] == [2, 4, 5, 6]
    task(tmp_path / "tasks/worse", toml="[agent\n")
    assert any(each.startswith("worse: ") for each in problems(tmp_path / "tasks"))


@pytest.mark.parametrize(
    "line",
    [
        *(
            'docker_image = "x/../../containers/json?all=1"',
            'docker_image = "a b"',
            'docker_image = ""\nos = "windows"',
        ),
        *("cpus = nan", "memory_mb = inf", "gpus = -1", "memory_mb = true", 'env = { "A-B" = "x" }', "env = { A = 1 }"),
        f"x = {'[' * 20_000}",
    ],
)
def test_invalid_value_is_refused(tmp_path: Path, line: str) -> None:
    assert problems(task(tmp_path / "t", toml=f"{TOML}{line}\n"))


@pytest.mark.parametrize("image", ["a", "example.org:5000/a/b_c--d:1.0-rc", f"a@sha256:{'0' * 64}"])
def test_an_image_is_taken_by_its_name(tmp_path: Path, image: str) -> None:
    assert mission_of(task(tmp_path / "t", toml=f'{TOML}docker_image = "{image}"\n'), host_root=False).image == image


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh"])
def test_task_with_missing_files_is_refused(tmp_path: Path, missing: str) -> None:
    root = task(tmp_path / "t")
    (root / missing).unlink()
    assert problems(root) == [f"{missing} is missing"]


def test_a_directory_without_tasks_is_refused(tmp_path: Path) -> None:
    assert "no task.toml" in problems(tmp_path)[0]


@pytest.mark.parametrize("link", ["instruction.md", "tests/test.sh", "task.toml", "environment/stolen", "solution"])
def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, link: str) -> None:
    root = task(tmp_path / "t", solve=None)
    secret = put(tmp_path / "secret/solve.sh", "version = '1.0'")
    (root / link).unlink(missing_ok=True)
    (root / link).symlink_to(secret if link != "solution" else secret.parent)
    assert "leads out" in problems(root)[0]


def test_link_within_the_directory_is_accepted(tmp_path: Path) -> None:
    root = task(tmp_path / "t")
    (root / "tests/again.sh").symlink_to("test.sh")
    assert mission_of(root).id == "t"


def test_special_files_and_large_tasks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = task(tmp_path / "pipe")
    os.mkfifo(root / "tests/pipe")
    assert "neither a file nor a directory" in problems(root)[0]
    root = task(tmp_path / "giant")
    put(root / "instruction.md", "x" * (task_tree.LARGEST_TEXT + 1))
    assert "larger than" in problems(root)[0]
    monkeypatch.setattr(task_tree, "MAX_ENTRIES", 3)
    assert "more than 3 files" in problems(task(tmp_path / "many"))[0]
    monkeypatch.setattr(task_tree, "MAX_BYTES", 10)
    monkeypatch.setattr(task_tree, "MAX_ENTRIES", 100)
    assert "larger than" in problems(task(tmp_path / "large"))[0]


@pytest.mark.parametrize("workdir", ["/usr/src/app", "/tests", "/logs", "/"])
def test_unusable_workdir_is_refused(tmp_path: Path, workdir: str) -> None:
    root = task(tmp_path / "t", dockerfile=f"FROM x\nWORKDIR {workdir}\n")
    if workdir == "/":
        assert mission_of(root).workdir == "/app"
    else:
        assert problems(root, host_root=True)[0].startswith(f"WORKDIR {workdir}")


def test_several_containers_and_files_before_a_step_are_refused(tmp_path: Path) -> None:
    root = task(tmp_path / "t", toml=TOML + '[[steps]]\nname = "one"\n')
    put(root / "environment/docker-compose.yaml", "services: {}\n")
    put(root / "steps/one/instruction.md", "do it")
    put(root / "steps/one/workdir/setup.sh", "true")
    found = problems(root)
    assert len(found) == 2
    assert all("not supported" in each for each in found)


@pytest.mark.parametrize(
    "steps",
    [
        "",
        '[[steps]]\nname = "one"\n[[steps]]\nname = "one"\n',
        '[[steps]]\nname = "../x"\n',
        "[[steps]]\n",
        '[[steps]]\nname = "missing"\n',
        'multi_step_reward_strategy = "best"\n[[steps]]\nname = "one"\n',
    ],
)
def test_invalid_steps_are_refused(tmp_path: Path, steps: str) -> None:
    root = task(tmp_path / "t", toml=steps + TOML if steps.startswith("multi") else TOML + steps)
    put(root / "steps/one/instruction.md", "do it")
    assert problems(root)


def stepped(root: Path, strategy: str = "mean", min_reward: str = "") -> Path:
    """A task of two steps: a 1 in a.txt, then a 2 in b.txt instead of it. The second shares a helper with the first."""
    steps = f'[[steps]]\nname = "one"\n{min_reward}\n[[steps]]\nname = "two"\n[steps.agent]\ntimeout_sec = 50.0\n'
    task(root, toml=f'multi_step_reward_strategy = "{strategy}"\n{TOML}{steps}', solve=None)
    (root / "instruction.md").unlink()
    put(root / "tests/test.sh", PASSES_IF.format(condition=". /tests/helper; [ $(cat a.txt) = $wanted ]"))
    put(root / "tests/helper", "wanted=1\n")
    put(root / "steps/one/instruction.md", "Write 1 into a.txt\n")
    put(root / "steps/one/solution/solve.sh", "#!/bin/sh\necho 1 > /app/a.txt\n")
    put(root / "steps/two/instruction.md", "Replace it with a 2 in b.txt\n")
    put(root / "steps/two/solution/solve.sh", "#!/bin/sh\n[ -e a.txt ] && rm a.txt && echo 2 > b.txt\n")
    put(root / "steps/two/tests/test.sh", PASSES_IF.format(condition="[ ! -e a.txt ] && [ $(cat b.txt) = 2 ]"))
    return root


@pytest.mark.needs("bubblewrap")
def test_steps_are_turns_and_each_is_verified_at_its_own_end(oracle: Ran, tasks: Path) -> None:
    assert oracle.verdict("steps") == ("passed", None, "completed")
    reward = oracle.document("attempt.json", "steps")["verification"]["reward"]
    assert reward == {"value": 1.0, "values": {"turn 1": 1.0, "turn 2": 1.0}}
    assert len(oracle.document("attempt.json", "steps")["verification"]["commands"]) == 2
    assert oracle.document("attempt.report.json", "steps")["turns"] == 2
    assert [call["exit_code"] for call in oracle.calls("steps")] == [0, 0]
    assert validate(load_bundle(oracle.path), strict=True) == []
    mission = mission_of(tasks / "steps")
    assert [mission.timeout, *(turn.timeout for turn in mission.then)] == [60.0, 50.0]


@pytest.mark.needs("bubblewrap")
def test_rewards_of_steps_are_combined(oracle: Ran) -> None:
    for id, (_, _, value) in COMBINED.items():
        assert oracle.document("attempt.json", id)["verification"]["reward"]["value"] == value
        assert oracle.verdict(id) == ("passed" if value == 1.0 else "failed", None, "completed")


def test_tasks_in_categories_are_a_suite(tmp_path: Path) -> None:
    for name in ("easy/one", "easy/two", "hard/one", "plain"):
        task(tmp_path / "tasks" / name)
    suite = read_tasks(tmp_path / "tasks", host_root=True)
    assert [mission.id for mission in suite.missions] == ["easy.one", "two", "hard.one", "plain"]
    (tmp_path / "tasks/hard/one/instruction.md").unlink()
    with pytest.raises(SuiteInvalid) as caught:
        read_tasks(tmp_path / "tasks", host_root=True)
    assert "hard/one: " in str(caught.value.details["problems"])
    selected = open_suite(tmp_path / "tasks", host_root=True, missions=["easy.*", "t*"])
    assert [mission.id for mission in selected.missions] == ["easy.one", "two"]
    with pytest.raises(UsageError, match="no mission 'tow'"):
        open_suite(tmp_path / "tasks", host_root=True, missions=["tow"])
    (tmp_path / "tasks/plain/task.toml").write_text(TOML.replace("small", "other"))
    assert [each.id for each in open_suite(tmp_path / "tasks", host_root=True, tags=["other"]).missions] == ["plain"]


def test_all_missing_images_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(image: str) -> str:
        raise StartFailed(f"no image {image}", op="start")

    monkeypatch.setattr("proofbox.lab.suite.harbor.task_image.image_defaults", absent)
    for name in ("one", "two", "three"):
        task(tmp_path / "tasks" / name)
    with pytest.raises(ImageAbsent) as caught:
        read_tasks(tmp_path / "tasks", to_run=True)
    assert caught.value.message.startswith("the engine lacks the images of 3 tasks: one, three, two")
    assert len([hint for hint in caught.value.fix_hints if hint.startswith("docker build -t harbor-")]) == 3
    assert len(caught.value.details["images"]) == 3
    assert BUILD in caught.value.fix_hints
    with pytest.raises(ImageAbsent) as caught:
        read_tasks(tmp_path / "tasks", to_run=True, missions=["t*"])
    assert len(caught.value.details["images"]) == 2


@pytest.mark.parametrize(
    ("line", "outside"),
    [
        ("echo 1 > /app/answer.txt", None),
        ("echo 1 >> /tmp/notes; ls 2>/dev/null; ls 2>&1", None),
        ("# echo 1 > /etc/motd", None),
        ("cat /etc/passwd > here; cp /etc/hosts .; diff /etc/a /etc/b", None),
        ("echo 1 > /logs/verifier/reward.txt", None),
        ("echo x >> /etc/hosts", "/etc/hosts"),
        ("printf x | tee -a '/srv/data'", "/srv/data"),
        ("mkdir -p /data/out && cd /data/out", "/data/out"),
        ("cp tool \\\n  /usr/local/bin/tool", "/usr/local/bin/tool"),
        ("sed -i 's/a/b/' /etc/ssh/sshd_config", "/etc/ssh/sshd_config"),
        ("ln -sf x /usr/bin/python", "/usr/bin/python"),
    ],
)
def test_script_that_writes_outside_its_workdir_is_not_comparable(
    tmp_path: Path, line: str, outside: str | None
) -> None:
    root = task(tmp_path / "t", solve=f"#!/bin/sh\n{line}\n")
    origin = read_tasks(root).missions[0].origin
    assert origin is not None
    expected = [f"solution/solve.sh writes to {outside}, which is outside /app"] if outside else []
    assert list(origin.not_comparable) == expected


@pytest.mark.parametrize(
    ("entrypoint", "shown"),
    [
        ('["/bin/sh", "-c"]', ""),
        ('["tini", "--"]', ""),
        ("[]", ""),
        ('["/start.sh", "db"]', "/start.sh db"),
        ("/start.sh db", "/start.sh db"),
        ('["/bin/sh", "-c", "service db start"]', "/bin/sh -c service db start"),
    ],
)
def test_replaced_entrypoint_is_not_comparable(tmp_path: Path, entrypoint: str, shown: str) -> None:
    root = task(tmp_path / "t", dockerfile=f"FROM x\nWORKDIR /app\nENTRYPOINT {entrypoint}\n")
    origin = read_tasks(root).missions[0].origin
    assert origin is not None
    message = f"its image's ENTRYPOINT is replaced, so what it starts does not run: {shown}"
    assert list(origin.not_comparable) == ([message] if shown else [])


def test_build_is_refused_where_it_has_no_effect(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        open_suite(task(tmp_path / "t"), host_root=True, build=True)
    with pytest.raises(UsageError, match="--build applies only to Harbor tasks"):
        open_suite(put(tmp_path / "suite.toml", ""), build=True)
