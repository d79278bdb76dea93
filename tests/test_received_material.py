"""Commands on material from a stranger run nothing of it outside a box, and read nothing outside its directory.

Each directory is full of traps: links to a secret, pipes, devices, git hooks and filters, programs for PATH, Python
modules, unusual names. After each command, no planted program has run, and the secret is neither in the output nor in
any file that the command wrote.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import socket
import sqlite3
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from capabilities import ROOT
from forging import rebuild
from harbor_tasks import task
from suites import HEAD, command, mission, say

from proofbox.cli import main
from proofbox.core.canonical import canonical_bytes
from proofbox.errors import error_classes
from proofbox.evidence.bundle.paths import INDEX, read_latest

SECRET = "canary-" + secrets.token_hex(16)
HEX = SECRET[:32].encode().hex().encode()
PROGRAMS = ("bwrap", "codex", "docker", "git", "podman", "proofbox", "python3", "rg", "runsc", "sh", "tar")
HOOKS = ("post-checkout", "post-commit", "pre-commit", "pre-receive", "reference-transaction", "update")
KNOWN = frozenset(each.code for each in error_classes()) - {"PROOFBOX_INTERNAL"}
BOX = ("--provider", "bubblewrap")

pytestmark = [pytest.mark.timeout(40), pytest.mark.xdist_group("received")]


class Stranger:
    """A directory that someone sent, as the current directory, and the user's secret outside it."""

    def __init__(self, top: Path, capture: pytest.CaptureFixture[bytes]) -> None:
        self.top = top
        self.secret = top / "private/secret.txt"
        self.secret.parent.mkdir()
        self.secret.write_text(f"{SECRET}\n")
        self.place = top / "theirs"
        self.place.mkdir()
        self.out = top / "out"
        self._log = top / "ran"
        self._capture = capture

    def program(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\necho "$0 $*" >> {self._log}\n')
        path.chmod(0o755)

    def plant(self, place: Path) -> None:
        """Put every trap into a directory."""
        for name in PROGRAMS:
            self.program(place / name)
            self.program(place / "bin" / name)
        for name in ("conftest", "sitecustomize", "usercustomize", "proofbox", "msgspec", "anyio"):
            (place / f"{name}.py").write_text(f"import os\nos.system('echo {name} >> {self._log}')\n")
        git, run = place / ".git", f"sh -c 'echo git >> {self._log}'"
        for name in HOOKS:
            self.program(git / "hooks" / name)
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "config").write_text(
            f'[core]\n\tfsmonitor = "{run}"\n\tpager = "{run}"\n\tsshCommand = "{run}"\n\thooksPath = hooks\n'
            f'[filter "x"]\n\tclean = "{run}"\n\tsmudge = "{run}"\n\tprocess = "{run}"\n'
            f'[diff]\n\texternal = "{run}"\n[diff "x"]\n\ttextconv = "{run}"\n[merge "x"]\n\tdriver = "{run}"\n'
        )
        (place / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
        (place / "link").symlink_to(self.secret)
        (place / "up").symlink_to(os.path.relpath(self.secret, place))
        (place / "folder").symlink_to(self.secret.parent)
        (place / "loop").symlink_to("loop")
        os.mkfifo(place / "pipe")
        os.mkfifo(place / ".env")
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.open(place, os.O_PATH)  # the path of a socket may have 107 bytes
            listener.bind(f"/proc/self/fd/{here}/socket")
            os.close(here)
        if os.geteuid() == 0:
            os.mknod(place / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
        (place / ("n" * 255)).touch()
        (place / os.fsdecode(b"latin-\xe9")).touch()
        (place / "Case").touch()
        (place / "case").touch()

    def run(self, *words: str, codes: Sequence[int] = (0,)) -> bytes:
        """Run a command, and check that no trap was sprung."""
        code = main(words)
        out, err = self._capture.readouterr()
        assert self.programs_run() == "", words
        assert SECRET.encode() not in out + err, (words, out, err)
        assert b"Traceback" not in err, (words, err)
        assert b"PROOFBOX_INTERNAL" not in out + err, (words, out, err)
        assert code in codes, (words, code, out, err)
        assert self.copies() == [], words
        return out

    def refused(self, *words: str) -> str:
        """Run a command that fails, and return its error code."""
        out = self.run(*words, "--json", codes=(1, 2, 3, 4))
        code: str = json.loads(out)["error"]["code"]
        assert code in KNOWN
        return code

    def programs_run(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def copies(self) -> list[str]:
        """Return the files other than the secret that contain it."""
        found = []
        for folder, _, names in os.walk(self.top):
            for path in (Path(folder, name) for name in names):
                if path != self.secret and stat.S_ISREG(path.lstat().st_mode) and SECRET.encode() in path.read_bytes():
                    found.append(str(path))
        return found


@pytest.fixture
def stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Stranger]:
    made = Stranger(tmp_path, capfdbinary)
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "home" / name.lower()))
    monkeypatch.setenv("PATH", f".:bin:{os.environ['PATH']}")
    monkeypatch.chdir(made.place)
    yield made
    subprocess.run(["chmod", "-R", "u+rwX", tmp_path], check=True)


