"""Provision scripts: they need trust and run once, their result is kept, and no box can change it for the next."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from capabilities import OrdinaryUser
from private_engine import IMAGE, PrivateEngine, private_engine

from proofbox import Sandboxes, Settings, initialize
from proofbox.config import settings as config
from proofbox.core.dirs import cache_dir, config_dir
from proofbox.errors import PolicyRefused, ProvisionFailed, UsageError
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.contract import Event

SCRIPT = """#!/bin/sh
set -e
echo prepared > ~/tool
ls -A "$PWD" > /dev/null
echo ran
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "prepare").write_text(SCRIPT)
    return folder


def phases_of(seen: list[Event]) -> list[str]:
    found: list[str] = [event.phase for event in seen if event.kind == "provision"]
    seen.clear()
    return found


@pytest.mark.needs("bubblewrap")
def test_home_is_prepared_once_and_changes_stay_in_their_box(project: Path) -> None:
    initialize(project, Settings(provider="bubblewrap", provision="prepare"))
    seen: list[Event] = []
    with Sandboxes(project, on_event=seen.append) as boxes:
        first = boxes.exec(["sh", "-c", "cat ~/tool; echo changed > ~/tool; echo more > ~/more; cat ~/tool"])
        assert first.stdout == "prepared\nchanged\n"
        assert phases_of(seen) == ["started", "finished"]
        assert boxes.exec(["sh", "-c", "cat ~/tool; ls ~"]).stdout == "prepared\ntool\n"
        assert phases_of(seen) == []
        with boxes.start_session(access="overlay") as session:
            assert session.exec(["sh", "-c", "cat ~/tool"]).stdout == "prepared\n"
        (project / "prepare").write_text(SCRIPT.replace("echo prepared", "echo again"))
        with pytest.raises(PolicyRefused, match="not trusted"):
            boxes.exec(["true"])
        config.trust(project)
        assert boxes.exec(["sh", "-c", "cat ~/tool"]).stdout == "again\n"
        assert phases_of(seen) == ["started", "finished"]


@pytest.mark.needs("bubblewrap")
def test_script_without_a_shebang_runs_with_sh_and_cannot_see_the_project(project: Path) -> None:
    (project / "secret").write_text("of the project")
    (project / "prepare").write_text(f"cat {project}/secret > ~/seen 2>/dev/null; id -u > ~/uid")
    initialize(project, Settings(provider="bubblewrap", provision="prepare"))
    with Sandboxes(project) as boxes:
        assert boxes.exec(["sh", "-c", "cat ~/seen; cat ~/uid; id -u"]).stdout == "1000\n1000\n"


@pytest.mark.needs("bubblewrap")
def test_failing_script_is_explained_and_leaves_nothing(project: Path) -> None:
    (project / "prepare").write_text("touch ~/half; echo told >&2; exit 7")
    initialize(project, Settings(provider="bubblewrap", provision="prepare"))
    for _ in range(2):
        with Sandboxes(project) as boxes, pytest.raises(ProvisionFailed) as raised:
            boxes.exec(["true"])
        assert raised.value.details["exit_code"] == 7
        assert raised.value.details["stderr"] == "told\n"
        assert [name for name in os.listdir(cache_dir() / "provisioned") if not name.endswith(".lock")] == []


@pytest.mark.needs("bubblewrap")
def test_concurrent_boxes_prepare_once(project: Path) -> None:
    settings = Settings(provider="bubblewrap", provision="prepare")
    phases: list[str] = []

    def one() -> None:
        with Sandboxes(project, settings=settings, on_event=lambda e: phases.append(f"{e.kind} {e.phase}")) as boxes:
            assert boxes.exec(["sh", "-c", "cat ~/tool"]).stdout == "prepared\n"

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert phases.count("exec finished") == 6
    assert phases.count("provision finished") == 1


