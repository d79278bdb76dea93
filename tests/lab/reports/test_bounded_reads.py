"""Every command that reads evidence stays below 200 MB and ends in time, no matter what the evidence contains.

Each row of BOMBS prepares a copy of a good run, and each row of READERS is a command. `scripts/test` runs a part of the
table, `scripts/soak` all of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from forging import rebuild, repin, rewrite_log
from suites import HEAD, command, conduct, mission, plan, say, write

from proofbox.agents.event_log import completed
from proofbox.cli import main
from proofbox.core.canonical import MAX_VALUES, canonical_bytes
from proofbox.core.chain import MAX_LINE_BYTES
from proofbox.evidence.bundle.index import Artifact, Index, index_of, parse_index
from proofbox.evidence.bundle.paths import INDEX, MAX_JSON_BYTES

pytestmark = pytest.mark.needs("bubblewrap")

SOAK = os.environ.get("PROOFBOX_SOAK", "") not in ("", "0")
MAX_MEGABYTES = 200
MAX_SECONDS = 600.0 if SOAK else 60.0
HUGE = 300 << 30
CALLS = 100_000 if SOAK else 3_000
ATTEMPT = "attempts/m.1.e1"
SUITE = HEAD + mission("m", write("a", "42\n"), command("true"), say("done"), verify={"commands": ["grep -qx 42 a"]})


class Evidence(NamedTuple):
    """A run with its output directory, a packet about it and a store that has it."""

    out: Path
    run: Path
    packet: Path
    store: Path
    source: Path

    @property
    def attempt(self) -> Path:
        return self.run / ATTEMPT


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    place = tmp_path_factory.mktemp("good")
    run = conduct(plan(SUITE, place / "out", place), place / "out")
    made = evidence_in(place, run.name)
    assert main(["promotion", "emit", str(run), "--policy", "run", "--out", str(made.packet)]) == 0
    assert main(["bundle", "push", str(run), str(made.store)]) == 0
    made.source.mkdir()
    (made.source / "a").write_text("42\n")
    return made


def evidence_in(place: Path, run_id: str) -> Evidence:
    out = place / "out"
    return Evidence(out, out / run_id, out / f"{run_id}.promotion.json", place / "store", place / "source")


# The bombs


def sparse(path: Path, size: int = HUGE) -> None:
    with open(path, "wb") as stream:
        os.truncate(stream.fileno(), size)


def sparse_in_place_of(*paths: str) -> Callable[[Evidence], None]:
    def prepare(made: Evidence) -> None:
        for path in paths:
            sparse(made.out / path.format(run=made.run.name))

    return prepare


def sparse_log_listed_in_the_index(made: Evidence) -> None:
    sparse(made.attempt / "tool.calls.jsonl")

    def grow(index: Index) -> Index:
        listed = index.artifacts["tool.calls.jsonl"]
        listed = Artifact(listed.path, HUGE, listed.sha256, listed.schema_version, listed.chain)
        return index._replace(artifacts={**index.artifacts, listed.path: listed})

    (made.attempt / INDEX).write_bytes(grow(parse_index((made.attempt / INDEX).read_bytes())).to_bytes())


def sparse_objects_in_the_store(made: Evidence) -> None:
    for path in made.store.rglob("*.json*"):
        sparse(path)


def long_log(made: Evidence) -> None:
    """An attempt of very many calls, consistent with itself."""
    calls = [json.loads(line) for line in (made.attempt / "tool.calls.jsonl").read_bytes().splitlines()]
    events = [*completed(map(json.loads, (made.attempt / "events.jsonl").read_bytes().splitlines()))]
    steps = [json.loads(line) for line in (made.attempt / "steps.jsonl").read_bytes().splitlines()]
    call = {**calls[-1], "output_preview": "x" * 300}
    event = next(each for each in reversed(events) if each["event"] == "tool_call")
    last = max(each["number"] for each in events)
    step = next(each for each in reversed(steps) if each.get("step", {}).get("kind") == "tool_call")
    after = step["step"]["snapshot_after"]
    more = {"snapshot_before": after, "snapshot_after": after}
    ids = [f"more-{number}" for number in range(CALLS)]
    rewrite_log(made.attempt, "tool.calls.jsonl", [*calls, *({**call, "call": id} for id in ids)])
    added = ({**event, "item": id, "number": last + 1 + number} for number, id in enumerate(ids))
    rewrite_log(made.attempt, "events.jsonl", [*events, *added])
    rewrite_log(made.attempt, "steps.jsonl", [*steps, *({**step, "step": {**step["step"], **more}} for _ in ids)])
    path = made.attempt / "attempt.report.json"
    report = json.loads(path.read_bytes())
    for name in ("tool_calls", "tool_calls_observed"):
        report[name] += CALLS
    if "duration_ms" in call:
        report["duration_ms"] = {"p50": call["duration_ms"], "p95": call["duration_ms"]}
    path.write_bytes(canonical_bytes(report))
    rebuild(made.attempt)
    repin(made.run)


def long_inherited_id(made: Evidence) -> None:
    """One event names a thread of 8 MiB, which thousands of events inherit."""
    events = [json.loads(line) for line in (made.attempt / "events.jsonl").read_bytes().splitlines()]
    change: dict[str, object] = {"event": "file_change", "item": "x", "paths": [], "status": "completed"}
    named = {**change, "number": 1000, "thread": "t" * (8 << 20)}
    rewrite_log(made.attempt, "events.jsonl", [*events, named, *([change] * 30_000)])
    rebuild(made.attempt)
    repin(made.run)


def nested_members(made: Evidence) -> None:
    """Events with members of many empty lists: a byte of them takes twenty in memory."""
    events = [json.loads(line) for line in (made.attempt / "events.jsonl").read_bytes().splitlines()]
    nested: dict[str, object] = {"event": "reasoning", "item": "x", "text": "t", "a": [[]] * 12_000}
    rewrite_log(made.attempt, "events.jsonl", [*events, *([nested] * 400)])
    rebuild(made.attempt)
    repin(made.run)


def rewritten(path: str, data: Callable[[], bytes]) -> Callable[[Evidence], None]:
    """Replace an artifact, and list it in every index."""

    def prepare(made: Evidence) -> None:
        (made.run / path).write_bytes(data())
        if path.startswith(ATTEMPT):
            rebuild(made.attempt)
            repin(made.run)
        else:
            rebuild(made.run)

    return prepare


def report_with(more: Callable[[], object]) -> Callable[[Evidence], None]:
    """Add a member to an attempt's report."""

    def prepare(made: Evidence) -> None:
        path = made.attempt / "attempt.report.json"
        path.write_bytes(canonical_bytes({**json.loads(path.read_bytes()), "more": more()}))
        rebuild(made.attempt)
        repin(made.run)

    return prepare


