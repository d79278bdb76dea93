"""Settings from files: who wins, what is refused, and that a project can't open its own box."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from proofbox import Sandboxes
from proofbox.config import settings as config
from proofbox.config.project_files import write_project_file
from proofbox.config.settings import Settings
from proofbox.core.dirs import config_dir, state_dir
from proofbox.errors import PathRefused, PolicyRefused, ProofboxError, UsageError
from proofbox.sandbox.images.catalogue import Image
from proofbox.sandbox.images.pull import LOCK_FILE, check_lock
from proofbox.sandbox.initialize import initialize


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project/.proofbox").mkdir(parents=True)
    return tmp_path / "project"


def say(project: Path, text: str) -> None:
    (project / config.PROJECT_FILE).write_text(text)


def test_nothing_is_said_by_default(project: Path) -> None:
    assert config.load(project) == Settings()


def test_the_project_wins_over_the_user_and_a_flag_over_both(project: Path) -> None:
    (config_dir() / "config.toml").write_text('provider = "bubblewrap"\npids = 100\naccess = "ro"\n')
    say(project, 'access = "overlay"\npids = 50\n')
    assert config.load(project) == Settings(provider="bubblewrap", pids=50, access="overlay")
    with Sandboxes(project) as boxes, pytest.raises(PolicyRefused, match="access overlay"):
        boxes.exec(["true"], provider="off")
    (config_dir() / "config.toml").write_text('provider = "off"\n')
    say(project, "")
    with Sandboxes(project) as boxes:
        assert boxes.exec(["true"]).provider == "off"


@pytest.mark.parametrize(
    "text",
    [
        'provider = "off"',
        'network = "full"',
        'mounts = ["/etc:/mnt/etc:ro"]',
        'env = ["MY_TOKEN"]',
        '[runtimes.process]\ncommand = ["sh"]',
    ],
)
def test_what_widens_a_box_needs_the_user_s_word(project: Path, text: str) -> None:
    say(project, text)
    with pytest.raises(PolicyRefused) as raised:
        config.load(project)
    assert "proofbox init --trust" in raised.value.fix_hints[0]
    config.trust(project)
    assert config.load(project) != Settings()
    say(project, text + "\n# and one byte more\n")
    with pytest.raises(PolicyRefused):
        config.load(project)


@pytest.mark.parametrize(
    ("users", "laxer", "as_strict"),
    [
        ('access = "ro"', 'access = "rw"', 'access = "overlay"'),
        ('access = "overlay"', 'access = "rw"', 'access = "ro"'),
        ("memory = 512", "memory = 513", "memory = 512"),
        ("pids = 100", "pids = 4000", "pids = 50"),
        ("cpus = 1", "cpus = 1.5", "cpus = 0.5"),
        ("disk = 100", "disk = 101", "disk = 99"),
        ('runtime = "runsc"', 'runtime = "runc"', 'runtime = "runsc"'),
        ('image = "debian"', 'image = "evil"', 'image = "debian"'),
        ('provider = "docker"', 'provider = "bubblewrap"', 'provider = "docker"'),
        ('provider = "docker"', 'provider = "off"', ""),
        ('network = "allow:example.org"', 'network = "full"', 'network = "allow:example.org"'),
    ],
)
def test_what_is_laxer_than_the_user_s_own_settings_needs_the_user_s_word(
    project: Path, users: str, laxer: str, as_strict: str
) -> None:
    (config_dir() / "config.toml").write_text(users)
    say(project, as_strict)
    config.load(project)
    say(project, laxer)
    with pytest.raises(PolicyRefused) as raised:
        config.load(project)
    assert raised.value.details["asks_for"]
    config.trust(project)
    config.load(project)


@pytest.mark.parametrize("name", ["config.toml", "images.lock", "prepare.sh"])
def test_a_pipe_where_a_file_should_be_is_refused_and_not_waited_for(project: Path, name: str) -> None:
    if name == "prepare.sh":
        say(project, 'provision = ".proofbox/prepare.sh"')
    os.mkfifo(project / ".proofbox" / name)
    image = Image(name="x", arch="x86_64", url="https://example.org/x", sha256="0" * 64)

    def look() -> None:
        if name == "images.lock":
            check_lock(project, image)
        config.load(project)

    with pytest.raises(UsageError, match="regular file"):
        look()


def test_trust_is_for_one_project(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / ".proofbox").mkdir(parents=True)
    for each in (project, other):
        say(each, 'provider = "off"')
    config.trust(project)
    with pytest.raises(PolicyRefused):
        config.load(other)


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{", b'{"projects": 3}', b"\xff\xfe", b'{"schema_version": "x", "projects": {}}']
)
def test_a_damaged_record_of_trust_trusts_nothing(project: Path, damage: bytes) -> None:
    say(project, 'provider = "off"')
    config.trust(project)
    (state_dir() / "trusted.json").write_bytes(damage)
    with pytest.raises(PolicyRefused):
        config.load(project)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('provdier = "off"', "did you mean provider?"),
        ("provider = ", "mend"),
        ('memory = "much"', "init"),
        ('network = "some"', "init"),
        ("x" * 70_000, "mend"),
        ("nonsense = 1", "known:"),
    ],
)
def test_a_file_that_can_not_be_understood_stops_the_start(project: Path, text: str, hint: str) -> None:
    say(project, text)
    with pytest.raises(UsageError) as raised, Sandboxes(project) as boxes:
        boxes.exec(["true"], provider="off")
    assert hint in " ".join(raised.value.fix_hints)
    assert str(config.PROJECT_FILE) in raised.value.message


def test_written_settings_read_back_and_are_trusted(project: Path) -> None:
    settings = Settings(
        provider="docker", image='odd "name"\n:latest', cpus=1.5, memory=512, mounts=("/usr:/mnt/usr:ro",), env=("CI",)
    )
    config.write(project, settings)
    assert config.load(project) == settings


def test_variables_are_forwarded_by_name_with_the_value_of_the_moment(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write(project, Settings(provider="off", env=("MY_NUMBER", "NOT_SET")))
    with Sandboxes(project) as boxes, boxes.start_session() as session:
        for value in ("1", "2"):
            monkeypatch.setenv("MY_NUMBER", value)
            assert session.exec(["sh", "-c", "echo $MY_NUMBER${NOT_SET-unset}"]).stdout == f"{value}unset\n"


def test_the_value_of_a_variable_is_not_stored_with_a_session(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    config.write(project, Settings(provider="off", env=("MY_TOKEN",)))
    with Sandboxes(project) as boxes, boxes.start_session(detached=True) as session:
        assert session.exec(["sh", "-c", "echo $MY_TOKEN"]).stdout == "hunter2hunter2\n"
        for path in state_dir().rglob("*"):
            if path.is_file():
                assert b"hunter2" not in path.read_bytes()


@pytest.mark.needs("bubblewrap")
def test_a_command_can_not_open_its_own_next_box(project: Path) -> None:
    """The whole point of trust: an agent that writes the project's settings gains nothing by it."""
    with Sandboxes(project) as boxes:
        text = 'provider = \\"off\\"'
        boxes.exec(["sh", "-c", f'printf "{text}" > .proofbox/config.toml'], provider="bubblewrap")
        assert (project / config.PROJECT_FILE).read_text() == 'provider = "off"'
        with pytest.raises(ProofboxError, match="you have not agreed"):
            boxes.exec(["true"])


