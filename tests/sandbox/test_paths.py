"""Projects, working directories and mounts: nothing outside is reached by spelling, symlink or race-free trick."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.paths import parse_mount, resolve_cwd, resolve_mount, resolve_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    inside = tmp_path / "project"
    (inside / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "project-twin").mkdir()
    (inside / "to-deep").symlink_to("sub/deep")
    (inside / "to-twin").symlink_to(tmp_path / "project-twin")
    (inside / "up").symlink_to("..")
    (inside / "file").write_text("")
    return inside.resolve()


def test_a_project_is_resolved(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = project.parent / "link"
    link.symlink_to(project)
    monkeypatch.chdir(project)
    assert resolve_project(link) == resolve_project(".") == resolve_project(str(project) + "/sub/..") == project
    monkeypatch.setenv("HOME", str(project))
    assert resolve_project("~") == project


@pytest.mark.parametrize(
    ("cwd", "leads_to"),
    [
        (None, ""),
        ("", ""),
        (".", ""),
        ("sub", "sub"),
        ("to-deep", "sub/deep"),
        ("sub/../sub", "sub"),
        ("up/project", ""),
    ],
)
def test_a_cwd_within_the_project(project: Path, cwd: str | None, leads_to: str) -> None:
    assert resolve_cwd(project, cwd) == project / leads_to


@pytest.mark.parametrize(
    "cwd", ["..", "up", "to-twin", "sub/../..", "../project-twin", "/", "/tmp", "file", "sub/none"]
)
def test_a_cwd_outside_the_project_is_refused_with_both_sides_named(project: Path, cwd: str) -> None:
    with pytest.raises(PathRefused) as caught:
        resolve_cwd(project, cwd)
    assert caught.value.fix_hints
    if " is outside the project " in caught.value.message:
        assert str(project) in caught.value.message
        assert caught.value.details["project"] == str(project)


@given(parts=st.lists(st.sampled_from(["..", ".", "sub", "deep", "up", "to-deep", "to-twin", "file", "/"]), max_size=6))
def test_whatever_the_spelling_a_cwd_is_inside_or_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    base = tmp_path_factory.getbasetemp() / "spelling"
    inside = base / "project"
    if not inside.exists():
        (inside / "sub" / "deep").mkdir(parents=True)
        (base / "project-twin").mkdir()
        (inside / "to-deep").symlink_to("sub/deep")
        (inside / "to-twin").symlink_to(base / "project-twin")
        (inside / "up").symlink_to("..")
        (inside / "file").write_text("")
    inside = inside.resolve()
    try:
        found = resolve_cwd(inside, "/".join(parts))
    except PathRefused:
        return
    assert os.path.realpath(found) == str(found)
    assert found == inside or inside in found.parents
    assert found.is_dir()


def test_mounts_as_written(project: Path) -> None:
    assert parse_mount(f"{project}:/mnt/x") == Mount(project, "/mnt/x")
    assert parse_mount(f"{project}:/mnt/x:ro") == Mount(project, "/mnt/x")
    assert parse_mount(f"{project}:/mnt/x:rw") == Mount(project, "/mnt/x", writable=True)
    assert parse_mount(f"{project}/to-deep:/mnt/x/") == Mount(project / "sub/deep", "/mnt/x")
    assert resolve_mount(Mount(project / "file", "/mnt/file")).host == project / "file"


@given(text=st.lists(st.sampled_from([*"//::.~ar\0\ud800", "rw", "ro", "/usr"]), max_size=12).map("".join))
def test_any_other_mount_is_refused_and_nothing_else(text: str) -> None:
    try:
        mount = parse_mount(text)
    except PathRefused as error:
        assert error.fix_hints  # noqa: PT017
    else:
        assert mount.host.is_absolute()
        assert mount.guest.startswith("/")
        assert ".." not in mount.guest.split("/")
