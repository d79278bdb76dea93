"""Invalid requests: each raises its own error, with a code and a hint, and leaves nothing running."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_agent import wait_until

from proofbox import Sandboxes
from proofbox.errors import (
    CommandNotExecutable,
    CommandNotFound,
    PathRefused,
    PolicyRefused,
    ProofboxError,
    ProviderUnavailable,
    ProviderUnknown,
    RequestInvalid,
)
from proofbox.sandbox.client.requests import RLIMITS, encode_env, make_request, make_settings, parse_env
from proofbox.sandbox.service import Session


def children() -> set[str]:
    """Return the child processes of all threads, because any thread may start a box."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found.update((task / "children").read_text().split())
    return found


@pytest.fixture
def boxes(tmp_path: Path) -> Iterator[Sandboxes]:
    project = tmp_path / "project"
    project.mkdir()
    before = children()
    with Sandboxes(project_root=project) as opened:
        yield opened
    wait_until(lambda: children() <= before, "nothing left running")
    for thread in threading.enumerate():
        if thread.name == "proofbox-stdin":
            thread.join(timeout=60)
            assert not thread.is_alive()


@pytest.fixture
def session(boxes: Sandboxes) -> Session:
    return boxes.start_session(provider="off")


def check(error: ProofboxError, code: str) -> None:
    assert error.code == code
    assert error.message
    assert error.fix_hints
    assert all(error.fix_hints)
    assert error.as_dict()["op"]


requests: list[tuple[Any, dict[str, Any], type[ProofboxError], str]] = [
    ([], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    ("ls -l", {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (b"ls", {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", "a\0b"], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["tr\0ue"], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", b"a\0b"], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", "\ud800"], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", 5], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", None], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", "x" * 10_000_000], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", *["x" * 1000] * 10_000], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true", "x" * 200_000], {}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"env": {"A": "x" * 10_000_000}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"env": {"A\0": "x"}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"env": {"A": "x\0"}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"env": {"A=B": "x"}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"env": {"": "x"}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"env": {"A": 5}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"timeout": 0}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"timeout": -1}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"timeout": float("nan")}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"timeout": float("inf")}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"timeout": 1e9}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"grace": -1}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"grace": float("nan")}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"grace": 1e9}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"max_output": 0}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"max_output": -5}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"max_output": 10**30}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"limits": {"nonsense": 1}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"limits": {"core": -1}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"limits": {"core": 2**64}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"limits": {"core": 0.5}}, RequestInvalid, "SANDBOX_REQUEST_INVALID"),
    (["true"], {"cwd": "a\0b"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": "missing"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": "file"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": ".."}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": "/"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": "out"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": "loop"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["true"], {"cwd": "\ud800"}, PathRefused, "SANDBOX_PATH_REFUSED"),
    (["no-such-program"], {}, CommandNotFound, "SANDBOX_COMMAND_NOT_FOUND"),
    (["./missing"], {}, CommandNotFound, "SANDBOX_COMMAND_NOT_FOUND"),
    (["./file/x"], {}, CommandNotFound, "SANDBOX_COMMAND_NOT_FOUND"),
    (["./no-interpreter"], {}, CommandNotFound, "SANDBOX_COMMAND_NOT_FOUND"),
    ([""], {}, CommandNotFound, "SANDBOX_COMMAND_NOT_FOUND"),
    (["./file"], {}, CommandNotExecutable, "SANDBOX_COMMAND_NOT_EXECUTABLE"),
    (["./directory"], {}, CommandNotExecutable, "SANDBOX_COMMAND_NOT_EXECUTABLE"),
    (["./no-hash-bang"], {}, CommandNotExecutable, "SANDBOX_COMMAND_NOT_EXECUTABLE"),
    (["./empty"], {}, CommandNotExecutable, "SANDBOX_COMMAND_NOT_EXECUTABLE"),
]


def short(value: object) -> str:
    return repr(value)[:40].encode("ascii", "backslashreplace").decode().replace("\\", "|")


