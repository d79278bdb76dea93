"""Boxes have neither root's ids nor access to kernel settings, on every kind of file system.

Each case mounts the project in a private mount namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from capabilities import OrdinaryUser

from proofbox.errors import PathRefused
from proofbox.sandbox.contract import Mount, Policy
from proofbox.sandbox.host.binaries import program
from proofbox.sandbox.paths import resolve_mounts, resolve_project
from proofbox.sandbox.probing.corpus import corpus_probes
from proofbox.sandbox.providers import bubblewrap

BASE = 'mount -t tmpfs tmpfs "$1" && cd "$1" && mkdir project lower upper work'
OVERLAY = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work"
MOUNTS = {
    "overlay": f"{BASE} && {OVERLAY} project",
    "tmpfs": BASE,
    "bind": 'cd "$1" && mkdir project source && mount --bind source project',
    "fuse": f"{BASE} && bindfs -o allow_other lower project",
    # The project itself can be idmapped, but the mount inside it can't.
    "mount inside": f"{BASE} && mkdir project/sub && {OVERLAY} project/sub",
}
UNSUPPORTED = ("overlay", "fuse", "mount inside")
KINDS = [pytest.param(kind, marks=pytest.mark.needs("fuse") if kind == "fuse" else ()) for kind in MOUNTS]

PROGRAM = """
import json, os, shutil, sys
from proofbox import Sandboxes
from proofbox.errors import ProofboxError
project, driver, requests, options = *sys.argv[1:4], json.loads(sys.argv[4])
def read(session, name):
    lines = session.exec(["cat", "/proc/self/" + name]).stdout.splitlines()
    return [line.split()[1] for line in lines]
try:
    with Sandboxes(project) as boxes, boxes.start_session(provider="bubblewrap", **options) as session:
        made = session.exec(["touch", "made"]).exit_code == 0 and os.path.exists(project + "/made")
        shutil.copy(driver, project + "/driver")
        answers = session.exec(["./driver", "20"], stdin=requests, timeout=60).stdout.splitlines()
        print(json.dumps({"answers": answers, "made": made, **{n: read(session, n) for n in ("uid_map", "gid_map")}}))
except ProofboxError as error:
    print(json.dumps(error.as_dict()))
"""
Answer = dict[str, Any]


def requests(control: str) -> str:
    """Return the driver's input that opens kernel settings for writing, and a file that can be opened."""
    lines = [f"{probe.id}\t{probe.operation}\t{probe.args[0]}\n" for probe in corpus_probes("kernel.write-*")]
    return "".join((f"control\tfile-open-write\t{control}\n", *lines))


def opened(answers: Sequence[str]) -> list[str]:
    """Return the requests that succeeded."""
    return [answer["id"] for answer in map(json.loads, answers) if answer["result"] >= 0]


@pytest.fixture
def place() -> Generator[Path]:
    """A directory that every user can reach, unlike tmp_path."""
    path = Path(tempfile.mkdtemp(prefix="file-systems-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def try_box(
    place: Path,
    kind: str,
    owner: str,
    *,
    project: str = "project",
    run: Sequence[str] = (),
    python: str = sys.executable,
    **options: object,
) -> Answer:
    # The mounts end with the namespace; a FUSE server ends when its mount does.
    end = f"status=$?; cd /; umount -R {place}/project; exit $status"
    script = f'{MOUNTS[kind]} && chown {owner} project && shift && "$@"; {end}'
    words = [str(place / project), str(program("boxprobe")), requests("made"), json.dumps(options)]
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(place), *run, python, "-c", PROGRAM, *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    answer: Answer = json.loads(done.stdout)
    return {**answer, "opened": opened(answer["answers"])} if "answers" in answer else answer


def idmaps(kind: str, place: Path) -> bool:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    return {"tmpfs": release >= (6, 3), "bind": bubblewrap._can_idmap(str(place))}[kind]


@pytest.mark.needs("bubblewrap", "root")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("owner", "advised"), [("0:0", "1000:1000"), ("0:1234", "1000:1000"), ("1234:0", "1234:1000")])
def test_root_ids_are_never_mapped(place: Path, kind: str, owner: str, advised: str) -> None:
    answer = try_box(place, kind, owner)
    if kind in UNSUPPORTED or not idmaps(kind, place):
        assert answer["code"] == "SANDBOX_IDMAP_UNSUPPORTED"
        assert f"chown -R {advised} {place}/project" in answer["fix_hints"][0]
        return
    assert answer["opened"] == ["control"], "no kernel setting can be opened for writing"
    assert answer["made"]
    assert "0" not in [*answer["uid_map"], *answer["gid_map"]]


