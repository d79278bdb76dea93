"""A box can't replace proofbox's own files on the host, whatever its project or mounts contain."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from capabilities import OrdinaryUser

from proofbox import Sandboxes
from proofbox.config.settings import Settings
from proofbox.core.files.path_walk import walk
from proofbox.errors import PathRefused, ProofboxError
from proofbox.sandbox import own_files
from proofbox.sandbox.contract import BoxMount, Layers, Mount, Policy
from proofbox.sandbox.covering import placed
from proofbox.sandbox.images.build import build_image
from proofbox.sandbox.machines import kernel

RENAME = """
cd "$1"
for d in .config .local/state .local .cache; do mv "$d" "$d-2" 2>/dev/null; rm -rf "$d" 2>/dev/null; done
mkdir -p .config/proofbox .local/state/proofbox .cache/proofbox 2>/dev/null
echo 'provider = "off"' > .config/proofbox/config.toml
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with proofbox's directories in their default places."""
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = tmp_path.resolve() / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


def mounts_of(project: Path, policy: Policy | None = None) -> dict[str, BoxMount]:
    found = placed(project, policy or Policy(access="rw"))
    assert len({each.place for each in found}) == len(found), "two mounts at one place"
    return {each.place: each for each in found}


def code_in(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    """Make proofbox treat these directories as its code."""
    monkeypatch.setattr(own_files, "_code_ways", lambda: tuple(walk(each) for each in directories))


@pytest.mark.needs("bubblewrap", "root")
def test_next_box_over_a_home_directory_keeps_its_settings(home: Path) -> None:
    with Sandboxes(home) as boxes:
        boxes.exec(["sh", "-c", RENAME, "sh", str(home)], provider="bubblewrap")
        assert boxes.exec(["true"]).provider == "bubblewrap"
    assert not (home / ".config-2").exists()


@pytest.mark.needs("bubblewrap", "unprivileged-user")
def test_next_box_over_a_home_directory_keeps_its_settings_for_an_ordinary_user(ordinary_user: OrdinaryUser) -> None:
    code = """
        import os, sys, tempfile
        from pathlib import Path
        from proofbox import Sandboxes
        with tempfile.TemporaryDirectory() as directory:
            os.environ["HOME"] = directory
            for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "PYTHONPATH"):
                os.environ.pop(name, None)
            with Sandboxes(directory) as boxes:
                boxes.exec(["sh", "-c", sys.argv[1], "sh", directory], provider="bubblewrap")
                print(boxes.exec(["true"]).provider, sorted(os.listdir(directory)))
    """
    output = ordinary_user.run_code(textwrap.dedent(code), RENAME)
    assert output.startswith("bubblewrap ")
    assert "-2" not in output


def test_directories_above_code_are_pinned_and_code_is_read_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = home / "tools/venv"
    code.mkdir(parents=True)
    code_in(monkeypatch, code)
    found = mounts_of(home)
    assert found[str(home / "tools")] == BoxMount(home / "tools", str(home / "tools"), True, cover=True, loose=True)
    assert found[str(code)] == BoxMount(code, str(code), False, cover=True, loose=True)


def test_writable_mount_is_protected_even_if_the_project_is_an_overlay(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, project = home / "tools/venv", tmp_path.resolve() / "project"
    code.mkdir(parents=True)
    project.mkdir()
    code_in(monkeypatch, code)
    found = mounts_of(project, Policy(access="overlay", mounts=(Mount(home, "/mnt/home", writable=True),)))
    assert found["/mnt/home/tools/venv"].writable is False
    assert found["/mnt/home/tools"].writable is True
    assert found["/mnt/home/.config/proofbox"].source is None
    assert found["/mnt/home/.config"].source == home / ".config"


def test_overlay_hides_settings_and_leaves_code_writable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = home / "venv"
    code.mkdir()
    code_in(monkeypatch, code)
    found = mounts_of(home, Policy(access="overlay"))
    assert str(code) not in found
    assert found[f"{home}/.config/proofbox"].source is None


def test_own_directories_in_a_lower_layer_are_hidden(home: Path, tmp_path: Path) -> None:
    project = tmp_path.resolve() / "project"
    layers = Layers((home,), tmp_path / "upper", tmp_path / "work")
    found = mounts_of(project, Policy(access="overlay", layers=layers))
    assert found[f"{project}/.config/proofbox"].source is None


def test_link_to_code_makes_its_directory_read_only(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "versions").mkdir()
    (home / "tools").mkdir()
    (home / "tools/current").symlink_to(tmp_path / "versions")
    code_in(monkeypatch, home / "tools/current")
    assert mounts_of(home)[f"{home}/tools"].writable is False


@pytest.mark.parametrize("name", [".config", ".local"])
def test_link_to_settings_in_the_root_of_a_writable_project_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (home / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PathRefused, match="symbolic link") as raised:
        mounts_of(home)
    assert any("--access overlay" in hint for hint in raised.value.fix_hints)
    mounts_of(home, Policy(access="ro"))
    mounts_of(home, Policy(access="overlay"))


def test_link_from_outside_the_project_to_settings_inside_is_followed(home: Path, tmp_path: Path) -> None:
    dotfiles = tmp_path.resolve() / "dotfiles"
    (dotfiles / "config").mkdir(parents=True)
    (home / ".config").symlink_to(dotfiles / "config")
    found = mounts_of(dotfiles)
    assert found[f"{dotfiles}/config"].writable is True
    assert found[f"{dotfiles}/config/proofbox"].source is None


@pytest.mark.parametrize("inside", ["", "package/deep"])
def test_writable_project_that_is_or_is_inside_code_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    code = home / "site-packages"
    (code / "package/deep").mkdir(parents=True)
    code_in(monkeypatch, code)
    monkeypatch.setattr(own_files, "_imported", lambda: iter([str(code)]))
    with pytest.raises(PathRefused, match="runs code from"):
        mounts_of(code / inside)
    mounts_of(code / inside, Policy(access="ro"))


@pytest.mark.parametrize("entry", ["", "src", "src/../src"])
def test_python_path_inside_a_writable_project_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    project = tmp_path.resolve() / "project"
    (project / "src").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"/usr/lib/nowhere:{project / entry}")
    with pytest.raises(PathRefused, match="PYTHONPATH") as raised:
        mounts_of(project)
    assert "env -u PYTHONPATH" in raised.value.fix_hints[0]
    mounts_of(project, Policy(access="ro"))
    monkeypatch.setenv("PYTHONPATH", f"{project.parent}")  # a box can't write to the directory above its project
    mounts_of(project)


def test_user_site_directory_is_created_and_read_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = home / ".local/lib/python3/site-packages"
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(directory))
    assert mounts_of(home)[str(directory)].writable is False
    assert mounts_of(home)[f"{home}/.local/lib"].writable is True


