"""Shared test setup: Hypothesis profiles, capabilities, timeouts, and a check for leftovers at the end of the run.

- Hypothesis runs a sample by default and all examples under `scripts/soak` (PROOFBOX_SOAK=1). The fixture `rounds`
  does the same for plain loops.
- `@pytest.mark.needs("bubblewrap", …)` names capabilities. If one is missing, the test is skipped with the reason. With
  CI=true, a missing capability that is expected on Linux is a failure, so that a run can't pass by skipping tests.
- `@pytest.mark.timeout(seconds)` changes the timeout of each of a test's setup, call and teardown.
- The user's state, cache, configuration and temporary directories are redirected for the whole run. At its end, no
  process, container, mount, socket, control group or temporary directory of the run may be left.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import hypothesis
import private_engine
import pytest
from capabilities import CAPABILITIES, OrdinaryUser, find_ordinary_user, missing
from leftovers import (
    children_of,
    containers,
    describe_processes,
    groups_and_makers,
    listening,
    mounts_below,
    wait_for_none,
)

from proofbox.sandbox.host.cgroups import sweep, tree

pytest_plugins = ("ray_fixtures", "viewer_fixtures")  # fixtures that are expensive, and shared by several files

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
SOAK = os.environ.get("PROOFBOX_SOAK", "") not in ("", "0")
USER_DIRECTORIES = ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")

# Random tests. CI uses the same examples every time, so that a pull request never fails by chance. Elsewhere, and in a
# soak, the examples are new each time, and print_blob shows how to reproduce a failure. There is no deadline, because
# it would depend on the load of the machine.
hypothesis.settings.register_profile(
    "sample",
    max_examples=60,
    stateful_step_count=30,
    derandomize=IN_CI,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "soak", hypothesis.settings.get_profile("sample"), max_examples=5_000, stateful_step_count=100, derandomize=False
)
hypothesis.settings.load_profile("soak" if SOAK else "sample")


@pytest.fixture(scope="session")
def rounds() -> Callable[[int, int], int]:
    """`rounds(sample, full)`: the number of iterations of a random test without Hypothesis."""
    return lambda sample, full: full if SOAK else sample


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output directory that does not exist yet."""
    return tmp_path / "out"


@pytest.fixture
def deep_path(tmp_path: Path) -> Generator[Path]:
    """A directory for trees that are too deep for Python, and so for pytest, to remove."""
    yield tmp_path
    subprocess.run(["rm", "-rf", "--", tmp_path], check=True)


# Capabilities: the table is in capabilities.py.


@pytest.fixture(scope="session")
def ordinary_user() -> OrdinaryUser:
    """An unprivileged user with a separate home directory; use it with `needs("unprivileged-user")`."""
    found = find_ordinary_user()
    assert isinstance(found, OrdinaryUser), found
    if not found.identity:
        return found._replace(env=dict(os.environ))
    home = Path(tempfile.mkdtemp(prefix="home-"))
    own = {name: home / name.split("_")[1].lower() for name in USER_DIRECTORIES}
    for path in (home, *own.values()):
        path.mkdir(mode=0o700, exist_ok=True)
        os.chown(path, found.uid, found.uid)
    places = {"HOME": home, "TMPDIR": tempfile.gettempdir(), **own}
    return found._replace(env={**found.env, **{name: str(path) for name, path in places.items()}})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # xdist stores an item's group in `_nodeid`, which pytest ignores since 9.2, so groups would have no effect.
        grouped = vars(item).get("_nodeid")
        if grouped is not None and grouped != item.nodeid:
            item._id = type(item._id).parse(grouped)
        for mark in item.iter_markers("needs"):
            for name in mark.args:
                if name not in CAPABILITIES:
                    raise pytest.UsageError(f"{item.nodeid} needs {name!r}; known are {', '.join(CAPABILITIES)}")


@pytest.fixture(scope="session")
def shared_settings() -> Path:
    """The user's settings file of all tests that do not redirect XDG_CONFIG_HOME."""
    return Path(os.environ["XDG_CONFIG_HOME"], "proofbox/config.toml")


@pytest.fixture(autouse=True)
def no_settings_for_other_tests(shared_settings: Path) -> Generator[None]:
    yield
    assert not shared_settings.exists(), f"{shared_settings} would change later tests: redirect XDG_CONFIG_HOME"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in (name for mark in item.iter_markers("needs") for name in mark.args):
        reason = missing(name)
        if not reason:
            continue
        message = f"needs {name}: {reason} ({CAPABILITIES[name].how_to_get})"
        if IN_CI and CAPABILITIES[name].expected_in_ci and sys.platform == "linux":
            pytest.fail(f"{message}; with CI=true it is required", pytrace=False)
        pytest.skip(message)


# A timeout for every test. Each phase has its own, so that a slow fixture is limited as well.

DEFAULT_SECONDS = 300.0
GRACE_SECONDS = 30.0


