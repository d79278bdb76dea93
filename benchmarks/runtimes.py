"""Measures whether the native strategies can be recommended on this machine, with the real agents and a fake model.

    scripts/bench runtimes [--strategy ID] [--attempts N] [--rounds N] [--check]

For each native strategy whose agent is installed:

- reliability: the share of attempts without an infrastructure failure, as counted over the last 200 attempts;
- overhead: the time of a turn with a command in a sealed box, with the gateway and a record, over the time of the same
  turn of the bare agent (median of the ratios of interleaved turns, see `_pairs.py`);
- cross-talk: 20 attempts at the same time, each with a different word that must not be in the record of another. They
  use the same credential as the reliability attempts, whose success lets this many run at the same time.

The results are stored in the state directory, where `proofbox runtime list` and the default chain of strategies find
them. With --check the run fails if a strategy does not meet the criteria, or if Codex is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import anyio
from _pairs import paired_ratio
from agents import bare, fake_model, ours

from proofbox import run_suite
from proofbox.agents.health.counters import health_dir, read_health
from proofbox.agents.health.recommendation import MIN_ATTEMPTS, PARALLEL, RuntimeMeasurement, judge, record_measurement
from proofbox.agents.registry import installed
from proofbox.core.clock import SystemClock, isoformat
from proofbox.lab.reports.suite_run import SuiteRun
from proofbox.lab.run.events import RunStarted, SuiteEvent

NATIVE = {"codex_app_server": "codex", "claude_code": "claude", "acp": "opencode"}
"""Each native strategy, and its agent in the benchmark of agents."""
ROUNDS = 40
COMMAND_TURN = "[[run echo hello >> turns.txt]] [[say one two three]]"
HOLD_SECONDS = 60
"""How long each parallel attempt runs at least, so that all of them run at the same time: 20 agents take most of a
minute to start on two busy cores."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=NATIVE, action="append", help="measure only this one; repeatable")
    parser.add_argument("--attempts", type=int, default=MIN_ATTEMPTS, help="attempts for the reliability", metavar="N")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns for the overhead, interleaved", metavar="N")
    parser.add_argument("--check", action="store_true", help="exit 1 if a strategy does not meet the criteria")
    options = parser.parse_args()
    met = measure_all(options.strategy or NATIVE, options.attempts, options.rounds)
    return 1 if options.check and not met else 0


def measure_all(strategies: Iterable[str] = NATIVE, attempts: int = MIN_ATTEMPTS, rounds: int = ROUNDS) -> bool:
    """Measure strategies, and return whether all of those that are installed meet the criteria."""
    met = True
    health_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    for strategy in strategies:
        with tempfile.TemporaryDirectory(prefix="proofbox-bench-") as place, fake_model() as url:
            met = measure(strategy, Path(place), url, attempts, rounds) and met
    return met


def measure(strategy: str, place: Path, url: str, attempts: int, rounds: int) -> bool:
    settings = {"base_url": url.removesuffix("/v1") if strategy == "claude_code" else url, "model": "fake-model"}
    probe = anyio.run(installed().runtime(strategy).probe, settings)
    if not probe.available or not probe.compatible:
        print(f"{strategy}: not measured: {probe.reason}")
        return strategy != "codex_app_server"
    began = time.perf_counter()
    run_attempts(strategy, place / "reliability", settings, {"answer": ("[[say done]]", "42")}, attempts)
    seconds = time.perf_counter() - began
    parallel, completed, crosstalk = in_parallel(strategy, place / "parallel", settings)
    overhead = anyio.run(compare_turns, strategy, place, url, rounds)
    measured = RuntimeMeasurement(
        strategy=strategy,
        version=probe.version,
        overhead=round(overhead, 4),
        parallel=parallel,
        completed=completed,
        crosstalk=crosstalk,
        measured_at=isoformat(SystemClock().now()),
    )
    record_measurement(measured)
    judged = judge(read_health(strategy), measured)
    print(f"{strategy} {probe.version}: {attempts} attempts in {seconds:.0f} s")
    print(f"  {'ok' if judged.recommended else 'MISSED'}: {'; '.join(judged.reasons)}")
    return judged.recommended