@pytest.mark.parametrize(
    ("argv", "options", "kind", "code"), requests, ids=[f"{short(r[0])}{short(r[1])}" for r in requests]
)
def test_bad_request_is_refused_and_the_session_survives(
    session: Session, tmp_path: Path, argv: Any, options: dict[str, Any], kind: type[ProofboxError], code: str
) -> None:
    project = tmp_path / "project"
    (project / "file").write_text("text")
    (project / "directory").mkdir()
    (project / "out").symlink_to("/usr")
    (project / "loop").symlink_to("loop")
    for name, text in (("no-hash-bang", "echo hello\n"), ("empty", ""), ("no-interpreter", "#!/no/such/shell\n")):
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    for stdin in (None, b"x", b"x" * 1_000_000):
        with pytest.raises(kind) as caught:
            session.exec(argv, stdin=stdin, **options)
        check(caught.value, code)
    assert session.exec(["echo", "on"]).stdout == "on\n"


def test_bad_one_shot_request_leaves_no_box(boxes: Sandboxes) -> None:
    for argv in ([], ["no-such-program"], ["true", "\0"]):
        with pytest.raises(ProofboxError) as caught:
            boxes.exec(argv, provider="off")
        assert caught.value.fix_hints


@pytest.mark.parametrize("name", ["nonsense", "", "OFF", "../off", "off\0", "x" * 1_000_000])
def test_error_for_an_unknown_provider_lists_the_known_ones(boxes: Sandboxes, name: str) -> None:
    for call in (lambda: boxes.exec(["true"], provider=name), lambda: boxes.probe(name)):
        with pytest.raises(ProviderUnknown) as caught:
            call()
        check(caught.value, "SANDBOX_PROVIDER_UNKNOWN")
        assert "bubblewrap" in caught.value.fix_hints[-1]
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "project", ["missing", "file", "/", "/usr", "/proc", "a\0b", "\ud800", "loop", "~no-such-user-1"]
)
def test_invalid_projects_are_refused(tmp_path: Path, project: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    before = children()
    place = project if project.startswith(("/", "~")) else f"{tmp_path}/{project}"
    with Sandboxes(project_root=place) as boxes:
        for call in (lambda: boxes.exec(["true"], provider="off"), lambda: boxes.start_session(provider="off")):
            with pytest.raises(PathRefused) as caught:
                call()
            check(caught.value, "SANDBOX_PATH_REFUSED")
    assert children() <= before


policies: list[tuple[dict[str, Any], type[ProofboxError]]] = [
    ({"mounts": ["/usr"]}, PathRefused),
    ({"mounts": ["/nonexistent-1:/mnt/x"]}, PathRefused),
    ({"mounts": ["/usr:relative"]}, PathRefused),
    ({"mounts": ["/usr:/mnt/../etc"]}, PathRefused),
    ({"mounts": ["/usr:/"]}, PathRefused),
    ({"mounts": ["/usr:/proc/x"]}, PathRefused),
    ({"mounts": ["/:/mnt/x"]}, PathRefused),
    ({"mounts": [":"]}, PathRefused),
    ({"mounts": [""]}, PathRefused),
    ({"mounts": ["/usr:/mnt/x:wr"]}, PathRefused),
    ({"mounts": ["/usr:/mnt/x\0y"]}, PathRefused),
    ({"mounts": ["/us\0r:/mnt/x"]}, PathRefused),
    ({"mounts": ["/usr:/mnt/\ud800"]}, PathRefused),
    ({"mounts": "/usr:/mnt/x"}, RequestInvalid),
    ({"hidden": ".env"}, RequestInvalid),
    ({"frozen": ".env"}, RequestInvalid),
    ({"memory": 0}, RequestInvalid),
    ({"memory": -1}, RequestInvalid),
    ({"memory": 2**50}, RequestInvalid),
    ({"memory": 64.5}, RequestInvalid),
    ({"memory": "64"}, RequestInvalid),
    ({"cpus": 0}, RequestInvalid),
    ({"cpus": float("nan")}, RequestInvalid),
    ({"cpus": float("inf")}, RequestInvalid),
    ({"pids": 1}, RequestInvalid),
    ({"pids": 10.5}, RequestInvalid),
    ({"disk": 10}, RequestInvalid),
    ({"disk": 0, "access": "overlay"}, RequestInvalid),
    ({"network": "off"}, RequestInvalid),
    ({"network": ""}, RequestInvalid),
    ({"access": "readonly"}, RequestInvalid),
]


@pytest.mark.parametrize(("policy", "kind"), policies, ids=[short(policy) for policy, _ in policies])
@pytest.mark.parametrize("provider", ["off", pytest.param("bubblewrap", marks=pytest.mark.needs("bubblewrap"))])
def test_invalid_policies_are_refused(boxes: Sandboxes, provider: str, policy: Any, kind: type[ProofboxError]) -> None:
    with pytest.raises(kind) as caught:
        boxes.exec(["true"], provider=provider, **policy)
    assert caught.value.exit_code == 2
    check(caught.value, kind.code)


@pytest.mark.parametrize(
    "policy", [{"network": "none"}, {"access": "ro"}, {"access": "overlay"}, {"mounts": ["/usr:/mnt/usr"]}]
)
def test_unenforceable_policy_is_refused_by_name(boxes: Sandboxes, policy: Any) -> None:
    with pytest.raises(PolicyRefused) as caught:
        boxes.exec(["true"], provider="off", **policy)
    check(caught.value, "SANDBOX_POLICY_REFUSED")
    assert caught.value.exit_code == 3
    assert caught.value.details["refused"]


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), 1e12])
def test_invalid_ttl_is_refused(boxes: Sandboxes, ttl: float) -> None:
    with pytest.raises(RequestInvalid) as caught:
        boxes.start_session(provider="off", detached=True, ttl=ttl)
    check(caught.value, "SANDBOX_REQUEST_INVALID")
    assert not [info for info in boxes.list_sessions() if info.state == "running"]


