"""Settings files: precedence, refused settings, and projects that try to widen their own box."""

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
from proofbox.sandbox.images.image import Image
from proofbox.sandbox.images.pull import LOCK_FILE, check_lock
from proofbox.sandbox.initialize import initialize


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project/.proofbox").mkdir(parents=True)
    return tmp_path / "project"


def write_settings(project: Path, text: str) -> None:
    (project / config.PROJECT_FILE).write_text(text)


def test_default_settings_are_empty(project: Path) -> None:
    assert config.load(project) == Settings()


def test_project_settings_override_user_settings_and_flags_override_both(project: Path) -> None:
    (config_dir() / "config.toml").write_text('provider = "bubblewrap"\npids = 100\naccess = "ro"\n')
    write_settings(project, 'access = "overlay"\npids = 50\n')
    assert config.load(project) == Settings(provider="bubblewrap", pids=50, access="overlay")
    with Sandboxes(project) as boxes, pytest.raises(PolicyRefused, match="access overlay"):
        boxes.exec(["true"], provider="off")
    (config_dir() / "config.toml").write_text('provider = "off"\n')
    write_settings(project, "")
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
        '[engine]\nname = "ray:10.0.0.1:6379"',
    ],
)
def test_settings_that_widen_a_box_need_trust(project: Path, text: str) -> None:
    write_settings(project, text)
    with pytest.raises(PolicyRefused) as raised:
        config.load(project)
    assert "proofbox init --trust" in raised.value.fix_hints[0]
    config.trust(project)
    assert config.load(project) != Settings()
    write_settings(project, text + "\n# and one byte more\n")
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
def test_project_settings_laxer_than_user_settings_need_trust(
    project: Path, users: str, laxer: str, as_strict: str
) -> None:
    (config_dir() / "config.toml").write_text(users)
    write_settings(project, as_strict)
    config.load(project)
    write_settings(project, laxer)
    with pytest.raises(PolicyRefused) as raised:
        config.load(project)
    assert raised.value.details["asks_for"]
    config.trust(project)
    config.load(project)


@pytest.mark.parametrize("name", ["config.toml", "images.lock", "prepare.sh"])
def test_pipe_instead_of_a_file_is_refused_without_blocking(project: Path, name: str) -> None:
    if name == "prepare.sh":
        write_settings(project, 'provision = ".proofbox/prepare.sh"')
    os.mkfifo(project / ".proofbox" / name)
    image = Image(name="x", arch="x86_64", url="https://example.org/x", sha256="0" * 64)

    def read() -> None:
        if name == "images.lock":
            check_lock(project, image)
        config.load(project)

    with pytest.raises(UsageError, match="regular file"):
        read()


def test_trust_applies_to_one_project(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / ".proofbox").mkdir(parents=True)
    for each in (project, other):
        write_settings(each, 'provider = "off"')
    config.trust(project)
    with pytest.raises(PolicyRefused):
        config.load(other)


@pytest.mark.parametrize("damage", [b"", b"[]", b"{", b'{"projects": 3}', b"\xff\xfe"])
def test_damaged_trust_record_trusts_nothing(project: Path, damage: bytes) -> None:
    write_settings(project, 'provider = "off"')
    config.trust(project)
    (state_dir() / "trusted.json").write_bytes(damage)
    with pytest.raises(PolicyRefused):
        config.load(project)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('provdier = "off"', "did you mean provider?"),
        ("[engine]\nper_nod = 2", "did you mean per_node?"),
        ("provider = ", "fix or remove"),
        ('memory = "much"', "init"),
        ('network = "some"', "init"),
        ("x" * 70_000, "shorten"),
        ("nonsense = 1", "known:"),
    ],
)
def test_malformed_settings_prevent_the_start(project: Path, text: str, hint: str) -> None:
    write_settings(project, text)
    with pytest.raises(UsageError) as raised, Sandboxes(project) as boxes:
        boxes.exec(["true"], provider="off")
    assert hint in " ".join(raised.value.fix_hints)
    assert str(config.PROJECT_FILE) in raised.value.message


def test_written_settings_are_read_back_and_trusted(project: Path) -> None:
    settings = Settings(
        provider="docker", image='odd "name"\n:latest', cpus=1.5, memory=512, mounts=("/usr:/mnt/usr:ro",), env=("CI",)
    )
    config.write(project, settings)
    assert config.load(project) == settings