def test_trap_that_springs_is_noticed(stranger: Stranger) -> None:
    stranger.plant(stranger.place)
    subprocess.run(["./git"], check=True)
    assert "./git" in stranger.programs_run()
    (stranger.top / "copy").write_bytes(Path("link").read_bytes())
    assert stranger.copies() == [str(stranger.top / "copy")]


# A project, as the current directory


@pytest.mark.needs("bubblewrap")
def test_project(stranger: Stranger) -> None:
    stranger.plant(stranger.place)
    stranger.run("probe", *BOX)
    stranger.run("exec", *BOX, "--", "cat", "case")
    stranger.run("exec", *BOX, "--", "cat", "link", codes=(1,))
    stranger.run("runtime", "list", "--json")
    stranger.run("images", "list", "--json")
    stranger.run("init")


@pytest.mark.parametrize(
    "settings",
    [
        'provider = "off"\n',
        'network = "full"\n',
        'mounts = ["/:/host"]\n',
        'env = ["HOME"]\n',
        'image = "theirs"\n',
        'provision = "pwn.sh"\n',
        'strategies = ["process"]\n[runtimes.process]\ncommand = ["./sh"]\n',
        '[runtimes.codex_app_server]\nbinary = "{place}/codex"\n',
    ],
)
def test_settings_of_a_project_apply_only_with_trust(stranger: Stranger, settings: str) -> None:
    stranger.plant(stranger.place)
    stranger.program(stranger.place / "pwn.sh")
    (stranger.place / ".proofbox").mkdir()
    Path(".proofbox/config.toml").write_text(settings.replace("{place}", str(stranger.place)))
    assert stranger.run("exec", "--json", "--", "true", codes=(125,)).count(b"POLICY_REFUSED") == 1
    for words in (("runtime", "list"), ("runtime", "try", "--prompt", "go"), ("session", "start")):
        assert stranger.refused(*words) == "SANDBOX_POLICY_REFUSED"


