"""The cost of the viewer: pages of a large run and of a large attempt, and the exported file of a demo run.

    scripts/bench view [--attempts N] [--events N] [--megabytes N] [--check]

- the list of a run of many attempts: time before, during and after the check of its evidence, and size of the page;
- the page of an attempt with many events and a long output: time to its first byte and to the first paint in Chromium,
  and the server's memory;
- the exported file of `proofbox demo`: its size, its requests when it is opened from disk, and whether it notices that
  one byte of its evidence changed.

Needs Chromium. With --check, the exit code is 1 if a figure is past its limit.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from proofbox import BundleWriter
from proofbox.core.digest import sha256_hex
from proofbox.evidence.documents.outcome import Outcome, Verdict
from proofbox.evidence.documents.schedule import ScheduleLog
from proofbox.lab.attempt.artifacts import bundle_id, index_sha256
from proofbox.lab.run.ledger import Ended, Ledger, PlannedAttempt
from proofbox.lab.run.plan import Plan, ledger_path

CHROMIUM = "/usr/bin/chromium"
LIST_MS, LIST_BYTES, PAINT_MS, MEMORY_MB, EXPORT_BYTES = 200, 30_000, 500, 200, 1_000_000
FIRST_PAINT = """() => new Promise((resolve) => new PerformanceObserver((list) => {
    const found = list.getEntriesByName("first-contentful-paint");
    if (found.length) resolve(found[0].startTime);
}).observe({ type: "paint", buffered: true }))"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=10_000, help="attempts of the run", metavar="N")
    parser.add_argument("--events", type=int, default=100_000, help="events of the attempt", metavar="N")
    parser.add_argument("--megabytes", type=int, default=50, help="size of its output", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its limit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place:
        root = Path(place)
        write_attempt(root / "attempts", options.events, options.megabytes << 20)
        with serving(root) as client:
            held = [attempt(client, options.events, options.megabytes)]
        write_run(root / "runs", options.attempts)
        with serving(root) as client:
            held.append(run(client, options.attempts))
        held.append(export(root / "demo"))
    return 1 if options.check and not all(held) else 0


def write_attempt(out: Path, events: int, size: int) -> None:
    line = b"the quick brown fox jumps over the lazy dog, again and again and again and again\n"
    output = (line * (size // len(line) + 1))[:size]
    digest = sha256_hex(output)
    with BundleWriter.create(out, run_id="attempt-large") as bundle:
        bundle.write_json("attempt.json", {"schema_version": "proofbox.attempt/2", "attempt_id": "large", "states": []})
        bundle.write_bytes(f"outputs/{digest}.txt", output)
        with bundle.open_log("events.jsonl") as log, bundle.open_log("steps.jsonl") as steps:
            for n in range(events):
                call = {"event": "tool_call", "item": f"item-{n}", "tool": "command", "command": f"make test-{n}"}
                log.append(
                    {**call, "at_ms": n * 10.0, "status": "completed", "source": "observed", "output": "ok\n" * 20}
                )
                steps.append({"step": {"n": n + 1, "kind": "tool_call", "item": f"item-{n}", "status": "completed"}})
        with bundle.open_log("tool.calls.jsonl") as calls:
            calls.append({"call": "item-0", "output_bytes": size, "output_sha256": digest})


def write_run(out: Path, count: int) -> None:
    """Write a committed run with its ledger."""
    run_id = "run-large"
    ids = [f"mission-{number % 1000}.{number}" for number in range(count)]
    digests = []
    with BundleWriter.create(out, run_id=run_id) as run:
        run.write_json("environment.json", {"isolation": "process"})
        schedule = ScheduleLog(run.open_log("schedule.jsonl"))
        for id in ids:
            schedule.planned(id, f"attempts/{id}.e1")
        for number, id in enumerate(ids):
            schedule.started(id)
            digests.append(write_result(run, run_id, number))
            schedule.finished(id, digests[-1])
        schedule.close()
    plan = Plan(run_id=run_id, suite_name="s", suite_source="", base="", chain="", chain_origin="", concurrency=1)
    about = {"plan": msgspec.json.encode(plan).decode(), "epoch": "1"}
    planned = [PlannedAttempt(id, id.partition(".")[0], number // 1000) for number, id in enumerate(ids)]
    Ledger.create(ledger_path(out, run_id), about, planned).close()
    with closing(sqlite3.connect(ledger_path(out, run_id))) as db, db:
        for number, (id, digest) in enumerate(zip(ids, digests, strict=True)):
            ended = msgspec.json.encode(Ended(**result(number), index_sha256=digest)).decode()
            db.execute("UPDATE attempt SET state = 'ended', epoch = 1, result = ? WHERE id = ?", (ended, id))


def result(number: int) -> dict[str, Any]:
    verified = "passed" if number % 3 else "failed"
    return {
        "claimed": "success",
        "verified": verified,
        "infra": None,
        "reason": "completed",
        "strategy": "scripted",
    }


def write_result(run: BundleWriter, run_id: str, number: int) -> str:
    id = f"mission-{number % 1000}.{number}"
    passed = result(number)["verified"]
    with run.nested(f"attempts/{id}.e1", run_id=bundle_id(run_id, id)) as bundle:
        named = {"attempt_id": id, "mission_id": f"mission-{number % 1000}", "replicate": number // 1000}
        bundle.write_json("attempt.json", {"schema_version": "proofbox.attempt/2", **named, "parent": None})
        outcome = Outcome(Verdict("passed", "agent", "claim"), Verdict(passed, "v", "c"), Verdict("ok", "p", "s"))
        bundle.write_json("outcome.json", outcome.as_json())
        figures = {"tokens": {}, "tool_calls": number % 9, "turn_ms": number % 5000}
        report = {"attempt_id": id, "retry_after": None, **figures, **result(number)}
        bundle.write_json("attempt.report.json", {"schema_version": "proofbox.attempt_report/2", **report})
    return index_sha256(bundle.path)


class Client:
    """A browser's part of the protocol: signs in, and measures."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid
        self._parts = urlsplit(url)
        answer, _ = self._get(f"/?{self._parts.query}", "")
        self.home = str(answer.headers["Location"])
        self._cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]

    def page(self, address: str) -> tuple[float, bytes]:
        """Return the milliseconds that a page takes, and the page."""
        start = time.perf_counter()
        _, body = self._get(self.home + address, self._cookie)
        return (time.perf_counter() - start) * 1000, body

    def memory_mb(self) -> float:
        """Return the server's peak memory."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024

    def cpu_ms(self) -> float:
        """Return the CPU time that the server has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")

    def _get(self, path: str, cookie: str) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection(str(self._parts.hostname), self._parts.port)
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer, body


@contextmanager
def serving(root: Path) -> Iterator[Client]:
    words = [sys.executable, "-m", "proofbox", "view", str(root), "--json"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        yield Client(json.loads((server.stdout or sys.stdin.buffer).readline())["url"], server.pid)
    finally:
        server.terminate()
        server.wait()


def attempt(client: Client, events: int, megabytes: int) -> bool:
    print(f"an attempt of {events} events and {megabytes} MB of output")
    address = f"attempt?at={quote('attempts/attempt-large')}"
    first, _ = client.page(address)
    before = client.cpu_ms()
    later = median(client.page(address)[0] for _ in range(5))
    cpu = (client.cpu_ms() - before) / 5
    deep, _ = client.page(f"timeline?at={quote('attempts/attempt-large')}&from={max(0, events - 100)}")
    paint = first_paint(client, address)
    memory = client.memory_mb()
    print(f"  page: {first:.0f} ms with the check of the evidence, {later:.0f} ms after it ({cpu:.0f} ms of CPU)")
    print(f"  last events: {deep:.0f} ms")
    print(f"  first paint in Chromium: {paint:.0f} ms (limit {PAINT_MS} ms)")
    print(f"  memory of the server: {memory:.0f} MB (limit {MEMORY_MB} MB)")
    return paint < PAINT_MS and memory < MEMORY_MB


def first_paint(client: Client, address: str) -> float:
    """Return the milliseconds from the request to the first paint."""
    with browsing() as page:
        page.goto(client.url)
        home = page.url
        times = []
        for _ in range(3):
            page.goto(home + address)
            times.append(page.evaluate(FIRST_PAINT))
    return median(times)


@contextmanager
def browsing() -> Iterator[Any]:
    """Open a page in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def run(client: Client, attempts: int) -> bool:
    print(f"the list of a run of {attempts} attempts")
    address = f"run?at={quote('runs/run-large')}"
    cold, body = client.page(address)
    start = time.perf_counter()
    during = [cold]
    while b"Checking the evidence" in body:
        time.sleep(0.2)
        taken, body = client.page(address)
        during.append(taken)
    checked = time.perf_counter() - start
    if b"Evidence valid" not in body:
        sys.exit("bench: the evidence of the run is not valid")
    pages = [f"{address}&sort=-calls&page={number}" for number in range(2, 7)] + [f"{address}&q=77&outcome=failed"]
    warm = median(client.page(each)[0] for each in pages)
    print(f"  first page: {cold:.0f} ms; until the evidence was checked, {checked:.1f} s: {median(during):.0f} ms")
    print(f"  later pages: {warm:.0f} ms (limit {LIST_MS} ms), {len(body)} bytes (limit {LIST_BYTES})")
    print(f"  memory of the server: {client.memory_mb():.0f} MB")
    return max(cold, warm, median(during)) < LIST_MS and len(body) <= LIST_BYTES


def export(place: Path) -> bool:
    print("the exported file of a demo run")
    file = place / "run.html"
    for words in (["demo", "--keep", str(place)], ["view", str(place / "out"), "--export", str(file)]):
        subprocess.run(
            [sys.executable, "-m", "proofbox", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
    size = file.stat().st_size
    with browsing() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        verdict = verdict_of(page, file)
        remote = [url for url in asked if not url.startswith("file:")]
        file.write_text(with_one_changed_byte(file.read_text()))
        changed = verdict_of(page, file)
    print(f"  size: {size} bytes (limit {EXPORT_BYTES})")
    print(f"  opened from disk: {verdict!r}; {len(remote)} network requests")
    print(f"  after a change of one byte: {changed!r}")
    return size < EXPORT_BYTES and not remote and "matches" in verdict and "does NOT match" in changed


def verdict_of(page: Any, file: Path) -> str:
    page.goto(file.as_uri())
    page.locator("body[data-ready]").wait_for()
    return str(page.locator("#proof .verdict").inner_text()).strip()


def with_one_changed_byte(page: str) -> str:
    """Change one byte of an embedded file: the first base64 character of the environment of the run."""
    at = page.index('"environment.json":"') + len('"environment.json":"')
    return page[:at] + ("f" if page[at] == "e" else "e") + page[at + 1 :]


if __name__ == "__main__":
    sys.exit(main())