@contextmanager
def time_limit(item: pytest.Item) -> Generator[None]:
    """Fail a test that takes too long. If that has no effect (stuck in C, or every exception caught), exit the process.

    The alarm repeats, because an event loop may catch the failure that the first one raises.
    """
    mark = item.get_closest_marker("timeout")
    seconds = (float(mark.args[0]) if mark else DEFAULT_SECONDS) * (30 if SOAK else 1)

    def overdue(_signum: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(2, all_threads=True)
        pytest.fail(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, overdue)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
    faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=item.config.stash[REAL_STDERR])
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class TimeLimit:
    """A separate plugin, because this module already has a hook named `pytest_runtest_setup`, for capabilities."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with time_limit(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        with time_limit(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        with time_limit(item):
            return (yield)


# The run's directory, and the check at its end that nothing is left.

REAL_STDERR = pytest.StashKey[int]()
RUN = pytest.StashKey["Run"]()


@dataclass
class Run:
    """One test run. Its directory is shared by xdist's controller and workers."""

    base: Path
    worker: str | None  # None in the controller, and without xdist
    left_over: list[str]

    @property
    def reports(self) -> Path:
        return self.base / "left-over"

    @property
    def scratch(self) -> Path:
        return self.base / "tmp"

    @property
    def engines(self) -> list[str]:
        """The directories of the container engines that were started, which are outside the run's directory."""
        listed = self.base / private_engine.LIST
        return listed.read_text().split() if listed.exists() else []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"needs(*names): capabilities the test needs: {', '.join(CAPABILITIES)}")
    config.addinivalue_line(
        "markers", f"timeout(seconds): the timeout of each phase of the test (default: {DEFAULT_SECONDS:g} s)"
    )
    config.pluginmanager.register(TimeLimit())
    # In a shell's background job, or under nohup, these signals are ignored, and tested programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.stash[REAL_STDERR] = os.dup(2)  # pytest captures 2 during tests; the final traceback must be visible

    worker: str | None = getattr(config, "workerinput", {}).get("workerid")
    if worker:
        base = Path(os.environ["PROOFBOX_TEST_RUN"])
    else:
        # pytest's own directories stay in the usual place, and are kept after a failed run for inspection.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        # The name is short, because paths of sockets below it are limited to 107 bytes, and differs from the names that
        # proofbox uses, because the check for leftovers looks for those. Other users can read it, because some tests
        # run as another user.
        base = Path(tempfile.mkdtemp(prefix="pbt-"))
        base.chmod(0o755)
        os.environ["PROOFBOX_TEST_RUN"] = str(base)
    run = Run(base, worker, [])
    config.stash[RUN] = run
    for directory, mode in ((run.reports, 0o700), (run.scratch, 0o1777)):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)
    os.environ["TMPDIR"] = str(run.scratch)
    tempfile.tempdir = None  # computed again, from TMPDIR
    for variable in USER_DIRECTORIES:
        own = base / (worker or "main") / variable.split("_")[1].lower()
        own.mkdir(parents=True, mode=0o700)
        os.environ[variable] = str(own)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look for leftovers: each worker for its own, then the controller for all others."""
    run = session.config.stash[RUN]
    if run.worker:
        found = wait_for_none(own_leftovers)
        (run.reports / run.worker).write_text("".join(f"{line}\n" for line in found))
        return
    own: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    places = [str(run.base), str(own), *run.engines]
    found = wait_for_none(lambda: own_leftovers() + leftovers_of_run(run, places))
    sweep(tree())  # as the next proofbox would: the empty groups of clients that tests killed are left until then
    for report in sorted(run.reports.iterdir()):
        found += report.read_text().splitlines()
    run.left_over += sorted(set(found))
    if run.left_over and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus == pytest.ExitCode.OK and session.config.option.basetemp is None:
        discard(own)


def discard(own: Path) -> None:
    """Remove pytest's own directory after a run without failures."""
    shutil.rmtree(own, ignore_errors=True)
    latest = own.parent / "pytest-current"
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)
    with suppress(OSError):  # it still contains the directories of failed runs
        own.parent.rmdir()


def own_leftovers() -> list[str]:
    """Return the remaining descendants of this process and the control groups that it created."""
    found = describe_processes(children_of(os.getpid()))
    return found + [f"control group {path}" for path, maker in groups_and_makers() if maker == str(os.getpid())]


def leftovers_of_run(run: Run, places: Sequence[str]) -> list[str]:
    """Return everything left in the run's directories, and every process that refers to one of them."""

    def inside(path: str) -> bool:
        return any(path.startswith(f"{place}/") for place in places)

    found = describe_processes(processes_of_run(run))
    found += [f"mount {point}" for point in mounts_below(places)]
    found += [f"socket {path}" for path in listening() if inside(path)]
    found += [f"directory {path}" for path in run.engines if os.path.exists(path)]
    found += [f"temporary {path.name}" for path in sorted(run.scratch.glob("*proofbox*"))]
    return found + [each for each in containers() if inside(each.split(" ", 3)[-1])]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    run = config.stash[RUN]
    if run.left_over:
        terminalreporter.section("left behind by this run", red=True)
        for line in run.left_over:
            terminalreporter.line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    # Never delete through a leftover mount: the files behind it belong to someone else.
    if run and not run.worker and not mounts_below([str(run.base)]):
        shutil.rmtree(run.base, ignore_errors=True)
    if REAL_STDERR in config.stash:
        os.close(config.stash[REAL_STDERR])
        del config.stash[REAL_STDERR]


def processes_of_run(run: Run) -> set[int]:
    """Return detached processes that name the run's directory in their arguments, environment, cwd or open files."""
    mark = str(run.base)
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "cmdline").read_text(errors="replace"):
                found.add(int(entry.name))
                continue
            # The rest is readable only for our own processes, unless this is root.
            links = (os.readlink(link) for link in (entry / "cwd", *(entry / "fd").iterdir()))
            if mark in (entry / "environ").read_text(errors="replace") or any(mark in link for link in links):
                found.add(int(entry.name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found - {os.getpid()}