@pytest.mark.parametrize("name", ["config.toml", "images.lock", "pwn.sh", ".env"])
@pytest.mark.parametrize("way", ["absolute", "relative", "through a folder"])
def test_files_of_a_project_are_not_read_through_links_out_of_it(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    monkeypatch.setenv("INTERNAL_API_KEY", secrets.token_hex(16))
    folder = stranger.place / ".proofbox"
    folder.mkdir()
    stranger.secret.write_text(f"{SECRET} = 1\nMOZAIKS_BACKEND_URL={SECRET}\n")
    if name == "pwn.sh":
        (folder / "config.toml").write_text('provision = ".proofbox/pwn.sh"\n')
    path = stranger.place / name if name == ".env" else folder / name
    if way == "through a folder":
        (stranger.place / "elsewhere").symlink_to(stranger.secret.parent)
        path.symlink_to(os.path.relpath(stranger.place / "elsewhere/secret.txt", path.parent))
    else:
        path.symlink_to(stranger.secret if way == "absolute" else os.path.relpath(stranger.secret, path.parent))
    if name == ".env":
        words = ["deliver", "plan", "--app-id", "a", "--source", "."]
    elif name == "images.lock":
        url, digest = "http://127.0.0.1:9/x.tar", "0" * 64
        (stranger.top / "images.toml").write_text(
            f'schema_version = "proofbox.images/1"\n[[image]]\nname = "x"\narch = "x86_64"\nurl = "{url}"\n'
            f'sha256 = "{digest}"\n'
        )
        words = ["images", "pull", "x", "--arch", "x86_64", "--catalogue", str(stranger.top / "images.toml")]
    else:
        words = ["session", "start"]
    out = stranger.run(*words, "--json", codes=(2, 3))
    assert b"leads out of" in out


def test_link_inside_a_project_is_followed(stranger: Stranger) -> None:
    (stranger.place / ".proofbox").mkdir()
    Path("shared.toml").write_text('no_such_setting = "x"\n')
    Path(".proofbox/config.toml").symlink_to("../shared.toml")
    assert b"no_such_setting" in stranger.run("session", "start", "--json", codes=(2,))


# Agents on PATH


@pytest.mark.parametrize("where", ["current directory", "linked", "workspace"])
def test_agent_program_in_received_material_is_not_run(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stranger.program(stranger.place / "bin/codex")
    (stranger.top / "links").mkdir()
    (stranger.top / "links/codex").symlink_to(stranger.place / "bin/codex")
    on_path = stranger.top / "links" if where == "linked" else stranger.place / "bin"
    monkeypatch.setenv("PATH", f"{on_path}:{os.environ['PATH']}")
    if where == "workspace":
        monkeypatch.chdir(stranger.top)
    words = ("--strategies", "codex_app_server", "--workspace", str(stranger.place), "--prompt", "go")
    assert stranger.refused("runtime", "try", *words) == "RUNTIME_STRATEGY_UNAVAILABLE"
    stranger.run("runtime", "list", "--json")
    (stranger.place / "suite.toml").write_text(HEAD + 'strategies = ["codex_app_server"]\n' + mission("a"))
    if where != "workspace":
        assert stranger.refused("suite", "run", str(stranger.place / "suite.toml")) == "RUNTIME_STRATEGY_UNAVAILABLE"


def test_named_agent_program_is_run(stranger: Stranger) -> None:
    """Naming the program in one's own settings is the consent to run it."""
    program = stranger.place / "codex"
    stranger.program(program)
    config = stranger.top / "home/config/proofbox"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'[runtimes.codex_app_server]\nbinary = "{program}"\n')
    main(["runtime", "list"])
    assert "codex --version" in stranger.programs_run()


# Suites and tasks


@pytest.mark.needs("bubblewrap")
def test_suite(stranger: Stranger) -> None:
    stranger.plant(stranger.place)
    (stranger.place / "app").mkdir()
    stranger.plant(stranger.place / "app")
    script = (command("cat link up folder/secret.txt; sh -c 'echo inside'; true"), say("done"))
    Path("suite.toml").write_text(HEAD + mission("a", *script, workspace="app", verify={"commands": ["true"]}))
    stranger.run("suite", "lint", "suite.toml", "--json")
    stranger.run("suite", "run", "suite.toml", "--out", str(stranger.out), *BOX)
    stranger.run("suite", "resume", str(stranger.out))


PLAN = """
[plan]
id = "theirs"
[[profile]]
id = "only"
SETTING
[[probe]]
id = "read"
operation = "file-read"
args = ["SECRET"]
expect = "deny"
reason = "test"
[[probe]]
id = "environment"
operation = "env-read"
args = ["CANARY"]
expect = "deny"
reason = "test"
"""


@pytest.mark.needs("bubblewrap")
def test_plan(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probes run without a box too, and what they read there is not written down."""
    stranger.plant(stranger.place)
    monkeypatch.setenv("CANARY", SECRET)
    Path("plan.toml").write_text(PLAN.replace("SECRET", str(stranger.secret)).replace("SETTING", ""))
    stranger.run("plan", "lint", "plan.toml", "--json")
    run = ("plan", "run", "plan.toml", "--out", str(stranger.out))
    stranger.run(*run, *BOX, "--channel", "direct")
    stranger.run(*run, *BOX)
    assert not [each for each in stranger.out.rglob("*") if each.is_file() and HEX in each.read_bytes()]


@pytest.mark.parametrize("setting", ['provider = "off"', 'network = "full"', 'image = "theirs"'])
def test_plan_that_asks_for_more_needs_consent(stranger: Stranger, setting: str) -> None:
    stranger.plant(stranger.place)
    Path("plan.toml").write_text(PLAN.replace("SECRET", "{secret}").replace("SETTING", setting))
    assert stranger.refused("plan", "run", "plan.toml", "--out", str(stranger.out)) == "SANDBOX_CONSENT_REQUIRED"
    assert not stranger.out.exists()


@pytest.mark.parametrize("odd", ["pipe", "socket", "loop", "folder"])
def test_odd_file_as_a_plan_is_refused_without_being_opened(stranger: Stranger, odd: str) -> None:
    stranger.plant(stranger.place)
    assert stranger.refused("plan", "lint", odd) in ("PLAN_INVALID", "PLAN_UNKNOWN")


@pytest.mark.parametrize(
    "fields",
    [
        {"workspace": "folder"},
        {"workspace": "{secret}"},
        {"workspace": "../private"},
        {"prompt_file": "link"},
        {"files": {"x": "folder/secret.txt"}},
        {"files": {"x": "../private/secret.txt"}},
        {"solution": "link"},
        {"capabilities": "link"},
        {"verify": {"commands": ["true"], "files": "folder"}},
        {"verify": {"commands": ["true"], "mounts": {"/x": "link"}}},
    ],
)
def test_files_of_a_suite_outside_it_need_consent(stranger: Stranger, fields: dict[str, object]) -> None:
    stranger.plant(stranger.place)
    text = HEAD + mission("a", say("done"), **json.loads(json.dumps(fields).replace("{secret}", str(stranger.secret))))
    Path("suite.toml").write_text(text.replace('prompt = "do it"\n', "") if "prompt_file" in fields else text)
    stranger.run("suite", "lint", "suite.toml", "--json")
    run = ("suite", "run", "suite.toml", "--out", str(stranger.out), *BOX)
    assert stranger.refused(*run) == "SANDBOX_CONSENT_REQUIRED"
    assert not stranger.out.exists()


@pytest.mark.parametrize("field", ["workspace", "prompt_file", "capabilities", "solution"])
@pytest.mark.parametrize("odd", ["pipe", "socket", "loop", "zero"])
def test_odd_files_of_a_suite_are_refused_without_being_opened(stranger: Stranger, field: str, odd: str) -> None:
    stranger.plant(stranger.place)
    text = HEAD + mission("a", say("done"), **{field: odd})
    Path("suite.toml").write_text(text.replace('prompt = "do it"\n', "") if field == "prompt_file" else text)
    assert stranger.refused("suite", "lint", "suite.toml") == "SUITE_INVALID"


@pytest.mark.needs("bubblewrap")
def test_output_directory_whose_name_is_not_utf8(stranger: Stranger) -> None:
    Path("suite.toml").write_text(HEAD + mission("a", say("done")))
    out = stranger.top / os.fsdecode(b"out-\xe9")
    assert stranger.refused("suite", "run", "suite.toml", "--out", str(out), *BOX) == "PROOFBOX_USAGE"
    assert not out.exists()


def test_harbor_task(stranger: Stranger) -> None:
    root = task(stranger.place / "tasks/one")
    stranger.plant(root)
    stranger.run("suite", "lint", "tasks", "--json", codes=(0, 2, 3))


@pytest.mark.parametrize(
    "name", ["instruction.md", "task.toml", "tests/test.sh", "solution/solve.sh", "environment/Dockerfile", "tests"]
)
@pytest.mark.parametrize("trap", ["link", "pipe"])
def test_files_of_a_harbor_task_are_not_read_through_links_out_of_it(stranger: Stranger, name: str, trap: str) -> None:
    path = task(stranger.place / "tasks/one") / name
    if path.is_dir():
        shutil.rmtree(path)
        path.symlink_to(stranger.secret.parent) if trap == "link" else os.mkfifo(path)
    else:
        path.unlink()
        path.symlink_to(stranger.secret) if trap == "link" else os.mkfifo(path)
    stranger.refused("suite", "lint", "tasks")
    stranger.refused("suite", "run", "tasks", "--out", str(stranger.out), *BOX)
    assert not stranger.out.exists()


# Workspaces


@pytest.mark.needs("bubblewrap")
def test_workspace(stranger: Stranger) -> None:
    stranger.plant(stranger.place)
    stranger.run("workspace", "init", ".")
    Path("case").write_text("changed\n")
    stranger.run("workspace", "status", ".", "--json")
    stranger.run("workspace", "snapshot", ".", "--json")
    stranger.run("workspace", "diff", ".", "--json")
    stranger.run("workspace", "log", ".", "--json")
    stranger.run("workspace", "tools", ".", "--json")
    for tool, arguments in (
        ("read_file", {"path": "link"}),
        ("read_file", {"path": "up"}),
        ("read_file", {"path": "folder/secret.txt"}),
        ("read_file", {"path": "../private/secret.txt"}),
        ("read_file", {"path": "pipe"}),
        ("read_file", {"path": "zero"}),
        ("list_files", {"path": "folder"}),
        ("search_text", {"pattern": "canary-"}),
        ("write_file", {"path": "folder/new", "content": "x"}),
    ):
        stranger.run("workspace", "call", ".", tool, "--args", json.dumps(arguments), "--json", codes=(0, 1, 2, 3))
    assert os.listdir(stranger.secret.parent) == ["secret.txt"]
    stranger.run("workspace", "effects", ".", "--json")
    stranger.run("workspace", "fork", ".", "HEAD", str(stranger.top / "fork"), "--json")
    stranger.run("workspace", "verify", ".", "--json")
    stranger.run("workspace", "rollback", ".", "1", "--json", codes=(0, 2, 3))
    assert stranger.secret.read_text() == f"{SECRET}\n"


# Evidence


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output directory of a run with one attempt."""
    place = tmp_path_factory.mktemp("run")
    (place / "suite.toml").write_text(HEAD + mission("a", say("done"), verify={"commands": ["true"]}))
    assert main(["suite", "run", str(place / "suite.toml"), "--out", str(place / "out"), *BOX]) == 0
    return place / "out"


@pytest.fixture
def bundle(stranger: Stranger, output: Path) -> Path:
    """A copy of the run in `theirs/out`."""
    shutil.copytree(output, "out")
    return stranger.place / "out" / str(read_latest("out"))


READERS: tuple[tuple[str, ...], ...] = (
    ("verify", "out"),
    ("bundle", "list", "out"),
    ("bundle", "show", "out"),
    ("bundle", "verify", "out"),
    ("bundle", "reindex", "out", "--strict"),
    ("validate", "out"),
    ("report", "out"),
    ("suite", "report", "out"),
    ("attempt", "list", "out"),
    ("attempt", "show", "a.1", "--run", "out"),
    ("attempt", "explain", "a.1", "--run", "out"),
    ("promotion", "emit", "out", "--output", "packet.json"),
    ("gc", "out", "--dry-run"),
)


def read_everything(stranger: Stranger) -> None:
    before = sorted(os.listdir(stranger.place / "out"))
    for words in READERS:
        stranger.run(*words, "--json", codes=(0, 1, 2, 3, 4))
        assert sorted(os.listdir(stranger.place / "out")) == before, words
    stranger.run("bundle", "push", "out", str(stranger.top / "store"), "--json", codes=(0, 1, 2, 3, 4))


@pytest.mark.needs("bubblewrap")
def test_bundle_with_traps(stranger: Stranger, bundle: Path) -> None:
    for place in (stranger.place, stranger.place / "out", bundle, bundle / "attempts/a.1.e1"):
        stranger.plant(place)
    read_everything(stranger)
    argv = [sys.executable, "-I", str(ROOT / "src/proofbox/evidence/verify"), str(bundle)]
    audit = subprocess.run(argv, capture_output=True, timeout=60)
    assert audit.returncode == 1
    assert SECRET.encode() not in audit.stdout + audit.stderr
    assert stranger.programs_run() == ""


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("trap", ["link", "pipe"])
def test_bundle_whose_files_lead_outside(stranger: Stranger, bundle: Path, trap: str) -> None:
    """Each file in turn is a link to a copy with the right content, so that only the link itself can be detected."""
    outside = stranger.top / "private/copy"
    shutil.copytree(bundle, outside)
    ledger = bundle.with_name(f"{bundle.name}.ledger")
    paths = [path for path in sorted(bundle.rglob("*")) if path.is_file()]
    assert len(paths) > 10
    for path in paths:
        kept = path.read_bytes()
        path.unlink()
        path.symlink_to(outside / path.relative_to(bundle)) if trap == "link" else os.mkfifo(path)
        assert main(["verify", str(bundle)]) != 0, path
        path.unlink()
        path.write_bytes(kept)
    stranger.run("verify", str(bundle))
    for path in (bundle / INDEX, bundle / "attempts/a.1.e1" / INDEX, ledger, Path("out/LATEST")):
        kept = path.read_bytes()
        path.unlink()
        path.symlink_to(stranger.secret) if trap == "link" else os.mkfifo(path)
        read_everything(stranger)
        path.unlink()
        path.write_bytes(kept)


@pytest.mark.needs("bubblewrap")
def test_latest_that_leads_outside(stranger: Stranger, bundle: Path) -> None:
    other = stranger.top / "private/run"
    shutil.move(bundle, other)
    for name in (str(other), "../../private/run", "../theirs", ".", ""):
        Path("out/LATEST").write_text(f"{name}\n")
        stranger.refused("verify", "out")


@pytest.mark.needs("bubblewrap")
def test_packet(stranger: Stranger, bundle: Path) -> None:
    stranger.run("promotion", "emit", "out", "--output", "packet.json", codes=(0, 1))
    packet = json.loads(Path("packet.json").read_bytes())
    shutil.copytree(bundle, stranger.top / "private/run")
    for path in ("../private/run", str(stranger.top / "private/run"), "folder/run", "/"):
        packet["bundle"]["path"] = path
        Path("packet.json").write_text(json.dumps(packet))
        (stranger.place / "folder").unlink(missing_ok=True)
        (stranger.place / "folder").symlink_to(stranger.secret.parent)
        for words in (("verify", "packet.json"), ("promotion", "verify", "packet.json")):
            out = json.loads(stranger.run(*words, "--json", codes=(1, 2, 3)))
            assert not out["ok"]


@pytest.mark.needs("bubblewrap")
def test_store(stranger: Stranger, bundle: Path) -> None:
    stranger.run("bundle", "push", "out", "store", codes=(0,))
    files = [path for path in sorted(Path("store").rglob("*")) if path.is_file()]
    for number, path in enumerate(files):
        kept = path.read_bytes()
        path.unlink()
        path.symlink_to(stranger.secret) if number % 2 else os.mkfifo(path)
        into = stranger.top / f"pulled-{number}"
        stranger.run("bundle", "pull", "store", str(into), "--json", codes=(0, 1, 2, 3, 4))
        path.unlink()
        path.write_bytes(kept)
    assert files


# Ledgers


def spoilt_ledger(path: Path, kind: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        if kind == "view":
            db.execute("ALTER TABLE about RENAME TO other")
            db.execute(
                "CREATE VIEW about AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
                " SELECT key, value FROM other, (SELECT count(*) FROM n)"
            )
        elif kind == "plan":
            db.execute("UPDATE about SET value = '[' WHERE key = 'plan'")
        elif kind == "result":
            db.execute("UPDATE attempt SET result = '{}'")
        else:
            db.execute("CREATE TRIGGER t AFTER UPDATE ON attempt BEGIN DELETE FROM about; END")
    db.close()


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("kind", ["view", "trigger", "plan", "result", "link", "log", "journal"])
def test_ledger_from_elsewhere_is_refused(stranger: Stranger, bundle: Path, kind: str) -> None:
    """SQLite runs what a database defines, writes to its log, and deletes files that its journal names."""
    ledger = bundle.with_name(f"{bundle.name}.ledger")
    shutil.rmtree(bundle)  # without evidence, reports read the ledger
    if kind in ("view", "trigger", "plan", "result"):
        spoilt_ledger(ledger, kind)
    elif kind == "link":
        ledger.rename(stranger.top / "private/ledger")
        ledger.symlink_to(stranger.top / "private/ledger")
    elif kind == "log":
        Path(f"{ledger}-wal").unlink(missing_ok=True)
        Path(f"{ledger}-wal").symlink_to(stranger.secret)
    else:
        Path(f"{ledger}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0" * 504)
    for words in (("suite", "report", "out"), ("attempt", "list", "out"), ("suite", "resume", "out")):
        assert stranger.refused(*words) == "PROOFBOX_CORRUPT"
    assert stranger.secret.read_text() == f"{SECRET}\n"


# Attempts made by hand


@pytest.mark.needs("bubblewrap")
def test_settings_of_a_record_from_elsewhere_need_consent(stranger: Stranger) -> None:
    """The record's files are on this machine, as if it had been published and returned with changes."""
    (stranger.top / "app").mkdir()
    (stranger.top / "play.toml").write_text('[[step]]\nsay = "done"\n')
    scripted = ("--strategies", "scripted", "--script", str(stranger.top / "play.toml"), *BOX)
    stranger.run(
        "runtime", "try", *scripted, "--prompt", "go", "--workspace", str(stranger.top / "app"), "--out", "mine"
    )

    def fork(record: str, place: str, *words: str) -> tuple[str, ...]:
        return ("attempt", "fork", record, str(stranger.top / place), "--step", "0", "--prompt", "go", *words)

    stranger.run(*fork("mine", "fork"))
    shutil.copytree("mine", "theirs")
    assert stranger.refused(*fork("theirs", "new")) == "SANDBOX_CONSENT_REQUIRED"  # the script of another path
    stranger.run(*fork("theirs", "trusted", "--trust"))
    attempt, runner = (json.loads(Path("mine", name).read_bytes()) for name in ("attempt.json", "runner.ref.json"))
    stranger.program(stranger.place / "agent")

    def change(attempt_members: dict[str, Any], runner_members: dict[str, Any]) -> None:
        Path("mine/attempt.json").write_bytes(canonical_bytes(attempt | attempt_members))
        Path("mine/runner.ref.json").write_bytes(canonical_bytes(runner | runner_members))
        rebuild(Path("mine"))

    off = {"requested": attempt["requested"] | {"provider": "off"}}
    agent = {"runtime": "process", "settings": {"command": [str(stranger.place / "agent")]}}
    for attempt_members, runner_members in (
        (off, {}),
        ({"policy": {"network": "full"}}, {}),
        ({"policy": {"mounts": ["/:/host"]}}, {}),
        ({"policy": {"doors": [{"port": 3000, "socket": "/run/docker.sock"}]}}, {}),
        (off, agent),
    ):
        change(attempt_members, runner_members)
        assert stranger.refused(*fork("mine", "new")) == "SANDBOX_CONSENT_REQUIRED", attempt_members
        assert not (stranger.top / "new").exists()
    change({"policy": {"pids": 64, "doors": []}}, {})
    stranger.run(*fork("mine", "new"))  # a limit narrows


# Deliveries


@pytest.fixture
def backend(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("INTERNAL_API_KEY", secrets.token_urlsafe(32))
    argv = [sys.executable, "-P", "-m", "proofbox", "backend", "serve", "--port", "0", "--data", "data", "--json"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            monkeypatch.setenv("MOZAIKS_BACKEND_URL", json.loads(server.stdout.readline())["url"])
            yield
        finally:
            server.terminate()


@pytest.mark.needs("git")
def test_source_directory(stranger: Stranger, backend: None) -> None:
    (stranger.place / "app").mkdir()
    stranger.plant(stranger.place / "app")
    stranger.program(stranger.place / "git")
    source = ("--app-id", "shop", "--source", "app")
    stranger.run("deliver", "plan", *source, "--json", codes=(2, 3))  # a name that is not UTF-8
    Path("app", os.fsdecode(b"latin-\xe9")).unlink()
    stranger.run("deliver", "plan", *source, "--json", codes=(0, 1, 2, 3))
    stranger.run("deliver", "init", *source, "--allow-unpromoted", "--json", codes=(0, 2, 3))
    stranger.run("deliver", "pr", *source, "--allow-unpromoted", "--json", codes=(0, 1, 2, 3))


@pytest.mark.needs("git")
def test_delivered_files_with_hooks_run_nothing(stranger: Stranger, backend: None) -> None:
    """The reference backend commits, merges and diffs trees whose attributes name filters and drivers."""
    app = stranger.place / "app"
    app.mkdir()
    stranger.program(stranger.place / "git")
    (app / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    (app / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ext::sh -c pwn\n')
    (app / "hooks").mkdir()
    stranger.program(app / "hooks/pre-receive")
    (app / "config").write_text('[core]\n\tfsmonitor = "./pwn"\n')
    (app / "a.txt").write_text("one\n")
    source = ("--app-id", "shop", "--source", "app", "--allow-unpromoted", "--json")
    stranger.run("deliver", "init", *source)
    (app / "a.txt").write_text("two\n")
    stranger.run("deliver", "pr", *source)


def zipped(names: dict[str, bytes], links: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in names.items():
            archive.writestr(zipfile.ZipInfo(name), content)
        for name, target in links.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
    return held.getvalue()


def tarred(names: dict[str, bytes], links: dict[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
        for name, content in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


TRAPS: tuple[tuple[dict[str, bytes], dict[str, str]], ...] = (
    ({"../private/new": b"x"}, {}),
    ({"/tmp/proofbox-planted": b"x"}, {}),
    ({"d/new": b"x"}, {"d": "{private}"}),
    ({"d/new": b"x"}, {"d": "../private"}),
)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.parametrize("trap", TRAPS)
def test_archives(
    stranger: Stranger,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[dict[str, bytes], dict[str, str]], bytes],
    trap: tuple[dict[str, bytes], dict[str, str]],
) -> None:
    monkeypatch.setenv("INTERNAL_API_KEY", secrets.token_hex(16))
    names, links = trap
    private = stranger.secret.parent
    Path("app.archive").write_bytes(
        make(names, {name: target.replace("{private}", str(private)) for name, target in links.items()})
    )
    Path("suite.toml").write_text(HEAD + mission("a", say("done"), workspace="app.archive"))
    unsafe = make is tarred or not links  # in a zip, the link comes last and replaces the directory
    stranger.run("suite", "lint", "suite.toml", "--json", codes=(1,) if unsafe else (0,))
    if not unsafe:
        stranger.run("suite", "run", "suite.toml", "--out", str(stranger.out), *BOX, codes=(1,))
    if make is zipped:
        stranger.refused("deliver", "plan", "--app-id", "a", "--source", "app.archive", "--timeout", "0.1")
    assert os.listdir(private) == ["secret.txt"]
    assert not Path("/tmp/proofbox-planted").exists()
