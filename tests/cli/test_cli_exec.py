"""`proofbox exec`, `probe` and `session` on the command line: documents, exit codes, and errors for bad input."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proofbox.cli import main
from proofbox.cli.commands.run.exec import MAX_DENIED, DeniedHosts
from proofbox.sandbox.contract import Event

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "plain.txt").write_text("no program")
    return tmp_path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], project: Path) -> Run:
    """Return a function that runs a command line in-process and returns exit code, document (or text) and stderr."""

    def call(*words: str, provider: str = "off") -> tuple[int, Any, str]:
        words = tuple(word.replace("PROJECT", str(project)) for word in words)
        if words[0] == "exec":
            defaults = {"--project": str(project), "--provider": provider}
            words = ("exec", *(w for name in defaults if name not in words for w in (name, defaults[name])), *words[1:])
        code = main(words)
        out, err = capfdbinary.readouterr()
        text = out.decode("utf-8", "replace")
        return code, json.loads(text) if "--json" in words else text, err.decode("utf-8", "replace")

    return call


def proofbox(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "proofbox", *words], capture_output=True, timeout=60, **options)


FETCH = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        urllib.request.urlopen(url, timeout=60)
    except OSError:
        pass
"""


@pytest.mark.needs("bubblewrap")
def test_denied_hosts_are_reported_after_the_command(run: Run) -> None:
    urls = ["http://one.example/", "http://two.example:8080/a", "http://one.example/again", "http://127.0.0.2/"]
    words = ("exec", "--network", "allow:example.org")
    command = ("--", "python3", "-c", FETCH, *urls)
    code, document, err = run(*words, "--json", *command, provider="bubblewrap")
    assert (code, err) == (0, "")
    assert document["denied_hosts"] == [
        {"host": "one.example", "port": 80, "count": 2, "reason": "not on the allowlist"},
        {"host": "two.example", "port": 8080, "count": 1, "reason": "not on the allowlist"},
        {"host": "127.0.0.2", "port": 80, "count": 1, "reason": "not on the allowlist"},
    ]
    code, out, err = run(*words, *command, provider="bubblewrap")
    assert (code, out) == (0, "")
    assert err.splitlines() == [
        "proofbox: denied one.example:80 (not on the allowlist, 2 times)",
        "proofbox: denied two.example:8080 (not on the allowlist)",
        "proofbox: denied 127.0.0.2:80 (not on the allowlist)",
        "proofbox: to allow a host, add it to --network allow:HOST[:PORT],…",
    ]


def test_denied_hosts_are_escaped_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    denied = DeniedHosts()
    for number in range(MAX_DENIED + 5):
        denied(Event("network", "denied", "ses", {"host": f"\x1b[31m{number}", "port": 1, "rule": None}))
    denied(Event("network", "allowed", "ses", {"host": "fine", "port": 1, "rule": "fine"}))
    denied.print_to_stderr()
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "fine" not in err
    assert "proofbox: … and 5 more requests to other hosts\n" in err
    assert len(denied.facts()) == MAX_DENIED


def test_exec_document_has_all_members(run: Run) -> None:
    code, document, err = run("exec", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert code == 7
    assert err == ""
    assert document["schema"] == "proofbox.exec/1"
    assert document["ok"] is True
    assert (document["stdout"], document["stderr"], document["exit_code"]) == ("out\n", "err\n", 7)
    assert (document["provider"], document["isolation"], document["timed_out"]) == ("off", "none", False)
    assert document["signal"] is None
    assert document["truncated"] == {"stdout": False, "stderr": False}
    assert set(document["usage"]) == {"cpu_ms", "max_rss_kb", "oom_killed"}
    assert set(document["diagnostics"]["off"]) == {"available", "reason", "fix_hints", "isolation"}
    assert document["duration_ms"] > 0


def test_output_that_is_not_utf8_is_also_base64_encoded(run: Run) -> None:
    _, document, _ = run("exec", "--json", "--", "printf", r"\377\000x")
    assert base64.b64decode(document["stdout_b64"]) == b"\xff\x00x"
    assert document["stderr_b64"] is None


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--", "true"), 0),
        (("--", "false"), 1),
        (("--shell", "exit 200"), 200),
        (("--shell", "kill -9 $$"), 137),
        (("--timeout", "0.2", "--", "sleep", "60"), 124),
        (("--", "no-such-command"), 127),
        (("--", "PROJECT/plain.txt"), 126),
        (("--", "PROJECT/sub"), 126),
        (("--cwd", "nowhere", "--", "true"), 125),
        (("--nonsense", "--", "true"), 125),
        ((), 125),
    ],
)
def test_exit_codes(run: Run, words: tuple[str, ...], code: int) -> None:
    assert run("exec", *words)[0] == code
    assert run("exec", "--json", *words)[0] == code