def test_directory_of_the_command_itself_is_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = home / "bin/proofbox"
    script.parent.mkdir()
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    own_files._code_ways.cache_clear()
    try:
        assert mounts_of(home)[f"{home}/bin"].writable is False
    finally:
        own_files._code_ways.cache_clear()


@pytest.mark.needs("root")
def test_bind_mount_of_a_home_directory_is_recognized(home: Path, tmp_path: Path) -> None:
    project = tmp_path.resolve() / "project"
    (project / "alias").mkdir(parents=True)
    code = f"""
import ctypes, os
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0
assert libc.mount(None, b"/", None, 0x44000, None) == 0
assert libc.mount({os.fsencode(home)!r}, {os.fsencode(project / "alias")!r}, None, 4096, None) == 0
from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Policy
from proofbox.sandbox.paths import resolve_project
from proofbox.sandbox.covering import placed
for root in ({str(project)!r}, {str(project / "alias")!r}):
    print(*(each.place for each in placed(Path(root), Policy(access="rw")) if each.source is None))
try:
    resolve_project({str(project / "alias/.config/proofbox")!r})
except PathRefused as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second, refused = done.stdout.splitlines()
    assert f"{project}/alias/.config/proofbox" in first.split()
    assert first == second
    assert "proofbox's own directory" in refused


def plant(program: Path, ran: Path) -> Path:
    """Create a program that leaves a file if it runs."""
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("link", [False, True])
def test_program_planted_on_the_path_by_a_box_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    project, ran = tmp_path.resolve() / "project", tmp_path / "ran"
    planted = plant(project / "venv/bin/bwrap", ran)
    if link:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/bwrap").symlink_to(planted)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin' if link else planted.parent}:{os.environ['PATH']}")
    with Sandboxes(project, settings=Settings()) as boxes:
        for provider in (None, "auto", "bubblewrap", "bwrap"):
            with pytest.raises(PathRefused, match="on PATH"):
                boxes.exec(["true"], provider=provider)
            with pytest.raises(PathRefused, match="on PATH"):
                boxes.probe(provider)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["bwrap", "qemu-system-x86_64"])
@pytest.mark.needs("vm")
def test_program_of_a_virtual_machine_planted_on_the_path_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project, ran = tmp_path.resolve() / "project", tmp_path / "ran"
    planted = plant(project / "bin" / name, ran)
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    for template in (False, True):
        with Sandboxes(project, settings=Settings(vm_template=template)) as boxes:
            with pytest.raises(PathRefused, match=f"{name} on PATH"):
                boxes.exec(["true"], provider="vm")
            with pytest.raises(ProofboxError, match=f"{name} on PATH"):
                boxes.probe("vm")
    assert not ran.exists()


@pytest.mark.parametrize("name", ["mmdebstrap", "apt-get"])
def test_program_that_builds_images_planted_on_the_path_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project, ran = tmp_path.resolve() / "project", tmp_path / "ran"
    planted = plant(project / "bin" / name, ran)
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("proofbox.sandbox.images.build._released", lambda url: 0)
    mirror = None if name == "apt-get" else "http://127.0.0.1:1/debian"
    with pytest.raises(PathRefused, match=f"{name} on PATH"):
        build_image("debian-12", project_root=project, mirror=mirror)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["apt-cache", "apt-get", "dpkg-deb"])
def test_program_that_builds_a_kernel_planted_on_the_path_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ran = tmp_path / "ran"
    planted = plant(tmp_path / "here/bin" / name, ran)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    run: Mapping[str, Callable[[], object]] = {
        "apt-cache": kernel._package_name,
        "apt-get": lambda: kernel._download("linux-image", tmp_path),
        "dpkg-deb": lambda: kernel._unpack(tmp_path / "absent.deb"),
    }
    with pytest.raises(PathRefused, match=f"{name} on PATH"):
        run[name]()
    assert not ran.exists()


@pytest.mark.needs("bubblewrap")
def test_hidden_and_frozen_parts_are_covered_wherever_the_project_is_mounted(tmp_path: Path) -> None:
    project = tmp_path.resolve() / "project"
    project.mkdir()
    (project / "secret").write_text("secret")
    (project / "fixed").write_text("fixed")
    with Sandboxes(project, settings=Settings()) as boxes:
        result = boxes.exec(
            ["sh", "-c", "pwd; cat secret; echo x > fixed; rm -f fixed secret"],
            provider="bubblewrap",
            hidden=["secret"],
            frozen=["fixed"],
            mounts=[Mount(project, "/app", writable=True)],
        )
    assert result.stdout == "/app\n"
    assert (project / "secret").read_text() == "secret"
    assert (project / "fixed").read_text() == "fixed"
