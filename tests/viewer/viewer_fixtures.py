"""Fixtures: one run with hostile text, one server and one browser for all tests of the viewer in a worker.

A plugin of tests/conftest.py, because the fixtures are shared by several files. It imports what it needs when it is
used, so that other tests do not pay for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hostile import BIDI, LINE, NAME, TERMINAL, TEXT

if TYPE_CHECKING:
    from proofbox.viewer.reading import OpenedEvidence

CHECK = {"commands": ["cat result.txt; grep -qx 42 answer.txt"]}


@dataclass(frozen=True)
class Sample:
    """A directory with evidence: a run, a campaign, plan runs, a delivery, and attempts with hostile or long texts."""

    root: Path
    run: str
    hostile: str
    long: str
    plans: tuple[str, str]
    delivery: str
    campaign: str = "campaign"

    def at(self, id: str) -> str:
        return f"out/{self.run}/attempts/{id}.e1"


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """Evidence of a run of three missions and of a campaign, made once, and of an attempt that an attacker wrote."""
    from suites import HEAD, command, conduct, mission, plan, say, write

    root = tmp_path_factory.mktemp("viewer")
    base = root / "base"
    base.mkdir()
    (base / "hostile.txt").write_text(TEXT)
    told = TEXT.replace("\U000e0041", "")  # TOML has no escape for it that the helper writes
    suite = HEAD + "".join(
        [
            mission(
                "works",
                write("answer.txt", "42\n"),
                command("seq 1 40000"),
                command("cat missing.txt"),
                say("done: all tests pass"),
                verify=CHECK,
                workspace="base",
            ),
            mission(
                "lies",
                write("result.txt", told),
                command("cat hostile.txt"),
                say(told),
                verify=CHECK,
                workspace="base",
            ),
            mission("other", write("answer.txt", "42\n"), say("done"), verify=CHECK, workspace="base"),
        ]
    )
    made = plan(suite, root / "out", root)
    conduct(made, root / "out")
    _run_campaign(root)
    hostile, long = hostile_attempt(root / "by-hand"), _long_attempt(root / "by-hand")
    return Sample(root, made.run_id, hostile, long, _plan_runs(root / "plans"), _delivery(root / "by-hand"))


def _run_campaign(root: Path) -> None:
    """Run a campaign of two flows. The first one only claims success at its mission."""
    from suites import HEAD, mission, say

    import proofbox

    place = root / "spec"
    (place / "hidden").mkdir(parents=True)
    (place / "hidden" / "t.txt").write_text("x")
    (place / "solve.sh").write_text("echo 42 > answer.txt\n")
    check = {**CHECK, "files": "hidden"}
    (place / "suite.toml").write_text(HEAD + mission("lies", say("done"), verify=check, solution="solve.sh"))
    kinds = {"agent": "scripted", "solver": "oracle"}
    flows = "".join(f'[[flow]]\nid = "{id}"\nrunner = {{ type = "{kind}" }}\n' for id, kind in kinds.items())
    text = f'[campaign]\nid = "first"\nreplicates = 1\n[[missions]]\nsuite = "suite.toml"\n{flows}'
    (place / "campaign.toml").write_text(text)
    proofbox.run_campaign(place / "campaign.toml", out=root / "campaign")


def hostile_attempt(out: Path, text: str = TEXT, name: str = NAME, line: str = "", times: int = 1) -> str:
    """Write the bundle of an attempt whose every text is hostile, with a long `line` in its files, and long lists."""
    from proofbox import BundleWriter
    from proofbox.core.digest import sha256_hex
    from proofbox.evidence.documents.outcome import Outcome, Verdict

    command_run = {"command": ["/bin/sh", "-c", text], "passed": False, "why": text, "exit_code": 1}
    diff = f"diff {name}\n--- a\n+++ b\n@@ @@\n+{line}{text}\n-{BIDI}\n".encode()
    with BundleWriter.create(out, run_id="attempt-hostile") as bundle:
        bundle.write_json(
            "attempt.json",
            {
                "schema_version": "proofbox.attempt/2",
                "attempt_id": name,
                "mission_id": name,
                "run_id": name,
                "replicate": 1,
                "reason": text,
                "detail": text,
                "parent": name,
                "error": {"code": name, "message": text},
                "fork": {"attempt_id": name, "step": 1},
                "suite": {"id": name},
                "states": [{"at": name, "state": name}],
                "verification": {
                    "commands": [{**command_run, "stdout": text, "stderr": TERMINAL}],
                    "unmet": [{"condition": name, "what": text, "found": text}] * times,
                },
                "final": {"diff_sha256": sha256_hex(diff)} if line else {"diff": diff.decode()},
            },
        )
        report = {
            "strategy": name,
            "tokens": {name: {"input_tokens": 1, "output_tokens": 2}},
            "integrity": [{"code": name, "message": text}] * times,
            "tool_failures": {},
        }
        bundle.write_json("attempt.report.json", report)
        bundle.write_json("runner.ref.json", {"runtime": name, "version": text, "facts": {"provider": name}})
        bundle.write_json("feedback.json", {"result": text})
        bundle.write_json("outcome.json", Outcome(Verdict("passed", name[-1000:], text[:1000], text[:1000])).as_json())
        bundle.write_bytes("prompt.txt", (line + text).encode())
        if line:
            bundle.write_bytes(f"diffs/{sha256_hex(diff)}.diff", diff)
        with bundle.open_log("events.jsonl") as log:
            for event in _events(text, name):
                log.append(event)
        bundle.open_log("steps.jsonl").close()
        bundle.open_log("tool.calls.jsonl").close()
    return "by-hand/attempt-hostile"


def _long_attempt(out: Path) -> str:
    """Write the bundle of an attempt with a long coloured output, a line of a megabyte, and a request to the model."""
    from proofbox import BundleWriter
    from proofbox.core.digest import sha256_hex

    texts = [b"\x1b[32m12 passed\x1b[0m\n" + b"".join(b"%d\n" % n for n in range(20_000)), LINE.encode()]
    with BundleWriter.create(out, run_id="attempt-long") as bundle:
        bundle.write_json("attempt.json", {"schema_version": "proofbox.attempt/2", "attempt_id": "long", "states": []})
        with bundle.open_log("events.jsonl") as events, bundle.open_log("tool.calls.jsonl") as calls:
            for number, text in enumerate(texts):
                digest = sha256_hex(text)
                bundle.write_bytes(f"outputs/{digest}.txt", text)
                shown = text[:2048].decode()
                fields = {"tool": "command", "command": "run", "status": "completed", "source": "observed"}
                events.append({"event": "tool_call", "at_ms": number, "item": f"i{number}", "output": shown, **fields})
                calls.append({"call": f"i{number}", "output_bytes": len(text), "output_sha256": digest})
            used = {"input_tokens": 900, "output_tokens": 100}
            events.append({"event": "usage", "at_ms": 9, "source": "gateway", "thread": "t", "total": used})
    return "by-hand/attempt-long"


def _delivery(out: Path) -> str:
    """Write the bundle of a delivery with hostile text."""
    from proofbox import BundleWriter

    with BundleWriter.create(out, run_id="delivery-1") as bundle:
        bundle.write_json("delivery.json", {"delivery_id": NAME, "title": TEXT})
    return "by-hand/delivery-1"


def _plan_runs(out: Path) -> tuple[str, str]:
    """Write two runs of a plan: one probe has another decision, one is only in the second, and names are hostile."""
    import msgspec

    from proofbox import BundleWriter
    from proofbox.probes.documents import RunManifest, RuntimeResults
    from proofbox.sandbox.probing.results import ProbeResult

    kept: dict[str, Any] = {
        "operation": "open",
        "args": (TEXT,),
        "expected": "deny",
        "evidence_class": "host_fact",
        "detail": TEXT,
    }
    kept |= {"errno": 0, "error": "", "duration_ns": 1, "baseline": "allow", "mismatch": None, "explained": ""}
    where: dict[str, Any] = {
        "channel": "direct",
        "adapter": None,
        "proofbox": "1",
        "machine": "m",
        "driver_sha256": "0" * 64,
    }
    runs: dict[str, tuple[str, dict[str, Any]]] = {
        "plan-1": ("strong", {"read": "deny", NAME: "deny"}),
        "plan-2": (TEXT, {"read": "deny", NAME: "allow", "write": "deny"}),
    }
    for id, (provider, decisions) in runs.items():
        results = [
            ProbeResult(profile=NAME, probe_id=probe, decision=decision, matched=decision == "deny", **kept)
            for probe, decision in decisions.items()
        ]
        manifest = RunManifest(
            run_id=id,
            plan_id="p",
            plan_digest="0" * 64,
            provider=provider,
            kernel="6",
            started_at="",
            profiles=(NAME,),
            probes=len(results),
            selected=False,
            **where,
        )
        with BundleWriter.create(out, run_id=id) as bundle:
            bundle.write_json("run_manifest.json", msgspec.to_builtins(manifest))
            bundle.write_json("runtime_results.json", msgspec.to_builtins(RuntimeResults(results=tuple(results))))
    return "plans/plan-1", "plans/plan-2"


def _events(text: str, name: str) -> Iterator[dict[str, Any]]:
    kinds: list[dict[str, Any]] = [
        {"event": "thread_started", "origin": name, "forked_from": text},
        {"event": "turn_started"},
        {"event": "message", "text": text},
        {"event": "reasoning", "text": text},
        {"event": "item_started", "item": "lost", "kind": name, "command": text},
        {"event": "decision", "item": "d", "answer": name, "rule": text, "subject": text, "method": name},
        {
            "event": "tool_call",
            "item": "t",
            "tool": name,
            "command": text,
            "status": name,
            "output": text,
            "source": name,
        },
        {"event": "file_change", "item": "f", "paths": [name, text], "status": "completed"},
        {"event": "usage", "source": name, "total": {"input_tokens": 5}},
        {"event": "rate_windows", "windows": [{"name": name, "used_percent": 5}], "source": name},
        {"event": "retrying", "code": name, "message": text},
        {"event": "notice", "kind": name, "message": text},
        {"event": "integrity", "code": name, "message": text},
        {"event": "unrecognized", "method": name, "payload": text},
        {"event": name},
        {"event": "turn_ended", "status": name, "code": name, "message": text},
    ]
    for number, each in enumerate(kinds):
        yield {"at_ms": number * 3000.0, **each}


def attempt_page(evidence: OpenedEvidence, **texts: Any) -> str:
    """Return the page of an attempt, as the server renders it without notes and other attempts."""
    from proofbox.viewer.attempts import attempt_texts, fork_command, read_attempt
    from proofbox.viewer.rendering import Renderer
    from proofbox.viewer.timeline import read_timeline

    return Renderer().render(
        "_attempt.html",
        at="x",
        bundle="",
        evidence=evidence,
        attempt=read_attempt(evidence),
        timeline=read_timeline(evidence),
        fork_command=partial(fork_command, evidence),
        notes=[],
        others=[],
        form_token="",
        **(texts or attempt_texts(evidence)),
    )


@pytest.fixture(scope="session")
def server(sample: Sample) -> Iterator[str]:
    """The URL of a server of the sample, with the token."""
    from proofbox.viewer.web.serve import serving

    with serving(sample.root) as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, started once per file: while it is open, no test in this process can run an event loop."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        found = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=options)
        yield found
        found.close()


@dataclass
class Tab:
    """A page of the browser that is signed in, with everything that went wrong on it."""

    page: Any
    home: str
    problems: list[str]
    requests: list[str]

    def open(self, address: str = "") -> Any:
        self.page.goto(self.home + address)
        return self.page


@pytest.fixture(scope="module")
def window(browser: Any, server: str) -> Iterator[Tab]:
    """A signed-in page, which the tests of a file share: a new one takes half a second."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    found = watch(context.new_page())
    found.page.goto(server)
    found.home = found.page.url
    yield found
    context.close()


