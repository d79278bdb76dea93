"""The pages in Debian's Chromium: what a reader sees and does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import msgspec
import pytest
from hostile import MARKER
from viewer_fixtures import Sample, Tab

import proofbox
from proofbox import BundleWriter
from proofbox.cli import main
from proofbox.lab.attempt.artifacts import index_sha256
from proofbox.lab.run.ledger import Ended, Ledger, PlannedAttempt
from proofbox.lab.run.plan import Plan, ledger_path
from proofbox.viewer.export import export_html

TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll("*")].filter(each => each.getBoundingClientRect().right > innerWidth + 1
        && !each.closest(".table, .pane, figure")).map(each => each.outerHTML.slice(0, 200))"""
pytestmark = [pytest.mark.needs("bubblewrap", "chromium"), pytest.mark.xdist_group("viewer")]


def test_reader_goes_from_the_list_to_a_run_and_to_an_attempt(tab: Tab, sample: Sample) -> None:
    page = tab.open()
    page.locator("select[name=kind]").select_option("plan_run")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**kind=plan_run**")
    assert sorted(page.locator("tbody .name").all_inner_texts()) == ["plan-1", "plan-2"]
    page.get_by_role("link", name="proofbox").click()
    page.get_by_role("link", name=sample.run).click()
    assert "Evidence valid" in page.locator(".integrity").inner_text()
    assert page.locator(".tile.passed dd").inner_text().startswith("2")
    page.locator(".attempts").get_by_role("link", name="lies.1").click()
    outcomes = {
        each.locator("dt").inner_text(): each.locator("dd").first.inner_text()
        for each in page.locator(".outcome").all()
    }
    assert {name: text.split("\n")[-1].lstrip("✓✗○ ") for name, text in outcomes.items()} == {
        "Claimed": "unknown",
        "Verified": "failed",
        "Infrastructure": "ok",
    }
    shown = page.get_by_role("region", name="Standard output of the verifier").inner_text()
    assert "<script>window.pwned=1</script>" in shown
    page.locator(".crumbs a").click()
    assert page.locator("h1").inner_text().endswith(sample.run)


def test_filters_and_pages_are_in_the_address(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"run?at=out/{sample.run}")
    page.locator("select[name=outcome]").select_option("failed")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**outcome=failed**")
    assert page.locator(".attempts tbody .name").all_inner_texts() == ["lies.1"]
    page.get_by_role("link", name="Reset").click()
    page.wait_for_url(f"**{sample.run}")
    page.get_by_label("Search").fill("WORKS")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=WORKS**")
    assert page.locator(".attempts tbody .name").all_inner_texts() == ["works.1"]
    assert page.locator("table.grid").count() == 0, "a list of some attempts is not below the results of all"
    page.get_by_role("link", name="Reset").click()
    page.wait_for_url(f"**{sample.run}")
    page.locator("select[name=sort]").select_option("mission")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**sort=mission**")
    assert page.locator(".attempts tbody .name").all_inner_texts() == ["lies.1", "other.1", "works.1"]
    page = tab.open(f"run?at=out/{sample.run}&view=grid")
    page.get_by_role("link", name="lies").click()
    assert page.locator(".attempts tbody .name").all_inner_texts() == ["lies.1"]


def test_keys_move_search_open_and_explain(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"run?at=out/{sample.run}")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    page.locator("#help").wait_for(state="hidden")
    for key in "jjk":
        page.keyboard.press(key)
    assert page.locator("tr.here .name").inner_text() == "works.1"
    page.keyboard.press("Enter")
    page.wait_for_url("**/attempt?**")


def test_attempt_shows_steps_diffs_files_output_and_forks(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"attempt?at={sample.at('works.1')}")
    first = page.locator(".entry.tool").first
    assert first.locator(".source").inner_text() == "observed"
    first.get_by_text("Changed 1 path").click()
    assert first.locator(".diff .add").inner_text() == "+42"
    first.get_by_text("Files after it").click()
    first.locator(".files .path", has_text="answer.txt").wait_for()
    first.get_by_text("Fork from here").click()
    assert "attempt fork" in first.locator(".copy code").inner_text()
    first.get_by_role("button", name="Copy").click()
    first.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == first.locator(".copy code").inner_text()
    assert first.locator(".policy").inner_text().endswith("by the rule accept *")
    first.locator(".step").click()
    page.wait_for_url("**#step-1")
    message = page.locator(".entry.message")
    assert message.locator(".source").inner_text() == "agent-reported"
    page.get_by_label("Messages").uncheck()
    assert not message.is_visible()
    page.get_by_label("Tools").uncheck()
    assert not first.is_visible()
    page.get_by_label("Tools").check()
    assert "1" in page.locator(".entry.bad .fact").first.inner_text(), "a failed command is marked"


