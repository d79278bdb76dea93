"""Commands cannot do what tools may not: the kernel enforces every preset and rule."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from capabilities import OrdinaryUser

from proofbox.core.clock import ManualClock
from proofbox.errors import CapabilitiesRefused, CapabilityDenied, PolicyRefused
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.compiling import compile_rules
from proofbox.workspace.capabilities.grants import PRESETS, parse
from proofbox.workspace.tools.environments.boxed import BoxedEnvironment

pytestmark = pytest.mark.needs("bubblewrap")
SECRET = "the-secret-value"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    files = {".env": SECRET, "conf/.env": SECRET, "conf/plain": "plain", "src/a.py": "a", "private/deep/f": "private"}
    for path, text in {**files, "docs/x.md": "x", "top": "top"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def boxed(project: Path, text: str, provider: str = "bubblewrap") -> BoxedEnvironment:
    return BoxedEnvironment(project, Capabilities(parse(text)), provider=provider)


def everything(env: BoxedEnvironment) -> str:
    """Return everything that a command can read of the workspace, in several ways."""
    done = env.run_command(
        "cat .env conf/.env private/deep/f; grep -rs . .; tar c . | cat; cp -r . /tmp/x; cat /tmp/x/.env"
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def listener() -> Iterator[int]:
    """Listen on the host's loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


REACH = 'python3 -c \'import socket; socket.create_connection(("127.0.0.1", {}), 2); print("reached")\''


@pytest.mark.parametrize("name", ["sandbox", "developer", "agent"])
def test_boxes_enforce_presets_with_commands(name: str, project: Path, listener: int) -> None:
    with BoxedEnvironment(project, Capabilities(PRESETS[name]), provider="bubblewrap") as env:
        for path in (".env", "conf/.env"):
            with pytest.raises(CapabilityDenied):
                env.read_file(path)
            assert env.run_command(["cat", path]).exit_code != 0
        seen = everything(env)
        assert SECRET not in seen
        assert "plain" in seen
        assert "private" in seen
        assert env.run_command("echo new > src/b.py && rm src/a.py && echo ok").stdout == "ok\n"
        assert env.read_file("src/b.py").content == "new\n"
        assert "reached" not in env.run_command(REACH.format(listener)).stdout
        for attempt in (
            "mv conf other",
            "mv conf/.env shown",
            "ln conf/.env shown",
            "rm -rf conf",
            "mount --bind / conf",
        ):
            env.run_command(attempt)
        assert (project / "conf/.env").read_text() == SECRET
        assert env.run_command("cat conf/.env shown other/.env").stdout == ""


def test_minimal_preset_runs_no_commands(project: Path) -> None:
    with BoxedEnvironment(project, Capabilities(PRESETS["minimal"]), provider="bubblewrap") as env:
        assert env.read_file("conf/plain").content == "plain"
        for attempt in (
            lambda: env.run_command("true"),
            lambda: env.write_file("top", "x"),
            lambda: env.remove_file("top"),
            lambda: env.read_file(".env"),
        ):
            with pytest.raises(CapabilityDenied):
                attempt()


def test_unrestricted_preset_hides_nothing(project: Path, listener: int) -> None:
    with BoxedEnvironment(project, Capabilities(PRESETS["unrestricted"]), provider="bubblewrap") as env:
        assert env.run_command("cat .env").stdout == SECRET
        assert env.run_command(REACH.format(listener)).stdout == "reached\n"


def test_without_isolation_only_unrestricted_is_accepted(project: Path) -> None:
    with BoxedEnvironment(project, Capabilities(PRESETS["unrestricted"]), provider="off") as env:
        assert env.run_command("cat .env").stdout == SECRET
    for name in ("sandbox", "developer", "agent"):
        with (
            BoxedEnvironment(project, Capabilities(PRESETS[name]), provider="off") as env,
            pytest.raises(PolicyRefused, match="off can't enforce"),
        ):
            env.run_command("true")


def test_commands_read_only_allowed_files(project: Path) -> None:
    rules = '[fs]\nread = ["src/**", "docs/*.md"]\nexecute = ["**"]\n[commands]\nallow = ["**"]'
    with boxed(project, rules) as env:
        found = env.run_command("cat src/a.py docs/x.md; grep -rs . . | sort").stdout
        assert found == "ax./docs/x.md:x\n./src/a.py:a\n"
        assert env.run_command("cat top; ls conf").stdout == ""
        assert env.run_command("touch src/new top").exit_code != 0


