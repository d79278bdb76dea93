"""Files that a suite names are read from its own directory, through no link that was swapped in after the check."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from suites import HEAD, attempts, conduct, mission, plan, say

from proofbox.core.files.overlaying import OverlayWriter
from proofbox.errors import SuiteInvalid
from proofbox.lab.run import conductor
from proofbox.lab.run.ledger import Ledger
from proofbox.lab.run.plan import WORK, ledger_path, read_plan
from proofbox.lab.suite.harbor.task_tree import read_text, tree_sha256
from proofbox.lab.suite.widening import require_consent

SECRET = "PRIVATE KEY"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    base = tmp_path / "suite"
    for name in ("app/sub", "tests"):
        (base / name).mkdir(parents=True)
        (base / name / "file").write_text("given")
    (base / "prompt").write_text("do it")
    (base / "solve.sh").write_text("true")
    (tmp_path / "private/sub").mkdir(parents=True)
    for name in ("file", "sub/file", "prompt", "solve.sh"):
        (tmp_path / "private" / name).write_text(SECRET)
    return base


def secrets_below(place: Path) -> list[Path]:
    return [
        each
        for each in place.rglob("*")
        if not each.is_symlink() and each.is_file() and SECRET.encode() in each.read_bytes()
    ]


def swap(path: Path, target: Path) -> None:
    """Replace what is at `path` by a link."""
    os.rename(path, path.with_name(f"{path.name}.was"))
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("name", "target"),
    [("app", "."), ("app/sub", "sub"), ("tests", "."), ("prompt", "prompt"), ("solve.sh", "solve.sh"), ("", ".")],
)
def test_link_swapped_in_after_the_check_is_not_followed(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    checked: Callable[..., None] = require_consent

    def check_and_swap(*args: object, **options: object) -> None:
        checked(*args, **options)
        swap(base / name if name else base, tmp_path / "private" / target)

    monkeypatch.setattr(conductor, "require_consent", check_and_swap)
    source = HEAD + mission("a", say("done"), workspace="app", solution="solve.sh", verify={"files": "tests"}).replace(
        'prompt = "do it"', 'prompt_file = "prompt"'
    )
    out = tmp_path / "out"
    try:
        plan(source, out, base)
    except (SuiteInvalid, OSError):
        assert not list(out.glob(f"{WORK}/*"))
    assert not secrets_below(out)


def test_directory_replaced_by_a_link_while_it_is_copied_is_not_followed(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OverlayWriter.folder

    def swapping(self: OverlayWriter, path: str) -> object:
        if path == "sub" and not (base / "app/sub").is_symlink():
            swap(base / "app/sub", tmp_path / "private/sub")
        return folder(self, path)

    monkeypatch.setattr(OverlayWriter, "folder", swapping)
    dest = tmp_path / "dest"
    dest.mkdir()
    with pytest.raises(NotADirectoryError, match="app/sub"):
        OverlayWriter(dest).copy_tree(base / "app")
    assert not secrets_below(dest)


@pytest.mark.needs("bubblewrap")
def test_links_in_a_workspace_and_in_an_archive_stay_links(base: Path, tmp_path: Path) -> None:
    key = tmp_path / "private/file"
    (base / "app/link").symlink_to(key)
    (base / "named").symlink_to(key)
    with tarfile.open(base / "app.tar", "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(key)
        archive.addfile(link)
    check = {"commands": ["test -L link", "! grep PRIVATE link"]}
    out = tmp_path / "out"
    made = plan(
        HEAD
        + mission("directory", say("done"), workspace="app", verify=check)
        + mission("archive", say("done"), workspace="app.tar", verify=check)
        + mission("file", say("done"), files={"link": "named"}, verify=check),
        out,
        base,
    )
    assert not secrets_below(out / WORK)
    conduct(made, out)
    assert {each.result and each.result.verified for each in attempts(made, out).values()} == {"passed"}
    assert key.read_text() == SECRET


def test_task_file_swapped_for_a_link_after_the_check_is_refused(base: Path, tmp_path: Path) -> None:
    tree_sha256(base)
    swap(base / "prompt", tmp_path / "private/prompt")
    with pytest.raises(SuiteInvalid, match="leads out"):
        read_text(base, "prompt")
    swap(base / "solve.sh", base / "app/sub/file")
    assert read_text(base, "solve.sh") == "given"


def test_output_inside_a_workspace_is_not_copied_into_itself(base: Path) -> None:
    out = base / "out"
    (out / "earlier-run").mkdir(parents=True)
    (out / "earlier-run/large").write_text("x" * 1000)
    source = HEAD + mission("a", say("done"), workspace=".") + mission("b", say("done"), workspace=".")
    made = plan(source, out, base)
    for id in ("a", "b"):
        given = out / WORK / made.run_id / "templates" / id / "given"
        assert sorted(each.name for each in given.iterdir()) == ["app", "prompt", "solve.sh", "tests"]
    again = plan(source, out, base)
    with Ledger(ledger_path(out, again.run_id)) as ledger:
        inputs = read_plan(ledger).inputs
    with Ledger(ledger_path(out, made.run_id)) as ledger:
        assert read_plan(ledger).inputs == inputs  # the digest does not depend on earlier output