@pytest.fixture
def tab(window: Tab) -> Iterator[Tab]:
    """The signed-in page. A test fails if a script failed on it, or the policy stopped something."""
    window.problems.clear()
    window.requests.clear()
    yield window
    window.page.goto("about:blank")  # ends the requests of this page, so that none of them fails in the next test
    assert window.problems == []


def watch(page: Any) -> Tab:
    """Record the problems and the requests of a page."""
    found = Tab(page, "", [], [])

    def refuse(dialog: Any) -> None:
        found.problems.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.set_default_timeout(30_000)
    page.on("pageerror", lambda error: found.problems.append(str(error)))
    page.on("console", lambda message: found.problems.append(message.text) if message.type == "error" else None)
    page.on("dialog", refuse)
    page.on("request", lambda request: found.requests.append(request.url))
    return found


@pytest.fixture(scope="session")
def axe() -> Callable[..., list[str]]:
    """Return a function that lists the serious violations of the accessibility rules on a page, light and dark."""
    source = (Path(__file__).parent / "vendored" / "axe.min.js").read_text()

    def violations(page: Any) -> list[str]:
        # In an isolated world, which the policy of the page does not restrict.
        session = page.context.new_cdp_session(page)
        frame = session.send("Page.getFrameTree")["frameTree"]["frame"]["id"]
        world = session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "axe"})["executionContextId"]
        session.send("Runtime.evaluate", {"expression": source, "contextId": world})
        found = []
        for scheme, rules in (("light", ""), ("dark", "runOnly: ['color-contrast'],")):
            page.emulate_media(color_scheme=scheme)
            run = f"axe.run(document, {{{rules} resultTypes: ['violations']}}).then(JSON.stringify)"
            options = {"contextId": world, "awaitPromise": True, "returnByValue": True}
            answer = session.send("Runtime.evaluate", {"expression": run, **options})
            found += [
                f"{scheme}, {each['id']}: {node['html'][:200]}"
                for each in json.loads(answer["result"]["value"])["violations"]
                if each["impact"] in ("serious", "critical")
                for node in each["nodes"][:3]
            ]
        session.detach()
        return found

    return violations