def test_error_for_missing_bwrap_says_how_to_install_it(
    boxes: Sandboxes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProviderUnavailable) as caught:
        boxes.exec(["true"], provider="bubblewrap")
    check(caught.value, "SANDBOX_UNAVAILABLE")
    assert any("apt-get install bubblewrap" in hint for hint in caught.value.fix_hints)
    assert caught.value.details["diagnostics"]["bubblewrap"]["available"] is False


# ---- valid requests


def test_valid_options_take_effect(session: Session, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "sub").mkdir()
    assert session.exec(["pwd"], cwd="sub").stdout == f"{project}/sub\n"
    assert session.exec(["pwd"], cwd=project / "sub").stdout == f"{project}/sub\n"
    assert session.exec(["sh", "-c", "echo $A$B"], env={"A": "1", "B": "ü"}).stdout == "1ü\n"
    assert session.exec(["cat"], stdin="text ü").stdout == "text ü"
    assert session.exec(["sh", "-c", "ulimit -n"], limits={"open_files": 50}).stdout == "50\n"
    assert session.exec([b"printf", b"%s", b"\xff"]).stdout_bytes == b"\xff"
    result = session.exec(["seq", "100000"], max_output=100)
    assert result.truncated.stdout
    assert result.stdout.startswith("1\n2\n")
    assert result.stdout.endswith("99999\n100000\n")


def test_caller_environment_stays_outside(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    with Sandboxes(project_root=session.info.project) as boxes:
        names = {line.partition("=")[0] for line in boxes.exec(["env"], provider="off").stdout.splitlines()}
    assert names <= {"PATH", "HOME", "USER", "SHELL", "LANG", "TERM", "TMPDIR", "TZ"} | {
        n for n in names if n[:3] == "LC_"
    }
    assert "LC_ALL" in names


def test_env_options_from_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "from here")
    monkeypatch.delenv("NOT_HERE", raising=False)
    assert parse_env(["A=1", "B=", "C=x=y", "HERE"]) == {"A": "1", "B": "", "C": "x=y", "HERE": "from here"}
    with pytest.raises(RequestInvalid) as caught:
        parse_env(["NOT_HERE"])
    assert caught.value.fix_hints


text = st.one_of(st.text(max_size=30), st.binary(max_size=30))


@given(
    argv=st.lists(text, max_size=4),
    env=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    cwd=st.text(max_size=20),
    timeout=st.one_of(st.none(), st.floats()),
    grace=st.floats(),
    max_output=st.integers(-(2**70), 2**70),
    limits=st.dictionaries(st.sampled_from([*RLIMITS, "other"]), st.integers(-1, 2**65), max_size=3),
)
def test_any_request_is_encoded_or_refused(
    argv: list[str | bytes], env: dict[str, str], cwd: str, **options: Any
) -> None:
    try:
        request = make_request(argv, make_settings(cwd, **options), encode_env(env))
    except RequestInvalid as error:
        assert error.fix_hints  # noqa: PT017
    else:
        assert all(os.fsencode(word) in request.encoded for word in argv)
