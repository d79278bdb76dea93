"""The cost of evidence, compared with a minimal implementation of the same work in the same run.

    scripts/bench evidence [--rounds N] [--files N] [--lines N] [--entries N] [--check]

- strict load of a bundle, against a bare loop of hashlib in as many threads, and against `openssl dgst -sha256`;
- appending trace lines, chained, against a bare loop that hashes and writes the same lines;
- loading an index of many entries, against decoding it with msgspec;
- committing, per artifact, for a small and a large number of them.

With --check the run fails when a figure is past its threshold.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
from _history import at_most

from proofbox import BundleWriter, load_bundle
from proofbox.core.digest import sha256_hex
from proofbox.evidence.bundle.index import Artifact, index_of, parse_index
from proofbox.evidence.pool import cores

FILE_BYTES = 100_000
# An index is decoded, encoded again for comparison and hashed, and its paths and digests are checked. A loop that also
# gives each line its place in the chain and encodes it takes 1.46 times as long as one that only hashes and writes; a
# lock, checks and calls are the rest.
ONE_LINE, MANY_LINES, PARSED = 2.5, 1.4, 3.0
STRICT = 1.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds", metavar="N")
    parser.add_argument("--files", type=int, default=10_000, help="files of 100 KB in the bundle", metavar="N")
    parser.add_argument("--lines", type=int, default=1_000_000, help="trace lines to append", metavar="N")
    parser.add_argument("--entries", type=int, default=100_000, help="entries of the index", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 when a figure is past its threshold")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place:
        held = [
            strict_load(Path(place), options.files, options.rounds),
            append(Path(place), options.lines),
            load_index(options.entries),
            commit_cost(Path(place)),
        ]
    return 1 if options.check and not all(held) else 0


def strict_load(place: Path, files: int, rounds: int) -> bool:
    print(f"strict load of {files} files of {FILE_BYTES} bytes, {rounds} rounds, {cores()} threads")
    with BundleWriter.create(place / "load") as bundle:
        for number in range(files):
            block = hashlib.sha256(str(number).encode()).digest()
            bundle.write_bytes(f"{number % 100:02d}/{number}.bin", (block * (FILE_BYTES // 32 + 1))[:FILE_BYTES])
    paths = [str(path) for path in sorted(bundle.path.rglob("*.bin"))]
    (place / "names").write_text("\n".join(paths))
    ways: dict[str, Callable[[], object]] = {
        "bare hashlib": lambda: bare_loop(paths),
        "load_bundle": lambda: load_bundle(bundle.path),
        "openssl": lambda: subprocess.run(
            ["xargs", "-a", str(place / "names"), "openssl", "dgst", "-sha256"], stdout=subprocess.DEVNULL, check=True
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - began) * 1000)
    middle = {name: median(values) for name, values in times.items()}
    for name, value in middle.items():
        print(f"  {name:<13} {value:8.0f} ms   (least {min(times[name]):.0f})")
    ratio, other = middle["load_bundle"] / middle["bare hashlib"], middle["load_bundle"] / middle["openssl"]
    took = {name: f"{value:.0f} ms" for name, value in middle.items()}
    held = [
        verdict(f"strict load, to {name}", each, most, took["load_bundle"], took[name])
        for name, each, most in (("bare hashlib", ratio, STRICT), ("openssl", other, 1.0))
    ]
    return all(held)


def bare_loop(paths: list[str]) -> None:
    def run(mine: list[str]) -> None:
        for path in mine:
            with open(path, "rb", buffering=0) as stream:
                hashlib.sha256(stream.read()).hexdigest()

    threads = [threading.Thread(target=run, args=(paths[number :: cores()],)) for number in range(cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def append(place: Path, lines: int) -> bool:
    """Compare CPU time, in turns: waiting for the disk is the same for both."""
    print(f"{lines} trace lines of a bundle's log, chained, synced in batches")
    events = [
        {"event": "tool_call", "attempt": "att-01", "step": n, "tool": "run_command", "exit_code": 0}
        for n in range(1000)
    ]
    held = []
    with BundleWriter.create(place / "append") as bundle, open(place / "bare", "ab", buffering=0) as bare:
        for name, batch, most in (("one at a time", 1, ONE_LINE), ("100 at a time", 100, MANY_LINES)):
            groups = [events[at : at + batch] for at in range(0, len(events), batch)]
            with bundle.open_log(f"{batch}.jsonl") as log:
                log.extend(events)
                encoded = (bundle.path / f"{batch}.jsonl").read_bytes().splitlines(keepends=True)
                ours = floor = 0.0
                for _ in range(lines // len(events)):
                    began = time.process_time()
                    if batch == 1:
                        for event in events:
                            log.append(event)
                    else:
                        for group in groups:
                            log.extend(group)
                    between = time.process_time()
                    for line in encoded:
                        hashlib.sha256(line).hexdigest()
                        bare.write(line)
                    ours, floor = ours + between - began, floor + time.process_time() - between
            print(f"  {name:<13} {ours / lines * 1e6:8.1f} µs of CPU time a line, bare {floor / lines * 1e6:.1f}")
            took = [f"{each / lines * 1e6:.1f} µs" for each in (ours, floor)]
            held.append(verdict(f"log lines, {name}, to a loop that hashes and writes", ours / floor, most, *took))
    return all(held)


def load_index(entries: int) -> bool:
    print(f"an index of {entries} entries")
    digest = sha256_hex(b"")
    artifacts = [Artifact(f"{n % 100:02d}/{n:06d}.json", n, digest, "example/1") for n in range(entries)]
    data = index_of("run-1", digest, "ok", artifacts, ()).to_bytes()
    times, floor = [], []
    for _ in range(5):
        began = time.process_time()
        msgspec.json.decode(data, type=_Index)
        between = time.process_time()
        parse_index(data)
        times.append(time.process_time() - between)
        floor.append(between - began)
    print(f"  parsed and checked in {median(times) * 1000:.0f} ms of CPU time, decoded in {median(floor) * 1000:.0f}")
    took = [f"{median(each) * 1000:.0f} ms" for each in (times, floor)]
    return verdict(f"an index of {entries} entries, to msgspec", median(times) / median(floor), PARSED, *took)


class _Entry(msgspec.Struct):
    path: str
    file_size: int
    sha256: str
    schema_version: str


class _Index(msgspec.Struct):
    artifacts: list[_Entry]


def commit_cost(place: Path) -> bool:
    print("commit, per artifact of 1 kB")
    each = {}
    for count in (500, 10_000):
        times = []
        for number in range(3):
            with BundleWriter.create(place / f"commit-{count}-{number}") as bundle:
                for n in range(count):
                    bundle.write_bytes(f"{n % 50}/{n}", b"x" * 1000)
                os.sync()  # so that only the commit is timed, and not the writeback of earlier writes
                began = time.perf_counter()
            times.append((time.perf_counter() - began) / count * 1e6)
        each[count] = median(times)
        print(f"  {count:6d} artifacts: {each[count]:7.1f} µs each")
    took = [f"{each[count]:.0f} µs" for count in (10_000, 500)]
    return verdict("commit of one of 10000 artifacts, to one of 500", each[10_000] / each[500], 1.5, *took)


def verdict(name: str, ratio: float, threshold: float, ours: str, theirs: str) -> bool:
    print(f"  ratio {name}: {ratio:.2f}   (at most {threshold}) {'ok' if ratio <= threshold else 'MISSED'}")
    return at_most(name, ratio, threshold, ours=ours, theirs=theirs)


if __name__ == "__main__":
    sys.exit(main())
