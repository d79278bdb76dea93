"""Images: validation of the catalogue, downloads over an unreliable network, digests, and the lock file."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import proofbox
from proofbox.cli import main
from proofbox.cli.progress import bar
from proofbox.core.dirs import cache_dir, config_dir
from proofbox.errors import (
    DownloadFailed,
    ImageCorrupt,
    ImageLocked,
    ImageUnavailable,
    ImageUnknown,
    UsageError,
    VersionUnknown,
)
from proofbox.sandbox.images.download import FRUITLESS, download
from proofbox.sandbox.images.image import architecture
from proofbox.sandbox.images.pull import LOCK_FILE

BODY = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(9_375))  # 300 kB without repeated parts
OTHER = bytes(reversed(BODY))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves one file; `plan` names a fault for each of the next requests, after which it works normally."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = BODY
        self.etag: str | None = '"one"'
        self.plan: list[str] = []
        self.requests: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rootfs.tar"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(dict(self.headers))
        how = server.plan.pop(0) if server.plan else "well"
        body, begin, total = server.body, 0, len(server.body)
        if how.isdigit():
            self.send_error(int(how))
            return
        if how == "slam":
            self.connection.close()
            return
        wanted = self.headers.get("Range")
        same = self.headers.get("If-Range") in (None, server.etag)
        if wanted and same and how != "no-ranges":
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if begin >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            if how == "other-range":
                begin -= 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        else:
            self.send_response(200)
        rest = body[begin:]
        if how != "no-length" and how != "cut-without-length":
            self.send_header("Content-Length", str(len(rest)))
        if server.etag is not None:
            self.send_header("ETag", server.etag)
        self.end_headers()
        if how in ("cut", "cut-without-length"):
            rest = rest[: len(rest) // 2]
        if how == "cut-at-once":
            rest = b""
        self.wfile.write(rest)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def serving() -> Generator[Server]:
    with Server() as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield started
        started.shutdown()
        thread.join()


@pytest.fixture
def server(serving: Server) -> Server:
    serving.body, serving.etag, serving.plan, serving.requests = BODY, '"one"', [], []
    return serving


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def fetch(server: Server, into: Path, digest: str = sha256(BODY), **more: Any) -> bool:
    return download(server.url, digest, into, sleep=lambda _: None, **more)


def catalogue(*images: dict[str, Any]) -> None:
    lines = ['schema_version = "proofbox.images/1"']
    for image in images:
        lines += ["[[image]]", *(f"{name} = {json.dumps(value)}" for name, value in image.items())]
    (config_dir() / "images.toml").write_text("\n".join(lines) + "\n")


def entry(server: Server, name: str = "small", **more: Any) -> dict[str, Any]:
    return {"name": name, "arch": architecture(), "url": server.url, "sha256": sha256(BODY), **more}


# Downloads.


def test_download_is_verified_and_leaves_no_other_file(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    assert fetch(server, tmp_path / "x.rootfs", on_progress=lambda done, total: seen.append((done, total)))
    assert (tmp_path / "x.rootfs").read_bytes() == BODY
    assert os.listdir(tmp_path) == ["x.rootfs"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert not fetch(server, tmp_path / "x.rootfs")
    assert len(server.requests) == 1


def test_interrupted_download_resumes(server: Server, tmp_path: Path) -> None:
    server.plan = ["cut", "slam", "503", "cut"]
    assert fetch(server, tmp_path / "x.rootfs")
    assert (tmp_path / "x.rootfs").read_bytes() == BODY
    begins = [request.get("Range") for request in server.requests]
    half = f"bytes={len(BODY) // 2}-"
    assert begins == [None, half, half, half, f"bytes={len(BODY) // 4 * 3}-"]
    assert server.requests[1]["If-Range"] == '"one"'


def test_failing_server_is_a_typed_error_and_the_next_call_resumes(server: Server, tmp_path: Path) -> None:
    server.plan = ["cut", *["cut-at-once"] * FRUITLESS]
    with pytest.raises(DownloadFailed) as raised:
        fetch(server, tmp_path / "x.rootfs")
    assert raised.value.retryable
    assert raised.value.details["have"] == len(BODY) // 2
    assert fetch(server, tmp_path / "x.rootfs")
    assert server.requests[-1]["Range"] == f"bytes={len(BODY) // 2}-"
    assert os.listdir(tmp_path) == ["x.rootfs"]


def test_download_restarts_if_ranges_are_refused(server: Server, tmp_path: Path) -> None:
    server.plan = ["cut", "no-ranges", "cut", "other-range"]
    server.plan[1:1] = ["no-ranges"]
    assert fetch(server, tmp_path / "x.rootfs")
    server.plan = ["cut", "other-range"]
    assert fetch(server, tmp_path / "y.rootfs")
    assert (tmp_path / "y.rootfs").read_bytes() == BODY


def test_download_restarts_if_the_file_changes(server: Server, tmp_path: Path) -> None:
    server.plan = ["cut", *["slam"] * FRUITLESS]
    with pytest.raises(DownloadFailed):
        fetch(server, tmp_path / "x.rootfs", sha256(OTHER))
    server.body, server.etag = OTHER, '"two"'
    assert fetch(server, tmp_path / "x.rootfs", sha256(OTHER))
    assert (tmp_path / "x.rootfs").read_bytes() == OTHER


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_digest_decides_without_a_strong_etag(server: Server, tmp_path: Path, etag: str | None) -> None:
    server.etag = etag
    server.plan = ["cut", *["slam"] * FRUITLESS]
    with pytest.raises(DownloadFailed):
        fetch(server, tmp_path / "x.rootfs", sha256(OTHER))
    server.body = OTHER  # the parts are of two versions: detected, and fetched again as a whole
    assert fetch(server, tmp_path / "x.rootfs", sha256(OTHER))
    assert "If-Range" not in server.requests[-2]
    assert "Range" not in server.requests[-1]


@pytest.mark.parametrize("plan", [[], ["cut"], ["no-length"]])
def test_wrong_digest_is_a_typed_error_and_removes_the_file(server: Server, tmp_path: Path, plan: list[str]) -> None:
    server.plan = list(plan)
    with pytest.raises(ImageCorrupt) as raised:
        fetch(server, tmp_path / "x.rootfs", sha256(b"something else"))
    assert raised.value.details["found"] == sha256(BODY)
    assert os.listdir(tmp_path) == []


def test_oversized_download_is_refused_and_short_one_is_interrupted(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ImageCorrupt, match="more than 1000 bytes"):
        fetch(server, tmp_path / "x.rootfs", size=1000)
    assert os.listdir(tmp_path) == []
    server.plan = ["cut-without-length"]
    assert fetch(server, tmp_path / "x.rootfs", size=len(BODY))
    assert server.requests[-1]["Range"] == f"bytes={len(BODY) // 2}-"


@pytest.mark.parametrize("status", ["401", "404", "410"])
def test_missing_file_fails_without_retries(server: Server, tmp_path: Path, status: str) -> None:
    server.plan = [status]
    with pytest.raises(ImageUnavailable, match=status):
        fetch(server, tmp_path / "x.rootfs")
    assert len(server.requests) == 1
    assert os.listdir(tmp_path) == []


def test_complete_partial_file_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(BODY)
    assert fetch(server, tmp_path / "x.rootfs")
    (tmp_path / "y.part").write_bytes(BODY + b"and more")
    assert fetch(server, tmp_path / "y.rootfs")
    assert (tmp_path / "y.rootfs").read_bytes() == BODY
    assert sorted(os.listdir(tmp_path)) == ["x.rootfs", "y.rootfs"]


WORDS = ["well", "cut", "cut-at-once", "slam", "503", "429", "no-ranges", "other-range", "no-length"]


@given(
    plan=st.lists(st.sampled_from(WORDS), max_size=12), changes_at=st.integers(0, 12), etag=st.sampled_from([0, 1, 2])
)
def test_file_is_correct_or_absent_after_any_network_failure(
    serving: Server, tmp_path_factory: pytest.TempPathFactory, plan: list[str], changes_at: int, etag: int
) -> None:
    folder = tmp_path_factory.mktemp("pull")
    serving.body, serving.etag, serving.requests = BODY, [None, '"v"', 'W/"v"'][etag], []
    serving.plan = list(plan)
    for _ in range(15):
        try:
            fetch(serving, folder / "x.rootfs")
        except DownloadFailed:
            assert not (folder / "x.rootfs").exists()
            if len(serving.requests) >= changes_at and serving.etag == '"v"':
                (folder / "x.version").write_text('"older"')  # as if the file had changed on the server
        else:
            break
    assert (folder / "x.rootfs").read_bytes() == BODY
    assert os.listdir(folder) == ["x.rootfs"]


def wait_until_blocked(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not any("->" in line and f" {process.pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
        assert process.poll() is None, "the second process did not wait for the first"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_concurrent_processes_download_once_and_one_resumes_after_a_kill(server: Server, tmp_path: Path) -> None:
    server.plan = ["cut", "slam", "slam"]
    script = (
        "import sys; from pathlib import Path; from proofbox.sandbox.images.download import download\n"
        "url, digest, into, pause = sys.argv[1:]\n"
        "def wait(_):\n    print('cut', flush=True); __import__('time').sleep(float(pause))\n"
        "print(download(url, digest, Path(into), sleep=wait))"
    )
    words = [sys.executable, "-c", script, server.url, sha256(BODY), str(tmp_path / "x.rootfs")]
    with subprocess.Popen([*words, "600"], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "cut\n"
        with subprocess.Popen([*words, "0"], stdout=subprocess.PIPE, text=True) as second:
            wait_until_blocked(second)
            first.send_signal(signal.SIGKILL)
            assert second.communicate(timeout=60)[0].splitlines()[-1] == "True"
    assert (tmp_path / "x.rootfs").read_bytes() == BODY
    assert server.requests[-1]["Range"] == f"bytes={len(BODY) // 2}-"


# The catalogue, and the lock.


def test_built_in_images_are_listed_without_a_catalogue(project: Path) -> None:
    listed = proofbox.list_images("x86_64")
    assert [image.name for image in listed] == ["debian-12", "debian-12-python", "debian-12-node", "debian-12-build"]
    assert [image.name for image in listed if image.default] == ["debian-12"]
    assert proofbox.resolve_default_image("x86_64").name == "debian-12"
    with pytest.raises(ImageUnavailable) as raised:
        proofbox.pull_image("debian-12", project_root=project)
    assert raised.value.fix_hints[0] == "proofbox images build debian-12"
    with pytest.raises(ImageUnknown):
        proofbox.pull_image("small", project_root=project)
    with pytest.raises(ImageUnavailable) as raised:
        proofbox.resolve_default_image("riscv64")
    assert "images.toml" in raised.value.fix_hints[0]


def test_images_are_listed_by_architecture(project: Path, server: Server) -> None:
    foreign = "aarch64" if architecture() != "aarch64" else "x86_64"
    catalogue(entry(server), entry(server, "large", default=True), entry(server, "far", arch=foreign))
    assert [image.name for image in proofbox.list_images() if image.source == "archive"] == ["small", "large"]
    assert [image.name for image in proofbox.list_images(foreign) if image.source == "archive"] == ["far"]
    assert proofbox.list_images("arm64") == proofbox.list_images("aarch64")
    assert proofbox.resolve_default_image().name == "large"
    assert proofbox.resolve_default_image(foreign).name == "far", "the only image is the default"
    catalogue(entry(server), entry(server, "large"))
    assert proofbox.resolve_default_image().source == "build", "no image of the catalogue is marked"
    with pytest.raises(ImageUnavailable, match="no default"):
        proofbox.resolve_default_image(catalogue=config_dir() / "images.toml")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../up"},
        {"name": "Upper"},
        {"name": ""},
        {"sha256": "A" * 64},
        {"sha256": "ab"},
        {"url": "file:///etc/passwd"},
        {"url": "https://user:pass@example.org/x"},
        {"url": "http://[bad"},
        {"arch": "amd64"},
        {"size": 0},
        {"size": "big"},
    ],
)
def test_invalid_catalogue_entry_is_refused(project: Path, server: Server, change: dict[str, Any]) -> None:
    catalogue({**entry(server), **change})
    with pytest.raises(UsageError, match=r"images\.toml"):
        proofbox.list_images()


@pytest.mark.parametrize("text", ["x = [", "\xff", 'schema_version = "proofbox.images/9"', "", "a" * (2 << 20)])
def test_malformed_catalogue_is_refused(project: Path, text: str) -> None:
    (config_dir() / "images.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(VersionUnknown if "images/9" in text else UsageError):
        proofbox.list_images()


def test_duplicate_images_are_refused(project: Path, server: Server) -> None:
    catalogue(entry(server), entry(server))
    with pytest.raises(UsageError, match="twice"):
        proofbox.list_images()
    catalogue(entry(server, "a", default=True), entry(server, "b", default=True))
    with pytest.raises(UsageError, match="two defaults"):
        proofbox.list_images()


def test_pulling_locks_the_project_to_the_digest(project: Path, server: Server) -> None:
    catalogue(entry(server))
    pulled = proofbox.pull_image(project_root=project)
    assert (pulled.downloaded, pulled.path.read_bytes()) == (True, BODY)
    lock = json.loads((project / LOCK_FILE).read_text())
    assert [(each["name"], each["sha256"]) for each in lock["images"]] == [("small", sha256(BODY))]
    assert not proofbox.pull_image("small", project_root=project).downloaded

    server.body = OTHER
    catalogue({**entry(server), "sha256": sha256(OTHER)})
    with pytest.raises(ImageLocked) as raised:
        proofbox.pull_image("small", project_root=project)
    assert "--update" in raised.value.fix_hints[0]
    assert proofbox.pull_image("small", project_root=project, update=True).downloaded
    assert json.loads((project / LOCK_FILE).read_text())["images"][0]["sha256"] == sha256(OTHER)


def test_damaged_archive_is_detected_and_removed(project: Path, server: Server) -> None:
    catalogue(entry(server))
    path = proofbox.pull_image(project_root=project).path
    path.write_bytes(OTHER)
    with pytest.raises(ImageCorrupt):
        proofbox.pull_image(project_root=project)
    assert not path.exists()
    assert proofbox.pull_image(project_root=project).downloaded


@pytest.mark.parametrize("text", ["{", "[]", '{"schema_version": "proofbox.images_lock/9"}'])
def test_damaged_lock_is_refused(project: Path, server: Server, text: str) -> None:
    catalogue(entry(server))
    (project / LOCK_FILE).parent.mkdir()
    (project / LOCK_FILE).write_text(text)
    with pytest.raises(VersionUnknown if "lock/9" in text else UsageError, match=r"images\.lock"):
        proofbox.pull_image(project_root=project)


def test_images_commands(project: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["images", "list"]) == 0
    assert "proofbox images build debian-12" in capsys.readouterr().out
    assert main(["images", "default", "--arch", "riscv64", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "SANDBOX_IMAGE_UNAVAILABLE"
    catalogue(entry(server, description="a \x1b[31mred\x1b[0m one"))
    assert main(["images", "pull", "--project", str(project), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["downloaded"], document["image"]["pulled"]) == (True, True)
    assert main(["images", "list"]) == 0
    listed = capsys.readouterr().out
    assert "small" in listed
    assert "\x1b" not in listed
    assert main(["images", "default"]) == 0
    assert capsys.readouterr().out == "small\n"
    server.body = OTHER
    catalogue(entry(server, sha256="0" * 64))
    (project / LOCK_FILE).unlink()
    assert main(["images", "pull", "--project", str(project)]) == 1
    assert "SANDBOX_IMAGE_CORRUPT" in capsys.readouterr().err
    assert len(os.listdir(cache_dir() / "images")) == 1


def test_progress_bar_fits_its_line() -> None:
    assert bar("small", 50, 100, 60).startswith("small  50% [")
    assert all(len(bar("a" * 100, done, 10**9, 60)) == 60 for done in (0, 1, 10**9, 2 * 10**9))
    assert "\x1b" not in bar("\x1b[31m", 1, None, 60)


# `init` from Python.


def test_initialize_writes_trusts_and_refuses_to_overwrite(project: Path) -> None:
    wanted = proofbox.Settings(provider="off", memory=256)
    done = proofbox.initialize(project, wanted)
    assert (done.written, done.settings) == (True, wanted)
    with pytest.raises(UsageError, match="already exists"):
        proofbox.initialize(project)
    done.path.write_text(done.path.read_text() + "# more\n")
    with pytest.raises(proofbox.errors.SandboxError):
        proofbox.Sandboxes(project).exec(["true"])
    assert proofbox.initialize(project, trust=True).settings == wanted
    assert not proofbox.initialize(project, force=True).settings.memory
