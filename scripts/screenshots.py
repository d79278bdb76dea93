"""Makes the pictures of docs/viewer.md: `scripts/screenshots [DIRECTORY]`.

Runs `proofbox demo` and a campaign in a temporary directory, opens their pages in Debian's Chromium, and writes
viewer-run.png, viewer-attempt.png and viewer-campaign.png.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
SUITE = """
[suite]
id = "numbers"
"""
MISSION = """
[[mission]]
id = "{id}"
prompt = "Write the answer into answer.txt."
verify = {{ commands = ["grep -qx 42 answer.txt"], files = "hidden" }}
solution = "solve.sh"
[[mission.script.step]]
tool = "write_file"
args = {{ path = "answer.txt", content = "{answer}\\n" }}
[[mission.script.step]]
say = "done"
"""
CAMPAIGN = """
[campaign]
id = "agents"
replicates = 2
[[missions]]
suite = "suite.toml"
[[flow]]
id = "agent"
runner = { type = "scripted" }
[[flow]]
id = "solver"
runner = { type = "oracle" }
"""


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "assets"
    with tempfile.TemporaryDirectory(prefix="proofbox-screenshots-") as scratch:
        place = Path(scratch)
        demo = place / "demo"
        _proofbox(place, "demo", "--keep", str(demo))
        _write_campaign(place)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        _proofbox(place, "campaign", "run", "campaign.toml", "--out", str(demo / "campaign"))
        _shoot(demo, target)
    return 0


def _proofbox(place: Path, *words: str) -> None:
    command = [sys.executable, "-I", "-m", "proofbox", *words]
    subprocess.run(command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def _write_campaign(place: Path) -> None:
    names = (
        "parser-unicode",
        "cache-eviction",
        "retry-backoff",
        "cli-help",
        "date-rollover",
        "csv-quotes",
        "utf8",
        "cwd",
    )
    missions = [MISSION.format(id=id, answer=41 if number % 3 == 1 else 42) for number, id in enumerate(names)]
    (place / "suite.toml").write_text(SUITE + "".join(missions))
    (place / "campaign.toml").write_text(CAMPAIGN)
    (place / "hidden").mkdir()
    (place / "hidden" / "expected.txt").write_text("42\n")
    (place / "solve.sh").write_text("echo 42 > answer.txt\n")


def _shoot(demo: Path, target: Path) -> None:
    from proofbox.viewer.web.serve import serving

    run = (demo / "out" / "LATEST").read_text().strip()
    pages: dict[str, tuple[str, Literal["light", "dark"]]] = {
        "run": (f"run?at=out/{run}", "light"),
        "attempt": (f"attempt?at=out/{run}/attempts/lie.1.e1", "dark"),
        "campaign": ("campaign?at=campaign", "light"),
    }
    with serving(demo) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, (address, scheme) in pages.items():
            context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 860})
            page = context.new_page()
            page.goto(url)
            home = page.url
            page.goto(home + address)
            page.get_by_text("Evidence valid").wait_for()
            for summary in page.locator(".entry.tool summary", has_text="Changed").all()[:1]:
                summary.click()
                page.locator(".pane.diff .add").first.wait_for()
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=target / f"viewer-{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