def test_commands_write_only_allowed_parts(project: Path) -> None:
    rules = """
    [fs]
    read = ["**"]
    write = ["src/**", "out/**", "top", "!src/keep.py"]
    delete = ["**", "!src/keep.py"]
    execute = ["**"]
    [commands]
    allow = ["**"]
    """
    (project / "src/keep.py").write_text("keep")
    with boxed(project, rules) as env:
        assert env.run_command("echo x > src/n && echo y > top && rm src/a.py && echo ok").stdout == "ok\n"
        for attempt in ("echo x > docs/x.md", "rm src/keep.py", "echo x > src/keep.py", "mv src src2", "mkdir out"):
            assert env.run_command(attempt).exit_code != 0, attempt
        # A tool creates a directory that the rules name: the next command may write there.
        env.write_file("out/first", "x")
        assert env.run_command("echo y > out/second && cat out/*").stdout == "xy\n"
        with pytest.raises(CapabilityDenied):
            env.write_file("docs/x.md", "x")
    assert (project / "docs/x.md").read_text() == "x"
    assert (project / "src/keep.py").read_text() == "keep"


def test_new_secret_is_hidden_from_the_next_command(project: Path) -> None:
    with boxed(project, 'preset = "sandbox"\n[fs]\nread = ["!late"]') as env:
        env.run_command("sleep 30 & echo started")
        (project / "late").write_text(SECRET)
        assert env.run_command(["cat", "late"]).exit_code != 0
        assert SECRET not in env.run_command("cat late; ps").stdout


def test_exact_names_are_checked_before_each_command_but_slow_walks_are_rare(project: Path) -> None:
    class SlowClock(ManualClock):
        def monotonic(self) -> float:
            self.advance(1.0)  # every reading takes a second, so a walk between two readings is slow
            return super().monotonic()

    clock = SlowClock()
    rules = Capabilities(parse('preset = "sandbox"\n[fs]\nread = ["!late"]'))
    with BoxedEnvironment(project, rules, provider="bubblewrap", clock=clock) as env:
        env.run_command("true")
        env.run_command("true")  # includes the slow walk
        (project / "late").write_text(SECRET)
        assert env.run_command(["cat", "late"]).exit_code != 0
        env.run_command("true")
        (project / "src/.env").write_text(SECRET)
        clock.advance(60)
        assert env.run_command(["cat", "src/.env"]).exit_code != 0


def test_replaced_secret_stays_hidden(project: Path) -> None:
    """An editor saves by renaming, and the cover disappears together with the old file."""
    with boxed(project, 'preset = "sandbox"\n[fs]\nread = ["!private"]') as env:
        assert env.run_command("cat .env conf/.env private/deep/f").stdout == ""
        for path in (".env", "conf/.env"):
            (project / "new").write_text(SECRET)
            (project / "new").rename(project / path)
        (project / "private").rename(project / "kept")
        (project / "private/deep").mkdir(parents=True)
        (project / "private/deep/f").write_text(SECRET)
        assert env.run_command("cat .env conf/.env private/deep/f").stdout == ""