def test_settings_of_runtimes_add_up_and_are_written_as_they_are_read(project: Path) -> None:
    (config_dir() / "config.toml").write_text('[runtimes.a]\nmodel = "user"\nretries = 1\n[runtimes.b]\nx = 1\n')
    said = Settings(
        strategies=("a!", "b"), runtimes={"a": {"model": 'pro"ject', "extra": {"deep key": [1, {"b": True}]}}}
    )
    config.write(project, said)
    found = config.load(project)
    assert found.strategies == ("a!", "b")
    assert found.runtimes == {"a": {**said.runtimes["a"], "retries": 1}, "b": {"x": 1}}


def test_mount_that_leads_elsewhere_than_agreed_is_refused(project: Path, tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    for path in (shared, elsewhere):
        path.mkdir()
    (tmp_path / "link").symlink_to(shared)
    say(project, f'mounts = ["{tmp_path}/link:/mnt/x:rw"]')
    config.trust(project)
    assert config.load(project).mounts
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(PolicyRefused, match="leads to") as raised:
        config.load(project)
    assert (raised.value.details["agreed"], raised.value.details["found"]) == (str(shared), str(elsewhere))
    config.trust(project)
    assert config.load(project).mounts


def test_mount_that_did_not_exist_when_it_was_agreed_to_is_refused(project: Path, tmp_path: Path) -> None:
    say(project, 'mounts = ["later:/mnt/x"]')
    config.trust(project)
    assert config.load(project).mounts
    (project / "later").mkdir()
    with pytest.raises(PolicyRefused, match="led nowhere"):
        config.load(project)


def test_agreement_of_a_version_without_mounts_on_record_does_not_cover_them(project: Path) -> None:
    say(project, 'mounts = ["/usr:/mnt/usr:ro"]')
    config.trust(project)
    record = msgspec.json.decode((state_dir() / "trusted.json").read_bytes())
    del record["mounts"]
    (state_dir() / "trusted.json").write_bytes(msgspec.json.encode(record))
    with pytest.raises(PolicyRefused):
        config.load(project)


@pytest.mark.needs("bubblewrap")
def test_box_can_not_swap_the_source_of_its_next_mount(project: Path, tmp_path: Path) -> None:
    (project / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    say(project, 'provider = "bubblewrap"\nmounts = ["data:/mnt/data:rw"]')
    config.trust(project)
    with Sandboxes(project) as boxes:
        assert boxes.exec(["sh", "-c", "echo x > /mnt/data/x"]).exit_code == 0
        boxes.exec(["sh", "-c", f"mv data d2; ln -s {tmp_path}/elsewhere data"])
        with pytest.raises(PolicyRefused, match="leads to"):
            boxes.exec(["sh", "-c", "echo x > /mnt/data/x"])
    with Sandboxes(project, settings=Settings(provider="bubblewrap")) as boxes, pytest.raises(PathRefused):
        boxes.exec(["sh", "-c", "echo x > /mnt/data/x"], mounts=[f"{project}/data:/mnt/data:rw"])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("dangling", [False, True])
def test_init_does_not_write_through_a_planted_link(project: Path, tmp_path: Path, dangling: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    if not dangling:
        elsewhere.mkdir()
    (project / ".proofbox").rmdir()
    (project / ".proofbox").symlink_to(elsewhere)
    with pytest.raises(PathRefused, match="symbolic link") as raised:
        initialize(project, Settings(pids=50))
    assert raised.value.fix_hints[0].endswith(f"rm {project}/.proofbox")
    assert not elsewhere.exists() or not list(elsewhere.iterdir())
    with pytest.raises(PathRefused, match="symbolic link"):
        write_project_file(project, LOCK_FILE, b"{}")