def test_content_of_a_file_after_a_step_is_shown(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"attempt?at={sample.at('works.1')}")
    page.locator(".entry.tool").first.get_by_text("Files after it").click()
    page.get_by_role("link", name="answer.txt").click()
    assert page.locator("h1").inner_text() == "answer.txt after step 1"
    assert page.locator(".pane").inner_text().strip() == "42"
    assert sha256(b"42\n").hexdigest() in page.locator(".file-facts").inner_text()
    page.get_by_role("link", name="All files after step 1").click()
    page.get_by_role("link", name="hostile.txt").click()
    shown = page.locator(".pane").inner_text()
    assert "<script>window.pwned=1</script>" in shown
    assert r"\x1b[31mred" in shown, "a file is not a terminal"
    assert page.evaluate(f"window.{MARKER} === undefined")


def test_timeline_has_reasoning_idle_time_usage_and_requests_to_the_model(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"attempt?at={sample.hostile}")
    assert page.locator(".entry.idle").first.inner_text().strip() == "3.0 s without an event"
    page.get_by_role("checkbox", name="Idle time").uncheck()
    assert not page.locator(".entry.idle").first.is_visible()
    page.get_by_role("checkbox", name="Reasoning").uncheck()
    assert not page.locator(".entry.reasoning").is_visible()
    row = page.locator("section", has=page.get_by_role("heading", name="Tokens")).locator("tbody tr")
    assert row.locator("td").all_inner_texts()[1:] == ["1", "2"]
    request = tab.open(f"attempt?at={sample.long}").locator(".entry.model")
    assert request.locator("strong").inner_text() == "Model request seen by the gateway"
    assert request.locator(".source").inner_text() == "gateway"


def test_long_output_is_coloured_and_continues_on_demand(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"attempt?at={sample.long}")
    call = page.locator(".entry.tool").first
    call.get_by_text("Output").first.click()
    assert call.locator(".pane .fg2").inner_text() == "12 passed"
    call.get_by_text("Show all").click()
    call.get_by_text("Continue").click()
    call.get_by_text("108909 of 108909").wait_for()
    lines = "".join(call.locator(".pane.text").all_text_contents()[1:]).splitlines()
    assert lines == ["12 passed", *map(str, range(20_000))], "no line is lost or cut between the parts"


def test_line_of_a_megabyte_is_cut_and_continues(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"attempt?at={sample.long}")
    call = page.locator(".entry.tool").nth(1)
    call.get_by_text("Output").first.click()
    call.get_by_text("Show all").click()
    call.get_by_text("Continue").wait_for()
    assert len(call.locator(".pane.text").last.inner_text()) == 1 << 16


def test_hostile_text_runs_no_script_and_loads_nothing(tab: Tab, sample: Sample) -> None:
    for address in (
        "",
        "?q=<script>window.pwned=1</script>",
        f"run?at=out/{sample.run}&q=<img src=x onerror=window.pwned=1>&mission=</script>",
        f"attempt?at={sample.at('lies.1')}",
        f"attempt?at={sample.hostile}",
        f"open?at={sample.hostile}",
        f"diff?at={sample.hostile}&step=0",
        f"files?at={sample.at('lies.1')}",
        f"bundle?at={sample.plans[1]}",
        f"open?at={sample.delivery}",
        f"compare?a={sample.plans[0]}&b={sample.plans[1]}",
        f"compare?a={sample.hostile}&b={sample.at('lies.1')}",
    ):
        page = tab.open(address)
        for summary in page.locator("details > summary").all():
            summary.click()
        page.locator("h1").wait_for()
        assert page.evaluate(f"window.{MARKER} === undefined")
        assert page.locator("iframe, script:not([src]), main img, [onerror], [onload]").count() == 0
        text = page.locator("main").inner_text()
        assert not set(text) & set("\x1b\x00\x07\u202e\u202c\u2066\u200b\ufeff\U000e0041")
    assert {each.split("/")[2] for each in tab.requests} == {tab.home.split("/")[2]}
    page = tab.open(f"attempt?at={sample.hostile}")
    assert r"\u202e" in page.locator("h1").inner_text(), "characters that reorder text are shown"
    assert r"\x1b[2J" in page.locator(".pane").first.inner_text()


def test_damaged_evidence_is_named_and_shows_no_outcome(tab: Tab, sample: Sample) -> None:
    place = sample.root / sample.at("other.1") / "feedback.json"
    kept = place.read_bytes()
    try:
        place.write_bytes(kept.replace(b"done", b"DONE"))
        page = tab.open(f"attempt?at={sample.at('other.1')}")
        assert "digest_mismatch feedback.json" in page.locator(".integrity.invalid").inner_text()
        assert {
            each.split("○")[-1].strip() for each in page.locator(".outcome dd:first-of-type").all_inner_texts()
        } == {"unknown"}
    finally:
        place.write_bytes(kept)
    page = tab.open(f"attempt?at={sample.at('other.1')}")
    assert "Evidence valid" in page.locator(".integrity").inner_text()


