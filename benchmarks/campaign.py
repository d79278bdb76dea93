"""Whether the native strategies can be recommended for campaigns, and the cost of the report of a large campaign.

    scripts/bench campaign [--part strategies|report] [--attempts N] [--check]

strategies: reliability, overhead and cross-talk of each native strategy, as measured by `scripts/bench runtimes`, which
has options for a single one.

report: seconds and memory of `campaign report`. A campaign of two flows on 100 missions is planned as usual. One
attempt is run; the bundles of the others are written from it, each with its own ids, and the campaign is then resumed,
which commits it.

With --check, the run fails if a strategy does not meet the criteria, or a figure exceeds its threshold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import runtimes

import proofbox
from proofbox.errors import RunInterrupted
from proofbox.evidence.bundle.paths import STATUS
from proofbox.evidence.bundle.reader import Bundle, load_bundle
from proofbox.evidence.bundle.writer import BundleWriter
from proofbox.lab.attempt import artifacts
from proofbox.lab.campaign.layout import flow_out
from proofbox.lab.campaign.registration import read_manifest
from proofbox.lab.run.ledger import Attempt, Ledger
from proofbox.lab.run.plan import ledger_path
from proofbox.lab.run.running import conduct_run

MAX_SECONDS = 10.0
MAX_MEMORY_MB = 300
MISSIONS = 100
FLOWS = 2
LEASE = 3600.0
CAMPAIGN = """
[campaign]
id = "bench"
replicates = {replicates}
[[missions]]
suite = "suite.toml"
"""
FLOW = '[[flow]]\nid = "flow-{0}"\nrunner = {{ type = "scripted" }}\n'
MISSION = """
[[mission]]
id = "m{0}"
prompt = "Write 42 into answer.txt"
verify = {{ commands = ["grep -qx 42 answer.txt"] }}
[[mission.script.step]]
tool = "write_file"
args = {{ path = "answer.txt", content = "42\\n" }}
[[mission.script.step]]
say = "done"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["strategies", "report"], help="measure only this part")
    parser.add_argument("--attempts", type=int, default=10_000, metavar="N", help="attempts of the reported campaign")
    parser.add_argument("--check", action="store_true", help="exit 1 if a criterion is not met")
    options = parser.parse_args()
    met = options.part == "report" or runtimes.measure_all()
    if options.part != "strategies":  # the last part, because it changes the settings of this process
        met = measure_report(options.attempts) and met
    return 1 if options.check and not met else 0


def measure_report(planned: int) -> bool:
    replicates = max(1, planned // (MISSIONS * FLOWS))
    with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place:
        os.environ["XDG_STATE_HOME"] = place
        os.fsync = os.fdatasync = lambda fd: None  # noqa: ARG005 -- only read: it need not survive a power cut
        os.chdir(place)
        attempts = fill(write_campaign("large", MISSIONS, replicates), template())
        seconds, processor, memory = report(Path("large/out"))
    figure = f"{seconds:.1f} s, {processor:.1f} s of processor time"
    held = [
        told(f"report of {attempts} attempts", figure, f"under {MAX_SECONDS:g} s", seconds < MAX_SECONDS),
        told("memory", f"{memory} MB", f"under {MAX_MEMORY_MB}", memory < MAX_MEMORY_MB),
    ]
    return all(held)


def write_campaign(name: str, missions: int, replicates: int) -> Path:
    place = Path(name)
    place.mkdir()
    (place / "suite.toml").write_text('[suite]\nid = "bench"\n' + "".join(map(MISSION.format, range(missions))))
    text = CAMPAIGN.format(replicates=replicates) + "".join(map(FLOW.format, range(FLOWS)))
    (place / "campaign.toml").write_text(text)
    return place / "campaign.toml"


def template() -> Bundle:
    """Run a small campaign and return the bundle of one of its attempts."""
    spec = write_campaign("small", 1, 1)
    proofbox.run_campaign(spec, out="small/out")
    return load_bundle(next(Path("small/out/flows").glob("*/*/attempts/*")))


def fill(spec: Path, made: Bundle) -> int:
    """Plan the campaign, write the bundles of its attempts, and commit it. Return their number."""
    out, stop = spec.parent / "out", threading.Event()
    stop.set()
    with contextlib.suppress(RunInterrupted):
        proofbox.run_campaign(spec, out=out, stop=stop)
    artifacts_of = {path: made.read_bytes(path, limit=1 << 24) for path in made.artifacts if path != STATUS}
    count = 0
    began = time.perf_counter()
    for run in read_manifest(out).runs:
        place = flow_out(out, run.flow)
        with contextlib.suppress(RunInterrupted):
            conduct_run(place, run.run_id, None, stop)  # opens the run's bundle
        with Ledger(ledger_path(place, run.run_id)) as ledger:
            epoch = ledger.begin_epoch()
            while (attempt := ledger.claim("bench", epoch, LEASE)) is not None:
                write_bundle(place / run.run_id, run.run_id, attempt, artifacts_of)
                count += 1
    print(f"  {count} attempts written in {time.perf_counter() - began:.1f} s", flush=True)
    began = time.perf_counter()
    found = proofbox.resume_campaign(out)
    if not found.ok:
        raise SystemExit(f"the campaign is not ok: {found.error}")
    print(f"  committed in {time.perf_counter() - began:.1f} s", flush=True)
    return count


def write_bundle(run_dir: Path, run_id: str, attempt: Attempt, contents: dict[str, bytes]) -> None:
    changes = {
        "run_id": run_id,
        "attempt_id": attempt.id,
        "mission_id": attempt.mission,
        "replicate": attempt.replicate,
    }
    place = run_dir / attempt.path
    place.parent.mkdir(parents=True, exist_ok=True)
    bundle = BundleWriter.create_at(place, expected=artifacts.EXPECTED, run_id=artifacts.bundle_id(run_id, attempt.id))
    with bundle:
        for path, data in contents.items():
            if path.endswith(".json"):
                document: dict[str, Any] = json.loads(data)
                bundle.write_json(path, {**document, **{k: v for k, v in changes.items() if k in document}})
            elif path.endswith(".jsonl"):
                log = bundle.open_log(path)
                for line in data.splitlines():
                    log.append({k: v for k, v in json.loads(line).items() if k not in ("prev", "seq")})
                log.close()
            else:
                bundle.write_bytes(path, data)


def report(out: Path) -> tuple[float, float, int]:
    """Return the seconds, processor seconds and megabytes of `campaign report`, in a separate process."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "proofbox.cli", "campaign", "report", str(out), "--json"],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, processor, used.ru_maxrss >> 10


def told(name: str, figure: str, threshold: str, ok: bool) -> bool:
    print(f"{name:<30} {figure}   ({threshold}) {'ok' if ok else 'MISSED'}")
    return ok


if __name__ == "__main__":
    sys.exit(main())