def huge_index(made: Evidence) -> None:
    old = parse_index((made.attempt / INDEX).read_bytes())
    more = [Artifact(f"outputs/{number:0120}", number, "0" * 64) for number in range(120_000)]
    index = index_of(old.run_id, old.world_id, old.status, [*old.artifacts.values(), *more], old.missing)
    (made.attempt / INDEX).write_bytes(index.to_bytes())
    repin(made.run)


def zip_bomb(made: Evidence) -> None:
    shutil.rmtree(made.source)
    with zipfile.ZipFile(made.source, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        packed.writestr("zeros", bytes(1 << 28))


@contextmanager
def growing(made: Evidence) -> Iterator[None]:
    """A file that is always longer than a moment ago."""
    ended = threading.Event()

    def grow() -> None:
        size = 1 << 20
        while not ended.is_set():
            size += 1 << 10  # small steps: hashing what was there at the start must not take long
            os.truncate(made.attempt / "attempt.report.json", size)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def values(size: int, item: bytes) -> bytes:
    return b'{"a":[' + item * ((size - 10) // len(item)) + b"0]}"


def wide_text() -> bytes:
    return b'{"a":"' + "\U0001f600".encode() + b"x" * (MAX_JSON_BYTES - 20) + b'"}'


OF_THE_ATTEMPT = (
    *("run_status.json", "outcome.json", "attempt.report.json", "attempt.json", "tree_manifest.json"),
    *("tool.calls.jsonl", "events.jsonl", "steps.jsonl"),
)
OF_THE_RUN = ("run_status.json", INDEX, "schedule.jsonl", "suite.toml", "environment.json", "summary.json")
BOMBS: dict[str, Callable[[Evidence], None]] = {
    **{f"sparse {name}": sparse_in_place_of(f"{{run}}/{name}") for name in OF_THE_RUN},
    **{f"sparse {name} of the attempt": sparse_in_place_of(f"{{run}}/{ATTEMPT}/{name}") for name in OF_THE_ATTEMPT},
    "sparse packet": sparse_in_place_of("{run}.promotion.json"),
    "sparse LATEST": sparse_in_place_of("LATEST"),
    "sparse objects in the store": sparse_objects_in_the_store,
    "long log": long_log,
    "long inherited id": long_inherited_id,
    "nested members of events": nested_members,
    "long line": rewritten(f"{ATTEMPT}/tool.calls.jsonl", lambda: values(MAX_LINE_BYTES, b"[],") + b"\n"),
    "long line of the schedule": rewritten("schedule.jsonl", lambda: values(MAX_LINE_BYTES, b'{"":0},') + b"\n"),
    "endless line": rewritten(f"{ATTEMPT}/events.jsonl", lambda: b"x" * (4 * MAX_LINE_BYTES)),
    "deep JSON": rewritten(f"{ATTEMPT}/outcome.json", lambda: b"[" * 1_000_000),
    "many values": rewritten(f"{ATTEMPT}/attempt.report.json", lambda: values(MAX_JSON_BYTES, b"[],")),
    "as many values as allowed": report_with(lambda: [[]] * (MAX_VALUES // 2 - 1000)),
    "large text": report_with(lambda: "x" * (MAX_JSON_BYTES - 10_000)),
    "wide text": rewritten(f"{ATTEMPT}/attempt.report.json", wide_text),
    "huge index": huge_index,
    "zip bomb": zip_bomb,
}
READERS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "{run}"),
    "validate": ("validate", "{run}", "--strict", "--json"),
    "report": ("report", "{run}", "--strict", "--json"),
    "report html": ("report", "{run}", "--html", "{out}/report.html"),
    "bundle list": ("bundle", "list", "{out}"),
    "bundle show": ("bundle", "show", "{run}"),
    "bundle push": ("bundle", "push", "{run}", "{out}/store"),
    "bundle pull": ("bundle", "pull", "{store}", "{out}/pulled"),
    "reindex": ("bundle", "reindex", "{run}", "--strict"),
    "repair": ("bundle", "reindex", "{run}/" + ATTEMPT, "--repair"),
    "promotion emit": ("promotion", "emit", "{run}", "--out", "{out}/packet.json"),
    "promotion verify": ("promotion", "verify", "{packet}"),
    "suite report": ("suite", "report", "{run}"),
    "attempt list": ("attempt", "list", "{run}"),
    "attempt explain": ("attempt", "explain", "m.1", "--run", "{run}"),
    "deliver": ("deliver", "pr", "--app-id", "a", "--source", "{source}", "--packet", "{packet}"),
}
SELECTION = (
    *(("sparse tool.calls.jsonl of the attempt", name) for name in ("verify", "bundle show", "repair")),
    *(("long log", name) for name in ("report", "attempt explain", "bundle push")),
    ("large text", "promotion emit"),
    ("huge index", "verify"),
    ("huge index", "repair"),
    ("long line", "validate"),
    ("long inherited id", "validate"),
    ("nested members of events", "report html"),
    ("long line of the schedule", "verify"),
    ("as many values as allowed", "suite report"),
    ("sparse objects in the store", "bundle pull"),
    ("sparse packet", "promotion verify"),
    ("zip bomb", "deliver"),
)
TABLE = [(bomb, reader) for bomb in BOMBS for reader in READERS] if SOAK else SELECTION


@pytest.mark.parametrize(("bomb", "reader"), TABLE)
def test_reader_stays_small_and_ends_in_time(good: Evidence, tmp_path: Path, bomb: str, reader: str) -> None:
    made = copied(good, tmp_path)
    BOMBS[bomb](made)
    megabytes, code, output = measured(made, reader, tmp_path)
    assert code in (0, 1, 2, 3, 4), output
    assert "PROOFBOX_INTERNAL" not in output, output
    assert megabytes < MAX_MEGABYTES, output


@pytest.mark.parametrize("reader", READERS if SOAK else ("verify", "repair"))
def test_growing_file_does_not_keep_a_reader(good: Evidence, tmp_path: Path, reader: str) -> None:
    made = copied(good, tmp_path)
    # How far the file has grown when it is opened depends on the machine, so less is hashed than the product accepts.
    less = "from proofbox.evidence.bundle import repair; repair.MAX_REPAIRED_BYTES = 1 << 30"
    with growing(made):
        megabytes, code, output = measured(made, reader, tmp_path, first=less)
    assert code in (0, 1, 2, 3, 4), output
    assert megabytes < MAX_MEGABYTES, output


def test_listed_file_of_any_size_is_not_read_only_to_be_shown(good: Evidence, tmp_path: Path) -> None:
    made = copied(good, tmp_path)
    sparse_log_listed_in_the_index(made)
    megabytes, code, output = measured(made, "bundle show", tmp_path)
    assert code == 0, output
    assert f"finding: not_checked {ATTEMPT}/tool.calls.jsonl: {HUGE} bytes; only `proofbox verify` reads" in output
    assert megabytes < MAX_MEGABYTES


def test_long_log_is_valid(good: Evidence, tmp_path: Path) -> None:
    """Otherwise the readers of it above would stop early."""
    made = copied(good, tmp_path)
    long_log(made)
    megabytes, code, output = measured(made, "validate", tmp_path)
    assert (code, json.loads(output)["findings"]) == (0, [])
    assert megabytes < MAX_MEGABYTES


def copied(good: Evidence, place: Path) -> Evidence:
    for path in (good.out, good.store, good.source):
        shutil.copytree(path, place / path.name, symlinks=True)
    return evidence_in(place, good.run.name)


MEASURED = """
import sys
from proofbox.cli import collect_rarely, main
collect_rarely(sys.argv[2:])
code = main(sys.argv[2:])
with open("/proc/self/status") as facts, open(sys.argv[1], "w") as answer:
    answer.write(next(line for line in facts if line.startswith("VmHWM:")).split()[1])
sys.exit(code)
"""


def measured(made: Evidence, reader: str, place: Path, *, first: str = "") -> tuple[float, int, str]:
    """Run `first` and a reader in a new process. Return its peak memory in MB, its exit code and its output."""
    words = [word.format(**made._asdict()) for word in READERS[reader]]
    environment = {**os.environ, "MOZAIKS_BACKEND_URL": "http://127.0.0.1:9", "INTERNAL_API_KEY": "x" * 40}
    done = subprocess.run(
        [sys.executable, "-P", "-c", first + MEASURED, place / "peak", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=MAX_SECONDS,
    )
    return int((place / "peak").read_text()) / 1024, done.returncode, done.stdout[-100_000:]