def test_box_is_replaced_only_while_idle(project: Path) -> None:
    with boxed(project, 'preset = "sandbox"\n[fs]\nread = ["!late"]') as env, ThreadPoolExecutor(4) as pool:
        os.mkfifo(project / "go")
        first = pool.submit(env.run_command, "echo > begun; cat go; echo first")
        while not (project / "begun").exists():
            assert not first.done()
        (project / "late").write_text(SECRET)
        others = [pool.submit(env.run_command, "cat late; echo other") for _ in range(3)]
        (project / "go").write_text("")
        assert first.result().stdout == "first\n"  # it was not killed for the other commands
        assert [each.result().stdout for each in others] == ["other\n"] * 3


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        ('read = ["**"]\nwrite = ["**/*.py"]\ndelete = ["**"]\nexecute = ["**"]', "fs.write"),
        ('read = ["**"]\nwrite = ["**", "!**/*.lock"]\ndelete = ["**", "!**/*.lock"]\nexecute = ["**"]', "fs.write"),
        ('read = ["**"]\nwrite = ["**", "!not-there"]\ndelete = ["**"]\nexecute = ["**"]', "fs.write"),
        ('read = ["**"]\nwrite = ["**"]\ndelete = []\nexecute = ["**"]', "fs.delete"),
        ('read = ["**"]\nwrite = ["**"]\ndelete = ["**", "!top"]\nexecute = ["**"]', "fs.delete"),
        ('read = ["**"]\nexecute = []', "fs.execute"),
        ('read = ["**"]\nexecute = ["**", "!src"]', "fs.execute"),
        ('read = ["**"]\nexecute = ["**"]\n[network]\nallow = ["*", "!evil.org"]', "network"),
        ('read = ["**"]\nexecute = ["**"]\n[network]\nallow = ["*.org", "!evil.org"]', "network"),
        ('read = ["**"]\nexecute = ["**"]\n[network]\nallow = ["a.org", "!a.org:80"]', "network"),
    ],
)
def test_rules_that_no_box_can_enforce_are_refused(rules: str, kind: str, project: Path) -> None:
    with boxed(project, f'commands.allow = ["**"]\n[fs]\n{rules}') as env:
        with pytest.raises(CapabilitiesRefused) as caught:
            env.run_command("true")
        assert caught.value.details["kind"] == kind
        assert caught.value.fix_hints
        assert env.read_file("top").content == "top"  # the file tools still work: they check the rules themselves


@pytest.mark.parametrize(
    ("allow", "due"),
    [
        ([], "none"),
        (["*"], "full"),
        (["*", "!*"], "none"),
        (["a.org", "b.org:1"], "allow:a.org,b.org:1"),
        (["a.org", "!a.org"], "none"),
        (["a.org", "!b.org"], "allow:a.org"),
        (["a.org:443", "!a.org:80"], "allow:a.org:443"),
        (["x.a.org", "b.org", "!*.a.org"], "allow:b.org"),
        (["*.a.org", "!a.org"], "allow:*.a.org"),
    ],
)
def test_network_rules_compile_to_a_policy(allow: list[str], due: str, project: Path) -> None:
    listed = ", ".join(f'"{each}"' for each in allow)
    rules = Capabilities(parse(f'[fs]\nread = ["**"]\nexecute = ["**"]\n[network]\nallow = [{listed}]'))
    assert compile_rules(rules, str(project)).network == due


def test_command_reaches_only_listed_endpoints(project: Path, listener: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        rules = f'preset = "sandbox"\n[network]\nallow = ["127.0.0.1:{listener}"]'
        with boxed(project, rules) as env:
            done = env.run_command(REACH.format(listener))
            assert (done.stdout, done.reach) == ("reached\n", ("network",))
            assert "reached" not in env.run_command(REACH.format(other.getsockname()[1])).stdout


def test_denied_variables_cannot_be_set(project: Path) -> None:
    with boxed(project, 'preset = "sandbox"\n[env]\nwrite = ["!LD_*"]') as env:
        assert env.run_command("echo $A", env={"A": "1"}).stdout == "1\n"
        with pytest.raises(CapabilityDenied):
            env.run_command("true", env={"LD_PRELOAD": "x"})


AS_ORDINARY_USER = """
import os, sys
from pathlib import Path
from proofbox import Workspace, open_toolbox
project = Path(sys.argv[1])
(project / "conf").mkdir(parents=True)
(project / "conf/.env").write_text("the-secret-value")
Workspace.init(project).close()
with open_toolbox(project, capabilities="sandbox", provider="bubblewrap") as box:
    done = box.env.run_command("cat conf/.env; mv conf other; chmod 777 conf/.env; cat conf/.env; echo x > made")
    box.env.edit_file("made", "x", "y")
    again = box.env.run_command("cat made; grep -rs secret-value .")
print(repr(done.stdout), repr(again.stdout), box.workspace.path.joinpath("made").stat().st_uid == os.getuid())
"""


@pytest.mark.needs("unprivileged-user")
def test_rules_are_enforced_for_ordinary_users(ordinary_user: OrdinaryUser, tmp_path: Path) -> None:
    place = Path(ordinary_user.env["HOME"]) if ordinary_user.identity else tmp_path
    done = subprocess.run(
        [ordinary_user.python, "-c", AS_ORDINARY_USER, str(place / "capable")],
        env=dict(ordinary_user.env),
        cwd="/",
        capture_output=True,
        text=True,
        **ordinary_user.identity,
    )
    assert done.stdout == "'' 'y\\n' True\n", done.stderr
