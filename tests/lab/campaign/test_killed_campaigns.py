"""A campaign that is killed and resumed ends like an undisturbed one, and its results can be published."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from campaign_files import comparable, killed, scores, write_three_flows
from suites import serving_model

import proofbox
from proofbox.lab.campaign.publishing import check_publishable
from proofbox.lab.campaign.running import resume_campaign
from proofbox.lab.reports.campaigns.loading import load_campaign
from proofbox.lab.reports.campaigns.results import CampaignReport

pytestmark = pytest.mark.needs("bubblewrap", "codex")


def test_campaign_killed_and_resumed_equals_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: Callable[[int, int], int]
) -> None:
    """The soak has 3 flows, 10 missions and 5 replicates, and kills twice."""
    missions, replicates, kills = rounds(1, 10), rounds(1, 5), rounds(1, 2)
    monkeypatch.chdir(tmp_path)
    generator = random.Random()  # noqa: S311 -- when to kill, not a secret
    with serving_model() as model:
        spec = write_three_flows(model, missions=missions, replicates=replicates, concurrency=rounds(1, 4))

        events: list[object] = []

        async def run() -> CampaignReport:
            return await proofbox.run_campaign_async(spec, out="undisturbed", trust=True, on_event=events.append)

        undisturbed = anyio.run(run)
        words = ["run", spec, "--out", "out"]
        for _ in range(kills):
            after = generator.randrange(1, len(events) // (kills + 1))  # it has not ended by then
            killed(words, after)
            print(f"killed after {after} of about {len(events)} events")
            words = ["resume", "out"]
        resumed = resume_campaign("out")
    assert undisturbed.ok, undisturbed.error
    assert resumed.ok, resumed.error
    assert comparable(resumed.results) == comparable(undisturbed.results)
    assert load_campaign("out") == resumed
    assert scores(resumed)["m0"] == {
        "codex": (replicates, replicates),
        "process": (replicates, replicates),
        "scripted": (0, replicates),
    }
    if missions > 1:
        assert scores(resumed)["m1"] == dict.fromkeys(("codex", "process", "scripted"), (replicates, replicates))
    published = check_publishable("out")
    assert (published.ok, published.reasons) == (True, ())
    assert published.packet is not None
    assert proofbox.verify(published.packet).ok