@pytest.mark.needs("bubblewrap", "unprivileged-user")
def test_home_of_an_ordinary_user_is_prepared(ordinary_user: OrdinaryUser, tmp_path: Path) -> None:
    script = (
        "import os, tempfile; from pathlib import Path; from proofbox import Sandboxes, Settings\n"
        "with tempfile.TemporaryDirectory() as d:\n"
        "    Path(d, 'prepare').write_text('echo prepared > ~/tool')\n"
        "    with Sandboxes(d, settings=Settings(provider='bubblewrap', provision='prepare')) as boxes:\n"
        "        boxes.exec(['sh', '-c', 'echo changed > ~/tool'])\n"
        "        print(boxes.exec(['sh', '-c', 'cat ~/tool']).stdout, end='')\n"
    )
    done = subprocess.run(
        [ordinary_user.python, "-c", script],
        cwd="/",
        env=dict(ordinary_user.env),
        capture_output=True,
        text=True,
        timeout=120,
        **ordinary_user.identity,
    )
    assert done.stdout == "prepared\n", done.stderr


def test_provider_that_cannot_keep_a_home_refuses_a_script(project: Path) -> None:
    initialize(project, Settings(provider="off", provision="prepare"))
    with Sandboxes(project) as boxes, pytest.raises(PolicyRefused, match="off does not support"):
        boxes.exec(["true"])


def test_missing_script_is_reported_before_anything_is_written(project: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        initialize(project, Settings(provision="nowhere"))
    assert not (project / config.PROJECT_FILE).exists()


def test_script_needs_trust_and_belongs_to_the_project(project: Path) -> None:
    (project / ".proofbox").mkdir()
    (project / config.PROJECT_FILE).write_text('provision = "prepare"')
    with pytest.raises(PolicyRefused, match="asks for provision"):
        config.load(project)
    config.trust(project)
    assert config.load(project).provision == "prepare"
    (project / "prepare").unlink()
    with pytest.raises(UsageError, match="does not exist"):
        config.load(project)
    (project / config.PROJECT_FILE).unlink()
    (config_dir() / "config.toml").write_text('provision = "prepare"')
    with pytest.raises(UsageError, match="only allowed in a project's"):
        config.load(project)


@pytest.fixture(scope="module")
def engine() -> Generator[PrivateEngine]:
    with private_engine() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", started.host)
        yield started


def images(engine: ContainerEngine) -> list[str]:
    return sorted(tag for each in engine.call("GET", "/images/json", op="list") for tag in each["RepoTags"] or [])


@pytest.mark.needs("docker")
@pytest.mark.xdist_group("docker-provision")
def test_image_is_prepared_once(project: Path, engine: PrivateEngine) -> None:
    (project / "prepare").write_text(
        "#!/bin/sh\nset -e\nmkdir -p /opt\necho prepared > /opt/tool\nchown 12:34 /opt/tool\n"
    )
    initialize(project, Settings(provider="docker", image=IMAGE, provision="prepare"))
    seen: list[Event] = []
    with Sandboxes(project, on_event=seen.append) as boxes:
        first = boxes.exec(["sh", "-c", "cat /opt/tool; stat -c %u:%g /opt/tool; echo x > /opt/tool"])
        assert first.stdout == "prepared\n12:34\n"
        assert "Read-only" in first.stderr
        assert str(first.policy.image).startswith("proofbox-provisioned:")
        assert phases_of(seen) == ["started", "finished"]
        assert boxes.exec(["cat", "/opt/tool"]).stdout == "prepared\n"
        assert phases_of(seen) == []
        with pytest.raises(PolicyRefused, match="runsc"):
            boxes.exec(["true"], runtime="runsc")
    before = images(engine.engine)
    (project / "prepare").write_text("touch /half; exit 3")
    with Sandboxes(project, settings=Settings(provider="docker", image=IMAGE, provision="prepare")) as boxes:
        with pytest.raises(ProvisionFailed):
            boxes.exec(["true"])
        assert images(engine.engine) == before
        assert engine.engine.call("GET", "/containers/json", op="list", query={"all": "1"}) == []
