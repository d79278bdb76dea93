"""Lists of pinned bundles, in campaigns and explorations: they are read as checked, and hostile ones are findings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proofbox import BundleWriter, verify
from proofbox.cli import main
from proofbox.core.digest import sha256_file
from proofbox.evidence.bundle.directory import BundleDirectory
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.verify import pinned_bundles
from proofbox.evidence.verify.check import BundleCheck, check_bundle

SOURCE = Path(pinned_bundles.__file__).parent
LISTS = {
    "runs.json": ("proofbox.campaign_runs/1", "runs", "path"),
    "exploration.json": ("proofbox.exploration/1", "branches", "bundle"),
}
each_list = pytest.mark.parametrize("name", LISTS)


def pinning(place: Path, name: str, rows: Any, **changes: Any) -> Path:
    """Return a committed bundle whose list has these rows."""
    schema, member, _ = LISTS[name]
    with BundleWriter.create(place / "exploration" if name == "exploration.json" else place) as bundle:
        bundle.write_json(name, {"schema_version": schema, member: rows, **changes})
    return bundle.path


def codes(bundle: Path) -> list[tuple[str, str]]:
    return [(each.code, each.path) for each in verify(bundle).findings]


def row(name: str, path: Any, index_sha256: Any = "0" * 64) -> dict[str, Any]:
    return {LISTS[name][2]: path, "index_sha256": index_sha256}


@each_list
@pytest.mark.parametrize("path", ["a\0b", "../a", "/etc", "a\nb", "x/../../y", "a" * 4000])
def test_hostile_path_is_a_finding(tmp_path: Path, name: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = pinning(tmp_path, name, [row(name, path)])
    assert codes(bundle) == [("run_mismatch" if name == "runs.json" else "branch_mismatch", path)]
    assert main(["verify", str(bundle)]) == 1
    assert "PROOFBOX_INTERNAL" not in "".join(capsys.readouterr())
    done = subprocess.run([sys.executable, "-I", SOURCE, bundle], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")


@each_list
def test_malformed_list_is_a_finding(tmp_path: Path, name: str) -> None:
    good = row(name, "absent")
    malformed: list[Any] = [
        None,
        {},
        "x",
        [1],
        [good, {}],
        [good, row(name, 7)],
        [row(name, "a", None)],
        [row(name, "a", "0")],
    ]
    for number, rows in enumerate(malformed):
        bundle = pinning(tmp_path / str(number), name, rows)
        assert codes(bundle) == [("pins_malformed", name)], rows
        assert main(["verify", str(bundle)]) == 1
    newer = pinning(tmp_path / "newer", name, [], schema_version=LISTS[name][0].replace("/1", "/2"))
    assert codes(newer) == [("schema_unknown", name)]


@each_list
def test_document_of_another_kind_pins_nothing(tmp_path: Path, name: str) -> None:
    found = verify(pinning(tmp_path, name, [1, 2], schema_version="mine/1"))
    assert found.ok
    assert [note for note in found.notes if name in note] == [
        f"{name} is not {LISTS[name][0]}, so no {'run' if name == 'runs.json' else 'branch'} was checked for it"
    ]


@each_list
def test_list_that_changes_after_the_check_is_a_finding(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = pinning(tmp_path, name, [row(name, "absent")])
    checked = pinned_bundles.verify_pinned

    def change_then_verify(result: Any, *others: Any) -> None:
        (bundle / name).write_bytes(b'{"%s":[]}' % LISTS[name][1].encode())
        checked(result, *others)

    monkeypatch.setattr("proofbox.evidence.verify.verifier.verify_pinned", change_then_verify)
    assert codes(bundle) == [("pins_malformed", name)]


@each_list
def test_damaged_list_is_one_finding(tmp_path: Path, name: str) -> None:
    bundle = pinning(tmp_path, name, [row(name, "absent")])
    (bundle / name).write_bytes((bundle / name).read_bytes().replace(b"absent", b"abSent"))
    assert codes(bundle) == [("digest_mismatch", name)]


@each_list
def test_bundle_that_is_pinned_often_is_checked_once(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BundleWriter.create(tmp_path, run_id="run-pinned") as pinned:
        pinned.write_bytes("a", b"a")
    digest, _ = sha256_file(pinned.path / INDEX)
    rows = [row(name, "run-pinned", digest)] * 20 + [row(name, "run-pinned")]
    bundle = pinning(tmp_path, name, rows)
    checks: list[str] = []

    def check(directory: str | BundleDirectory, **options: Any) -> BundleCheck:
        checks.append(str(directory))
        return check_bundle(directory, **options)

    monkeypatch.setattr(pinned_bundles, "check_bundle", check)
    assert codes(bundle) == [("run_mismatch" if name == "runs.json" else "branch_mismatch", "run-pinned")]
    assert checks == [str(pinned.path)]