def test_variables_are_forwarded_with_their_current_value(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write(project, Settings(provider="off", env=("MY_NUMBER", "NOT_SET")))
    with Sandboxes(project) as boxes, boxes.start_session() as session:
        for value in ("1", "2"):
            monkeypatch.setenv("MY_NUMBER", value)
            assert session.exec(["sh", "-c", "echo $MY_NUMBER${NOT_SET-unset}"]).stdout == f"{value}unset\n"


def test_value_of_a_variable_is_not_stored_with_a_session(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    config.write(project, Settings(provider="off", env=("MY_TOKEN",)))
    with Sandboxes(project) as boxes, boxes.start_session(detached=True) as session:
        assert session.exec(["sh", "-c", "echo $MY_TOKEN"]).stdout == "hunter2hunter2\n"
        for path in state_dir().rglob("*"):
            if path.is_file():
                assert b"hunter2" not in path.read_bytes()


@pytest.mark.needs("bubblewrap")
def test_command_cannot_widen_its_next_box(project: Path) -> None:
    """The purpose of trust: an agent that writes the project's settings gains nothing."""
    with Sandboxes(project) as boxes:
        text = 'provider = \\"off\\"'
        boxes.exec(["sh", "-c", f'printf "{text}" > .proofbox/config.toml'], provider="bubblewrap")
        assert (project / config.PROJECT_FILE).read_text() == 'provider = "off"'
        with pytest.raises(ProofboxError, match="you have not trusted"):
            boxes.exec(["true"])


def test_runtime_settings_are_merged_and_round_trip(project: Path) -> None:
    (config_dir() / "config.toml").write_text('[runtimes.a]\nmodel = "user"\nretries = 1\n[runtimes.b]\nx = 1\n')
    written = Settings(
        strategies=("a!", "b"), runtimes={"a": {"model": 'pro"ject', "extra": {"deep key": [1, {"b": True}]}}}
    )
    config.write(project, written)
    found = config.load(project)
    assert found.strategies == ("a!", "b")
    assert found.runtimes == {"a": {**written.runtimes["a"], "retries": 1}, "b": {"x": 1}}


def test_mount_that_leads_elsewhere_than_trusted_is_refused(project: Path, tmp_path: Path) -> None:
    shared, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    for path in (shared, elsewhere):
        path.mkdir()
    (tmp_path / "link").symlink_to(shared)
    write_settings(project, f'mounts = ["{tmp_path}/link:/mnt/x:rw"]')
    config.trust(project)
    assert config.load(project).mounts
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(PolicyRefused, match="leads to") as raised:
        config.load(project)
    assert (raised.value.details["agreed"], raised.value.details["found"]) == (str(shared), str(elsewhere))
    config.trust(project)
    assert config.load(project).mounts


def test_mount_that_did_not_exist_when_trusted_is_refused(project: Path, tmp_path: Path) -> None:
    write_settings(project, 'mounts = ["later:/mnt/x"]')
    config.trust(project)
    assert config.load(project).mounts
    (project / "later").mkdir()
    with pytest.raises(PolicyRefused, match="did not exist"):
        config.load(project)


def test_trust_record_without_mounts_does_not_cover_mounts(project: Path) -> None:
    write_settings(project, 'mounts = ["/usr:/mnt/usr:ro"]')
    config.trust(project)
    record = msgspec.json.decode((state_dir() / "trusted.json").read_bytes())
    del record["mounts"]
    (state_dir() / "trusted.json").write_bytes(msgspec.json.encode(record))
    with pytest.raises(PolicyRefused):
        config.load(project)


@pytest.mark.needs("bubblewrap")
def test_box_cannot_swap_the_source_of_its_next_mount(project: Path, tmp_path: Path) -> None:
    (project / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    write_settings(project, 'provider = "bubblewrap"\nmounts = ["data:/mnt/data:rw"]')
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


def test_named_tables_of_process_are_runtimes_of_their_own(project: Path) -> None:
    write_settings(
        project,
        '[runtimes.process]\ncommand = ["a"]\n[runtimes.process.quick]\ncommand = ["b"]\n'
        '[runtimes.acp]\nenv = { A = "1" }\n[runtimes.acp.mine]\ncommand = ["c"]\nenv = { B = "2" }\n'
        "[runtimes.codex_app_server.extra_config]\nx = 1\n",
    )
    config.trust(project)
    found = config.load(project)
    assert found.runtimes == {
        "process": {"command": ["a"]},
        "process.quick": {"command": ["b"]},
        "acp": {"env": {"A": "1"}},
        "acp.mine": {"command": ["c"], "env": {"B": "2"}},
        "codex_app_server": {"extra_config": {"x": 1}},
    }
    config.write(project, found)
    assert config.load(project).runtimes == found.runtimes
