"""OCI references in the catalogue: pinned by digest, pulled by the container engine, and run only by `docker`."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

import proofbox
from proofbox.cli import main
from proofbox.core.dirs import config_dir
from proofbox.errors import EngineRefused, ImageLocked, ImageUnavailable, UsageError
from proofbox.sandbox.containers.engine import ContainerEngine
from proofbox.sandbox.containers.images import engine_image
from proofbox.sandbox.images.image import architecture
from proofbox.sandbox.images.pull import runnable_image
from proofbox.sandbox.images.tree import unpacked

DIGEST, OTHER = "a" * 64, "b" * 64
REFERENCE = f"registry.example.org:5000/team/tools@sha256:{DIGEST}"


class Engine(socketserver.ThreadingUnixStreamServer):
    """A container engine that knows images only by reference. `registry` has those that it can pull."""

    daemon_threads = True

    def __init__(self, place: Path) -> None:
        super().__init__(str(place), Handler)
        self.images: set[str] = set()
        self.registry: set[str] = {REFERENCE}
        self.pulls: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        name = urllib.parse.unquote(self.path).partition("/images/")[2].removesuffix("/json")
        if name in self.server.images:
            self._answer(200, b'{"Id": "sha256:0"}')
        else:
            self._answer(404, b'{"message": "No such image"}')

    def do_POST(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        reference = f"{query['fromImage'][0]}@{query['tag'][0]}"
        self.server.pulls.append(reference)
        if reference in self.server.registry:
            self.server.images.add(reference)
            self._answer(200, b'{"status": "Pulling"}\n{"status": "Done"}\n')
        else:
            self._answer(200, b'{"status": "Pulling"}\n{"error": "manifest unknown"}\n')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def engine(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with Engine(tmp_path / "engine") as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
        yield found
        found.shutdown()


def catalogue(url: str = f"docker://{REFERENCE}", sha256: str = DIGEST) -> None:
    lines = ['schema_version = "proofbox.images/1"', "[[image]]", 'name = "tools"', f'arch = "{architecture()}"']
    lines += [f'url = "{url}"', f'sha256 = "{sha256}"']
    (config_dir() / "images.toml").write_text("\n".join(lines) + "\n")


def test_engine_pulls_a_reference_by_digest_once(
    engine: Engine, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalogue()
    assert are_here(capsys) == [False]
    assert main(["images", "pull", "tools", "--project", str(project), "--json"]) == 0
    pulled = json.loads(capsys.readouterr().out)
    assert (pulled["downloaded"], pulled["path"], pulled["image"]["sha256"]) == (True, "", DIGEST)
    assert are_here(capsys) == [True]
    engine.registry.clear()  # offline
    assert not proofbox.pull_image("tools", project_root=project).downloaded
    assert engine.pulls == [REFERENCE]
    assert DIGEST in (project / ".proofbox/images.lock").read_text()


def test_docker_runs_only_a_pulled_reference(engine: Engine, project: Path) -> None:
    catalogue()
    with pytest.raises(ImageUnavailable) as refused:
        engine_image(ContainerEngine.find(), "tools", project)
    assert refused.value.fix_hints == ("proofbox images pull tools",)
    assert engine.pulls == [], "a start never downloads"
    proofbox.pull_image("tools", project_root=project)
    assert engine_image(ContainerEngine.find(), "tools", project) == REFERENCE


def test_failed_pull_is_explained_and_not_locked(engine: Engine, project: Path) -> None:
    catalogue()
    engine.registry.clear()
    with pytest.raises(EngineRefused, match="manifest unknown"):
        proofbox.pull_image("tools", project_root=project)
    assert not (project / ".proofbox/images.lock").exists()


def test_another_digest_is_refused_until_it_is_accepted(engine: Engine, project: Path) -> None:
    catalogue()
    proofbox.pull_image("tools", project_root=project)
    catalogue(f"docker://{REFERENCE}".replace(DIGEST, OTHER), OTHER)
    with pytest.raises(ImageLocked):
        proofbox.pull_image("tools", project_root=project)
    assert engine.pulls == [REFERENCE]


def test_other_providers_explain_how_to_use_its_files(engine: Engine, project: Path) -> None:
    catalogue()
    with pytest.raises(ImageUnavailable, match="only docker can run it") as refused:
        unpacked(runnable_image("tools", project))
    assert any(f"images import docker:{REFERENCE} " in hint for hint in refused.value.fix_hints)


def test_archive_that_was_never_pulled_is_explained_on_a_new_machine(project: Path) -> None:
    catalogue("https://example.org/rootfs.tar", DIGEST)
    with pytest.raises(ImageUnavailable, match="has not been pulled"):
        unpacked(runnable_image("tools", project))


def test_image_is_not_here_without_an_engine(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    catalogue()
    assert are_here(capsys) == [False]


@pytest.mark.parametrize(
    ("url", "sha256"),
    [
        ("docker://debian:12", DIGEST),
        (f"docker://debian@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/library/debian:12@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/library/debian@sha256:{OTHER}", DIGEST),
        (f"docker://user:secret@docker.io/debian@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/../x@sha256:{DIGEST}", DIGEST),
        (f"docker://docker.io/x?y@sha256:{DIGEST}", DIGEST),
    ],
    ids=["tag", "no-registry", "tag-and-digest", "other-digest", "secret", "dots", "query"],
)
def test_reference_without_an_exact_meaning_is_refused(project: Path, url: str, sha256: str) -> None:
    catalogue(url, sha256)
    with pytest.raises(UsageError, match=r"docker://REGISTRY/NAME@sha256:DIGEST|not the digest in its url"):
        proofbox.list_images()


def are_here(capsys: pytest.CaptureFixture[str]) -> list[bool]:
    """Return which of the catalogue's images are on this machine, as `images list` prints it."""
    assert main(["images", "list", "--catalogue", str(config_dir() / "images.toml"), "--json"]) == 0
    return [each["pulled"] for each in json.loads(capsys.readouterr().out)["images"]]