def test_note_is_stored_beside_the_evidence_and_exported(tab: Tab, sample: Sample, tmp_path: Path) -> None:
    page = tab.open(f"attempt?at={sample.at('other.1')}")
    page.get_by_text("Add a note").click()
    page.get_by_label("Note", exact=True).fill("look <script>window.pwned=1</script>\nagain")
    page.get_by_label("Tags").fill("flaky, reviewed")
    page.get_by_label("Step").fill("1")
    page.get_by_role("button", name="Save").click()
    page.locator(".note").wait_for()
    assert "<script>" in page.locator(".note").inner_text()
    assert page.locator(".tag").all_inner_texts() == ["flaky", "reviewed"]
    assert "Evidence valid" in page.locator(".integrity").inner_text()
    assert (sample.root / "out" / f"{sample.run}.notes.jsonl").is_file()
    export_html(sample.root / sample.at("other.1"), tmp_path / "a.html")
    assert "not part of the evidence" in (tmp_path / "a.html").read_text()


def test_two_attempts_are_compared_from_their_first_divergence(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"attempt?at={sample.at('works.1')}")
    page.locator("select[name=b]").select_option(label="other.1.e1")
    page.get_by_role("button", name="Compare steps").click()
    assert page.get_by_role("heading", name="They diverge at step 2").is_visible()
    rows = page.locator(".steps tbody tr")
    assert [rows.nth(number).get_attribute("class") for number in range(2)] == ["same", "differs"]
    rows.first.get_by_text("Changed 1 path").first.click()
    assert rows.first.locator(".diff .add").first.inner_text() == "+42"


def test_two_plan_runs_are_compared(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"open?at={sample.plans[0]}")
    page.locator("select[name=b]").select_option(label="plan-2")
    page.get_by_role("button", name="Compare decisions").click()
    assert "verified while they were read" in page.locator(".integrity.valid").inner_text()
    assert page.locator(".tile dd").all_inner_texts() == ["1", "2", "1"], "same, changed, facts"
    changed = [row.locator("td").all_inner_texts()[-2:] for row in page.locator("tr.differs").all()]
    assert changed == [["deny", "allow"], ["absent", "deny"]]
    page.locator("table").first.get_by_role("link", name="plan-2").click()
    assert page.locator("h1").inner_text() == "Plan run plan-2"


@contextmanager
def run_in_progress(out: Path, id: str, attempts: int) -> Iterator[tuple[BundleWriter, Ledger]]:
    """Write a run that has planned some attempts, and commit it at the end."""
    plan = Plan(run_id=id, suite_name="s", suite_source="", base="", chain="", chain_origin="", concurrency=1)
    about = {"plan": msgspec.json.encode(plan).decode(), "epoch": "1"}
    planned = [PlannedAttempt(f"late.{number}", "late", number) for number in range(1, attempts + 1)]
    with BundleWriter.create(out, run_id=id) as run, Ledger.create(ledger_path(out, id), about, planned) as ledger:
        run.write_json("environment.json", {"isolation": "process"})
        yield run, ledger


def test_long_list_is_paged_and_the_page_is_in_the_address(tab: Tab, sample: Sample) -> None:
    with run_in_progress(sample.root / "live", "run-long", 60):
        page = tab.open("run?at=live/run-long")
        page.get_by_role("link", name="Next").click()
        page.wait_for_url("**page=2**")
        assert page.locator(".attempts tbody .name").all_inner_texts() == [f"late.{number}" for number in range(51, 61)]
        assert page.locator(".pager").inner_text().split("\n")[1] == "Page 2 of 2"


def test_page_follows_a_run_until_it_commits(tab: Tab, sample: Sample) -> None:
    out, id = sample.root / "live", "run-live"
    with run_in_progress(out, id, 2) as (run, ledger):
        page = tab.open(f"run?at=live/{id}")
        page.get_by_text("0 of 2 attempts ended").wait_for()
        page.evaluate("window.same = true")
        for number, results in ((1, "0"), (2, "1")):
            attempt = ledger.claim("worker", 1, 600.0)
            assert attempt is not None
            members = {"claimed": "success", "verified": "passed", "infra": None, "reason": "completed"}
            with run.nested(attempt.path, run_id=f"{id}.{attempt.id}") as inner:
                pass
            page.get_by_text(f"{results} of 2 attempts ended").wait_for()
            ended = Ended(**members, strategy="scripted", index_sha256=index_sha256(inner.path))  # type: ignore[arg-type]
            ledger.end(attempt, ended)
            page.get_by_text(f"{number} of 2 attempts ended").wait_for()
        assert page.locator(".tile.passed dd").inner_text().startswith("2")
    # After the commit, evidence counts. During it, the page may say that the index is missing.
    page.locator(".integrity.invalid", has_text="ledger_disagrees").wait_for()
    assert page.evaluate("window.same"), "the page was not loaded again"