BAD_INPUT: list[tuple[tuple[str, ...], str]] = [
    (("exec", "--provider", "nonsense", "--json", "--", "true"), "SANDBOX_PROVIDER_UNKNOWN"),
    (("exec", "--provider", "apple-vm", "--json", "--", "true"), "SANDBOX_UNAVAILABLE"),
    (("exec", "--provider", "macos", "--json", "--", "true"), "SANDBOX_UNAVAILABLE"),
    (("exec", "--project", "/no/such/place", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--project", "/", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--project", "PROJECT/plain.txt", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--cwd", "..", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--cwd", "/etc", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--cwd", "out", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--cwd", "a\0b", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--mount", "nonsense", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--mount", "/no/such:/mnt/x", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--mount", "/tmp:/proc/x", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--mount", "/tmp:/mnt/../etc", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--mount", "/:/mnt/x", "--json", "--", "true"), "SANDBOX_PATH_REFUSED"),
    (("exec", "--network", "none", "--json", "--", "true"), "SANDBOX_POLICY_REFUSED"),
    (("exec", "--access", "overlay", "--json", "--", "true"), "SANDBOX_POLICY_REFUSED"),
    (("exec", "--disk", "10", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--memory", "0", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--timeout", "-1", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--timeout", "nan", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--max-output", "0", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--env", "=x", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--env", "NOT_SET_ANYWHERE_1", "--json", "--", "true"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--json", "--", "echo", "a\0b"), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--json", "--", "echo", "x" * 10_000_000), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--json", "--", "echo", "x" * 200_000), "SANDBOX_REQUEST_INVALID"),
    (("exec", "--json", "--", ""), "SANDBOX_COMMAND_NOT_FOUND"),
    (("exec", "--stdin", "/no/such/file", "--json", "--", "cat"), "PROOFBOX_NOT_FOUND"),
    (("exec", "--shell", "true", "--json", "--", "true"), "PROOFBOX_USAGE"),
    (("exec", "--timeout", "soon", "--json", "--", "true"), "PROOFBOX_USAGE"),
    (("session", "exec", "ses-nonsense", "--json", "--", "true"), "SANDBOX_SESSION_UNKNOWN"),
    (("session", "show", "../../etc", "--json"), "SANDBOX_SESSION_UNKNOWN"),
    (("session", "stop", "x" * 100_000, "--json"), "SANDBOX_SESSION_UNKNOWN"),
    (("session", "start", "--ttl", "0", "--json"), "PROOFBOX_USAGE"),
    (("session", "nonsense", "--json"), "PROOFBOX_USAGE"),
    (("nonsense", "--json"), "PROOFBOX_USAGE"),
    (("probe", "--provider", "nonsense", "--json"), "SANDBOX_PROVIDER_UNKNOWN"),
]


@pytest.mark.parametrize(("words", "code"), BAD_INPUT, ids=lambda value: str(value)[:60])
def test_bad_input_gets_a_typed_error_with_a_hint(run: Run, words: tuple[str, ...], code: str) -> None:
    exit_code, document, err = run(*words)
    assert document["schema"] == "proofbox.error/1"
    assert document["ok"] is False
    assert document["error"]["code"] == code
    assert len(document["error"]["message"]) < 2000
    assert document["error"]["fix_hints"] or code in ("SANDBOX_PATH_REFUSED", "SANDBOX_REQUEST_INVALID")
    assert err == ""
    assert exit_code in (2, 3, 125, 126, 127)
    plain_code, _, plain_err = run(*(word for word in words if word != "--json"))
    assert plain_code == exit_code
    assert code in plain_err
    assert "Traceback" not in plain_err


def test_a_missing_bwrap_is_explained(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    code, document, _ = run("exec", "--json", "--", "true", provider="auto")
    assert code == 125
    assert document["error"]["code"] == "SANDBOX_UNAVAILABLE"
    assert "apt-get install bubblewrap" in " ".join(document["error"]["fix_hints"])
    assert document["error"]["diagnostics"]["bubblewrap"]["available"] is False
    assert run("probe", "--json")[0] == 3


@pytest.mark.needs("bubblewrap")
def test_forbidden_namespaces_are_explained_with_the_fix(run: Run) -> None:
    assert run("probe", "--provider", "bubblewrap", "--json")[0] == 0  # it works on this machine
    forbidden = ["prlimit", "--nofile=256", "unshare", "--user", "--map-root-user", "sh", "-c"]
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    words = [sys.executable, "-m", "proofbox", "probe", "--provider", "bubblewrap", "--json"]
    done = subprocess.run([*forbidden, script, "sh", *words], capture_output=True, timeout=60, env=dict(os.environ))
    if not done.stdout:
        pytest.skip(f"this machine cannot create user namespaces: {done.stderr!r}")
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 3
    assert error["code"] == "SANDBOX_UNAVAILABLE"
    assert any("max_user_namespaces" in hint for hint in error["fix_hints"]), error


@pytest.mark.needs("bubblewrap")
def test_auto_runs_in_a_box_and_reports_the_provider(run: Run) -> None:
    code, document, _ = run("exec", "--json", "--", "sh", "-c", "echo $$ > pid; cat /etc/hostname", provider="auto")
    assert document["provider"] == "bubblewrap"
    assert document["isolation"] == "namespace"
    assert document["policy"]["network"] == "none"
    assert document["diagnostics"]["apple-vm"]["available"] is False
    assert code == 1  # a box has no /etc/hostname


@pytest.mark.needs("bubblewrap")
def test_command_missing_in_the_box_gets_a_hint(
    run: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "bin"
    elsewhere.mkdir()
    (elsewhere / "my-tool").write_text("#!/bin/sh\n")
    (elsewhere / "my-tool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    code, document, _ = run("exec", "--json", "--", "my-tool", provider="bubblewrap")
    assert code == 127
    assert f"--mount {elsewhere.parent}:{elsewhere.parent}:ro" in document["error"]["fix_hints"][0]


def test_stdin_from_a_file_and_from_the_caller(run: Run, project: Path) -> None:
    (project / "in.txt").write_text("from a file")
    assert run("exec", "--stdin", str(project / "in.txt"), "--", "cat")[1] == "from a file"
    done = proofbox("exec", "--provider", "off", "--stdin", "-", "--", "cat", input=b"from ours", cwd=project)
    assert done.stdout == b"from ours"


def test_closed_stdin_is_an_error_only_with_stdin_flag(project: Path) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "proofbox", "exec", "--provider", "off", *words]
        return subprocess.run(
            ["sh", "-c", 'exec "$@" <&-', "sh", *command], capture_output=True, timeout=60, cwd=project
        )

    assert call("--", "echo", "fine").stdout == b"fine\n"
    done = call("--stdin", "-", "--", "cat")
    assert done.returncode == 125
    assert b"stdin is closed" in done.stderr
    assert b"Traceback" not in done.stderr


def test_broken_pipe_ends_the_command(project: Path) -> None:
    command = f"{sys.executable} -m proofbox exec --provider off -- yes | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, cwd=project)
    assert done.stdout == b"y\n"
    assert done.stderr == b""


def test_third_ctrl_c_kills_a_command_that_ignores_it(project: Path) -> None:
    script = "echo up; trap '' INT; while :; do sleep 0.05; done"
    words = [sys.executable, "-m", "proofbox", "exec", "--provider", "off", "--shell", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=project) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        for _ in range(3):
            process.send_signal(2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
        assert process.wait(timeout=60) == 130


def test_control_sequences_are_escaped_for_a_terminal(project: Path) -> None:
    shown = _on_a_terminal(project, "--", "printf", r"\033]0;title\007\033[31mred\033[0m ok\n")
    assert b"\x1b" not in shown
    assert b"\x07" not in shown
    assert b"red" in shown
    raw = _on_a_terminal(project, "--raw", "--", "printf", r"\033[31mred\n")
    assert b"\x1b[31mred" in raw


def _on_a_terminal(project: Path, *words: str) -> bytes:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "proofbox", "exec", "--provider", "off", *words]
    try:
        with subprocess.Popen(command, stdout=slave, stderr=slave, cwd=project) as process:
            shown = b""
            while process.poll() is None or select.select([master], [], [], 0)[0]:
                if select.select([master], [], [], 0.05)[0]:
                    shown += os.read(master, 65536)
        return shown
    finally:
        os.close(slave)
        os.close(master)


def test_values_never_need_to_be_in_argv(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2hunter2")
    assert run("exec", "--env", "MY_TOKEN", "--shell", "printf %s $MY_TOKEN")[1] == "hunter2hunter2"
    assert run("exec", "--shell", "printf %s $MY_TOKEN")[1] == ""


def test_a_session_lives_between_processes(project: Path) -> None:
    def call(*words: str) -> Any:
        done = proofbox("session", *words, cwd=project)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    session = call("start", "--provider", "off", "--json")["session"]
    assert {"id", "provider", "state", "created_at"} <= set(session)
    assert session["state"] == "running"
    name = session["id"]
    assert call("exec", name, "--json", "--shell", "echo hi > made; echo $PWD")["stdout"].strip() == str(project)
    assert (project / "made").read_text() == "hi\n"
    assert [each["state"] for each in call("list", "--json")["sessions"] if each["id"] == name] == ["running"]
    assert call("show", name, "--json")["session"]["project"] == str(project)
    assert call("stop", name, "--json")["session"]["state"] == "stopped"
    assert call("stop", name, "--json")["session"]["state"] == "stopped"
    done = proofbox("session", "exec", name, "--json", "--", "true")
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"] == "SANDBOX_LOST"
    assert name in call("prune", "--json")["removed"]
    assert proofbox("session", "show", name).returncode == 2


@pytest.mark.parametrize(
    "words", ["--help", "probe", "completion bash", "session list --json", "exec --provider off -- echo x"]
)
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_unwritable_stdout_prints_no_stack_trace(project: Path, words: str, redirection: str) -> None:
    command = f"{sys.executable} -m proofbox {words} {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, cwd=project)
    assert "Traceback" not in done.stderr
    if redirection == ">/dev/full":
        assert done.returncode in (3, 125)
        assert "No space left" in done.stderr
