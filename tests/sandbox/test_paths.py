"""Projects, working directories and mounts: no spelling or symlink reaches files outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Mount
from proofbox.sandbox.paths import parse_mount, resolve_cwd, resolve_mounts, resolve_project


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


def test_project_is_resolved(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_cwd_within_the_project(project: Path, cwd: str | None, leads_to: str) -> None:
    assert resolve_cwd(project, cwd) == project / leads_to


@pytest.mark.parametrize(
    "cwd", ["..", "up", "to-twin", "sub/../..", "../project-twin", "/", "/tmp", "file", "sub/none"]
)
def test_error_for_a_cwd_outside_the_project_names_both_paths(project: Path, cwd: str) -> None:
    with pytest.raises(PathRefused) as caught:
        resolve_cwd(project, cwd)
    assert caught.value.fix_hints
    if " is outside the project " in caught.value.message:
        assert str(project) in caught.value.message
        assert caught.value.details["project"] == str(project)


@given(parts=st.lists(st.sampled_from(["..", ".", "sub", "deep", "up", "to-deep", "to-twin", "file", "/"]), max_size=6))
def test_any_spelling_of_a_cwd_is_inside_or_refused(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
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


def resolved(project: Path, *texts: str) -> list[Mount]:
    return list(resolve_mounts(project, [parse_mount(text) for text in texts]))


def test_mounts_are_parsed_and_resolved(project: Path) -> None:
    elsewhere = project.parent / "project-twin"
    assert resolved(elsewhere, f"{project}:/mnt/x") == [Mount(project, "/mnt/x")]
    assert resolved(elsewhere, f"{project}:/mnt/x:ro") == [Mount(project, "/mnt/x")]
    assert resolved(elsewhere, f"{project}:/mnt/x:rw") == [Mount(project, "/mnt/x", writable=True)]
    assert resolved(elsewhere, f"{project}/to-deep:/mnt/x/") == [Mount(project / "sub/deep", "/mnt/x")]
    assert resolved(elsewhere, f"{project}/file:/mnt/file") == [Mount(project / "file", "/mnt/file")]


def test_relative_mount_source_is_resolved_from_its_base(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "sub")
    assert resolved(project, "deep:/mnt/x") == [Mount(project / "sub/deep", "/mnt/x")]
    assert parse_mount("sub/deep:/mnt/x", project).host == project / "sub/deep"
    assert parse_mount("~/x:/mnt/x", project).host == Path("~/x")


@pytest.mark.parametrize("source", ["to-twin", "to-deep", "up/project/sub", "sub/../to-twin/."])
def test_link_below_the_project_in_the_source_of_a_mount_is_refused(project: Path, source: str) -> None:
    with pytest.raises(PathRefused, match="symbolic link") as caught:
        resolved(project, f"{project}/{source}:/mnt/x")
    assert caught.value.details["link"].startswith(f"{project}/")
    assert caught.value.fix_hints


def test_link_below_a_writable_mount_in_the_source_of_another_is_refused(project: Path) -> None:
    twin = project.parent / "project-twin"
    with pytest.raises(PathRefused, match="symbolic link"):
        resolved(twin, f"{project}:/mnt/p:rw", f"{project}/to-deep:/mnt/x")
    assert resolved(twin, f"{project}:/mnt/p:ro", f"{project}/to-deep:/mnt/x")


def test_link_that_boxes_cannot_write_is_followed(project: Path) -> None:
    (project.parent / "link").symlink_to(project / "sub")
    assert resolved(project, f"{project.parent}/link/deep:/mnt/x") == [Mount(project / "sub/deep", "/mnt/x")]


@given(text=st.lists(st.sampled_from([*"//::.~ar\0\ud800", "rw", "ro", "/usr"]), max_size=12).map("".join))
def test_any_invalid_mount_is_refused(text: str) -> None:
    try:
        [mount] = resolved(Path("/nowhere"), text)
    except PathRefused as error:
        assert error.fix_hints  # noqa: PT017
    else:
        assert mount.host.is_absolute()
        assert mount.guest.startswith("/")
        assert ".." not in mount.guest.split("/")