def _compares_two_flows(page: Any) -> None:
    assert "Evidence valid" in page.locator(".integrity").inner_text()
    assert [each.split("\xa0%")[0] for each in page.locator(".rate").all_inner_texts()] == ["100.0", "0.0"]
    assert "agent − solver" in page.get_by_role("heading", name="Paired difference").inner_text()
    row = page.locator("tbody tr", has_text="lies")
    assert row.locator("th, td").all_inner_texts()[:4] == ["lies", "✓ 1/1 passed", "✗ 0/1 passed", "solver"]
    page.get_by_role("link", name="solver is better 1").click()
    page.wait_for_url("**show=first**")
    assert page.locator("tbody tr[data-nav]").count() == 1


def test_campaign_has_plots_tables_and_a_file(tab: Tab, sample: Sample, tmp_path: Path) -> None:
    page = tab.open()
    page.get_by_role("link", name=sample.campaign, exact=True).click()
    page.get_by_text("Evidence valid").wait_for()
    assert page.locator("svg.plot .point").count() >= 3, "rates, and the paired difference"
    assert page.locator(".cell.failed").inner_text().endswith("0/1 passed")
    page.get_by_role("link", name="solver").first.click()
    page.locator(".attempts .name", has_text="lies.1").wait_for()
    page.go_back()
    page.locator("select[name=a]").select_option("solver")
    page.locator("select[name=b]").select_option("agent")
    page.get_by_role("button", name="Compare flows").click()
    _compares_two_flows(page)
    page.get_by_role("link", name="Compare the attempts at lies").click()
    page.get_by_role("heading", name="Compare two attempts").wait_for()
    file = tmp_path / "campaign.html"
    assert main(["campaign", "report", str(sample.root / sample.campaign), "--html", str(file)]) == 0
    assert proofbox.verify(file).ok
    page.goto(file.as_uri())
    page.get_by_text("Embedded evidence matches its index").wait_for()
    assert page.locator(".page:not([hidden]) svg.plot").count() >= 2
    page.get_by_role("link", name="agent", exact=True).click()
    page.get_by_role("link", name="lies.1").click()
    page.locator(".page:not([hidden]) .outcome.verified.failed").wait_for()
    page.get_by_role("link", name="All attempts of the run").click()
    page.get_by_role("link", name="Campaign first").click()
    page.locator(".page:not([hidden]) svg.plot").first.wait_for()


def test_pages_are_accessible_and_fit_every_width(
    browser: Any, server: str, sample: Sample, axe: Callable[..., list[str]]
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server)
    home = page.url
    for address in (
        "",
        f"run?at=out/{sample.run}",
        f"run?at=out/{sample.run}&view=grid&q=nothing",
        f"attempt?at={sample.at('works.1')}",
        f"attempt?at={sample.hostile}",
        f"files?at={sample.at('lies.1')}",
        f"campaign?at={sample.campaign}",
        f"flows?at={sample.campaign}&a=agent&b=solver",
        f"bundle?at={sample.delivery}",
        f"bundle?at={sample.plans[1]}",
        f"compare?a={sample.plans[0]}&b={sample.plans[1]}",
        f"compare?a={sample.hostile}&b={sample.at('lies.1')}",
        "run?at=nothing",
        "/",
    ):
        page.goto(urljoin(home, address))
        page.locator("[data-refresh]").wait_for(state="detached")
        page.evaluate("document.querySelectorAll('details:not(.lazy)').forEach(each => each.open = true)")
        assert axe(page) == [], address
        for width in (360, 1280, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(TOO_WIDE) == [], (address, width)
    context.close()


def test_plot_that_is_wider_than_a_phone_scrolls_and_shows_that_it_does(tab: Tab, sample: Sample) -> None:
    page = tab.open(f"campaign?at={sample.campaign}")
    plot = page.locator("figure").first
    wide = "each => [each.scrollWidth > each.clientWidth, getComputedStyle(each).backgroundAttachment]"
    page.set_viewport_size({"width": 360, "height": 800})
    scrolls, shadows = plot.evaluate(wide)
    assert scrolls
    assert shadows.startswith("local, local, scroll, scroll"), "covers that move away from the shadows at the ends"
    page.set_viewport_size({"width": 768, "height": 800})
    assert plot.evaluate(wide)[0] is False


def test_screenshots_of_the_documentation_exist() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    page = (docs / "viewer.md").read_text()
    for name in ("run", "attempt", "campaign"):
        assert f"assets/viewer-{name}.png" in page
        assert (docs / "assets" / f"viewer-{name}.png").is_file()
