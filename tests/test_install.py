"""The wheel works in a clean environment without a checkout, with no extra and with each extra."""

from __future__ import annotations

import email.parser
import json
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from capabilities import ROOT
from moto.server import ThreadedMotoServer
from release import Installed, built_release

import proofbox

pytestmark = [
    pytest.mark.xdist_group("wheel"),  # built once, for these and for tests/test_wheel.py
    pytest.mark.timeout(600),
    pytest.mark.needs("zig", "uv"),
]
SUITE = '[suite]\nid = "s"\n[[mission]]\nid = "m"\nprompt = "p"\nverify = { commands = [{ run = "true" }] }\n'
SUITE += '[[mission.script.step]]\nsay = "done"\n'
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("plain"))


def test_wheel_has_complete_metadata_and_files() -> None:
    with zipfile.ZipFile(built_release().wheel) as archive:
        names = set(archive.namelist())
        info = next(name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert (metadata["Name"], metadata["Version"]) == ("proofbox", proofbox.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_all("Provides-Extra") == ["apple-vm", "mcp", "ray", "s3"]
    assert "proofbox = proofbox.cli:entry" in entry_points
    assert {"proofbox/py.typed", f"{info}/licenses/LICENSE"} <= names
    package = ROOT / "src/proofbox"
    sources = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    here = {f"proofbox/{path.relative_to(package)}" for path in sources if path.parent.name != "bin"}
    assert here <= names
    assert {name.partition("/")[0] for name in names} == {"proofbox", info}


@pytest.mark.needs("index")
def test_installed_command_and_module_run(plain: Installed) -> None:
    where = plain.run("python", "-c", "import proofbox; print(proofbox.__file__)").stdout
    assert Path(where.strip()).is_relative_to(plain.bin.parent)
    expected = f"proofbox {proofbox.__version__}\n"
    assert plain.run("proofbox", "--version").stdout == expected
    assert plain.run("python", "-m", "proofbox", "--version").stdout == expected


@pytest.mark.needs("index", "bubblewrap", "git")
def test_demo_works_after_install_and_leaves_nothing(plain: Installed) -> None:
    done = plain.run(str(ROOT / "scripts/leftovers"), "--", "proofbox", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All files were deleted" in done.stdout
    assert str(ROOT) not in done.stdout
    assert list(plain.cwd.iterdir()) == []


@pytest.mark.needs("index")
@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (("mcp", "serve", "--workspace", "."), "WORKSPACE_MCP_UNAVAILABLE", "proofbox[mcp]"),
        (("bundle", "pull", "s3://bucket/x"), "BUNDLE_STORE_UNAVAILABLE", "proofbox[s3]"),
    ],
)
def test_missing_extra_error_names_the_package_to_install(
    words: tuple[str, ...], code: str, hint: str, plain: Installed, tmp_path: Path
) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    plain.run("proofbox", "workspace", "init", **state)
    done = plain.run("proofbox", *words, "--json", **state)
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert hint in " ".join(error["fix_hints"])


@pytest.mark.needs("index")
def test_mcp_extra_is_enough_to_serve(tmp_path: Path) -> None:
    here = Installed(tmp_path, "mcp")
    assert here.run("python", "-c", "import obstore").returncode == 1
    assert here.run("proofbox", "workspace", "init").returncode == 0
    done = here.run("proofbox", "mcp", "serve", "--workspace", ".", input=json.dumps(HELLO) + "\n")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["result"]["serverInfo"]["name"] == "proofbox"


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")).close()
        secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        yield {"AWS_ENDPOINT_URL": f"http://{host}:{port}", **secrets}
    finally:
        server.stop()


@pytest.mark.needs("index", "bubblewrap")
def test_s3_extra_is_enough_to_push_and_pull(tmp_path: Path, bucket: dict[str, str]) -> None:
    here = Installed(tmp_path, "s3")
    assert here.run("python", "-c", "import mcp").returncode == 1
    (here.cwd / "suite.toml").write_text(SUITE)
    assert here.run("proofbox", "suite", "run", "suite.toml", "--strategies", "scripted").returncode == 0
    run = (here.cwd / "out/LATEST").read_text().strip()
    for words in (
        ("bundle", "push", "out", "s3://bucket/runs"),
        ("bundle", "pull", "s3://bucket/runs", "pulled"),
        ("verify", f"pulled/{run}"),
    ):
        done = here.run("proofbox", *words, **bucket)
        assert done.returncode == 0, done.stdout + done.stderr