@pytest.mark.needs("bubblewrap", "root")
@pytest.mark.parametrize("kind", KINDS)
def test_root_runs_an_ordinary_users_project_as_its_owner(place: Path, kind: str) -> None:
    answer = try_box(place, kind, "1234:1234")
    assert answer["opened"] == ["control"]
    assert answer["made"]
    assert answer["uid_map"] == answer["gid_map"] == [str(bubblewrap.AGENT_ID), "1234"]


@pytest.mark.needs("bubblewrap", "root", "unprivileged-user")
@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_user_cannot_open_kernel_settings(place: Path, kind: str, ordinary_user: OrdinaryUser) -> None:
    answer = try_box(place, kind, owned_by(ordinary_user), run=becoming(ordinary_user), python=ordinary_user.python)
    assert answer["opened"] == ["control"]
    assert answer["made"]


@pytest.mark.needs("bubblewrap", "root", "unprivileged-user")
def test_namespaced_root_runs_like_an_ordinary_user(place: Path, ordinary_user: OrdinaryUser) -> None:
    run = [*becoming(ordinary_user), "unshare", "--user", "--map-root-user"]
    answer = try_box(place, "overlay", owned_by(ordinary_user), run=run, python=ordinary_user.python)
    assert answer["opened"] == ["control"]
    assert answer["made"]


def becoming(user: OrdinaryUser) -> list[str]:
    environment = [f"{name}={value}" for name, value in user.env.items()]
    return ["setpriv", f"--reuid={user.uid}", f"--regid={user.uid}", "--clear-groups", "env", "-i", *environment]


def owned_by(user: OrdinaryUser) -> str:
    return f"{user.uid}:{user.uid}"


@pytest.mark.needs("bubblewrap", "root")
@pytest.mark.parametrize("access", ["ro", "overlay"])
def test_read_only_and_overlay_access_are_refused(place: Path, access: str) -> None:
    assert try_box(place, "overlay", "0:0", access=access)["code"] == "SANDBOX_IDMAP_UNSUPPORTED"


@pytest.mark.needs("bubblewrap", "root")
def test_writable_mount_without_idmapping_is_refused(place: Path) -> None:
    mounts = [f"{place}/project:/mnt/data:rw"]
    answer = try_box(place, "overlay", "0:0", project="lower", mounts=mounts)
    assert (answer["code"], answer["path"]) == ("SANDBOX_IDMAP_UNSUPPORTED", f"{place}/project")


@pytest.mark.needs("bubblewrap", "root")
def test_command_line_drops_root_ids(place: Path) -> None:
    shutil.copy(program("boxprobe"), place / "driver")
    argv = [*bubblewrap.command_line(place, Policy()), "sh", "-c", 'id -u; id -G; exec "$0" 20', str(place / "driver")]
    shown = subprocess.run(argv, input=requests("/dev/null"), capture_output=True, text=True)
    user, group, *answers = shown.stdout.splitlines()
    assert [user, group] == [str(bubblewrap.COMMAND_ID)] * 2, shown.stderr
    assert opened(answers) == ["control"]


@pytest.mark.needs("root")
@pytest.mark.parametrize("path", ["/proc/sys/kernel", "/sys/kernel", "/proc/self"])
def test_kernel_file_systems_are_refused_as_project_and_mount(path: str, tmp_path: Path) -> None:
    with pytest.raises(PathRefused, match="settings of the host's kernel"):
        resolve_project(path)
    with pytest.raises(PathRefused, match="settings of the host's kernel"):
        resolve_mounts(tmp_path, [Mount(Path(path), "/mnt/settings", writable=True)])


CONTAINS = """
import sys
from pathlib import Path
from proofbox.errors import PathRefused
from proofbox.sandbox.paths import resolve_project
try:
    resolve_project(sys.argv[1])
except PathRefused as error:
    print(error.details["path"])
"""


@pytest.mark.needs("root")
def test_project_with_a_mounted_proc_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chroot/proc").mkdir(parents=True)
    script = 'mount -t proc proc "$1/chroot/proc" && exec "$2" -c "$3" "$1"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, CONTAINS]
    assert subprocess.run(argv, capture_output=True, text=True).stdout.strip() == str(tmp_path / "chroot/proc")


@pytest.mark.needs("bubblewrap", "root")
def test_probe_and_doctor_do_not_depend_on_the_file_system_of_tmp(place: Path) -> None:
    script = f'{MOUNTS["overlay"]} && export TMPDIR="$1/project" && shift && "$@"'
    doctor = [sys.executable, "-m", "proofbox", "doctor", "--provider", "bubblewrap", "--quick", "--json"]
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(place), *doctor]
    found = json.loads(subprocess.run(argv, capture_output=True, text=True).stdout)["providers"]["bubblewrap"]
    assert found["works"]["available"]
    outcomes = {result["outcome"] for result in found["report"]["results"]}
    assert outcomes <= {"not_checked", "not_applicable", "passed"}
    assert any("set TMPDIR" in result["detail"] for result in found["report"]["results"])