# Attempts


def run_attempts(
    strategy: str, place: Path, settings: dict[str, str], missions: dict[str, tuple[str, str]], replicates: int = 1
) -> tuple[SuiteRun, int]:
    """Run missions, each with directives for the model and the text it must leave. Return the run and how many
    attempts ran at the same time."""
    lines = ['[suite]\nid = "bench"']
    for id, (directives, text) in missions.items():
        prompt = f"[[run echo {text} > answer.txt]] {directives}"
        verify = f"grep -qx {text} answer.txt"
        lines.append(f'[[mission]]\nid = "{id}"\nprompt = {json.dumps(prompt)}\nverify = {{ commands = ["{verify}"] }}')
    place.mkdir()
    (place / "suite.toml").write_text("\n".join(lines))
    running: set[str] = set()
    most = 0

    def hear(event: RunStarted | SuiteEvent) -> None:
        nonlocal most
        if isinstance(event, SuiteEvent):
            if event.event == "running":
                running.add(event.attempt_id)
                most = max(most, len(running))
            elif event.event in ("stopping", "ended"):
                running.discard(event.attempt_id)

    run = run_suite(
        place / "suite.toml",
        out=place / "out",
        strategies=f"{strategy}!",
        concurrency=PARALLEL,
        replicates=replicates,
        trust=True,
        on_event=hear,
        base_url=settings["base_url"],
        model=settings["model"],
    )
    return run, most


def in_parallel(strategy: str, place: Path, settings: dict[str, str]) -> tuple[int, int, int]:
    """Return how many attempts ran at the same time, how many completed, and how many contain another's word."""
    words = {f"m{number}": f"word-{number}-{os.urandom(8).hex()}" for number in range(PARALLEL)}
    missions = {id: (f"[[run sleep {HOLD_SECONDS}]] [[say done {word}]]", word) for id, word in words.items()}
    run, most = run_attempts(strategy, place, settings, missions)
    completed = sum(each.verified == "passed" for each in run.final)
    others = Counter(each.infra or each.reason for each in run.final if each.verified != "passed")
    if others:
        print(f"{strategy}: not completed: {', '.join(f'{why} {count}' for why, count in others.items())}")
    crossed = 0
    for attempt in run.final:
        record = b"".join(path.read_bytes() for path in Path(attempt.bundle).rglob("*") if path.is_file())
        crossed += any(word.encode() in record for id, word in words.items() if id != attempt.mission_id)
    return most, completed, crossed


# Turns


async def compare_turns(strategy: str, place: Path, url: str, rounds: int) -> float:
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    agent = NATIVE[strategy]
    async with bare(place, url, agent) as client, ours(place, url, agent, sandboxed=True) as session:
        ways = {"bare": client.turn, "ours": session.turn}
        for number in range(rounds + 2):  # the first two are warm-up rounds
            for who, play in list(ways.items())[:: 1 if number % 2 else -1]:
                began = time.perf_counter()
                await play(COMMAND_TURN)
                if number > 1:
                    times[who].append(time.perf_counter() - began)
    for workspace in ("bare-workspace", "workspace-True"):  # a turn whose command was refused would be shorter
        ran = len((place / workspace / "turns.txt").read_text().splitlines())
        if ran != rounds + 2:
            raise SystemExit(f"{strategy}: {ran} commands ran in {workspace}, not {rounds + 2}")
    ratio = paired_ratio(times["ours"], times["bare"])
    print(f"{strategy}: bare {1000 * median(times['bare']):.0f} ms a turn, in a box {ratio} times that")
    return ratio.value - 1


if __name__ == "__main__":
    sys.exit(main())
