"""The exported file: it opens without a server, checks its evidence, and is verified by proofbox."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import BIDI, MARKER, TERMINAL, TEXT
from viewer_fixtures import Sample, watch

import proofbox
from proofbox import BundleWriter
from proofbox.cli import main
from proofbox.errors import BundleCorrupt, BundleInProgress, BundleSchemaUnknown
from proofbox.evidence.attest.keys import new_key
from proofbox.evidence.bundle.paths import INDEX
from proofbox.evidence.promotion.emit import emit_promotion
from proofbox.evidence.verify.embedded import CLOSING, OPENING, PAGE_NOTE, EmbeddedBundle, embed
from proofbox.evidence.verify.pinned_bundles import RUNS
from proofbox.viewer import export as exporting
from proofbox.viewer.export import export_html
from proofbox.viewer.rendering import assets, terminal

grouped = pytest.mark.xdist_group("viewer")
in_browser = pytest.mark.needs("bubblewrap", "chromium")


def attempt(out: Path, output: bytes = b"hello\n") -> Path:
    with BundleWriter.create(out, run_id="attempt-1") as made:
        made.write_json("attempt.json", {"schema_version": "proofbox.attempt/2", "attempt_id": "a", "states": []})
        made.write_bytes("prompt.txt", output)
        with made.open_log("events.jsonl") as log:
            log.append({"event": "message", "text": "<b>hi</b>", "at_ms": 1})
    return made.path


def embedded(file: Path) -> Any:
    data = file.read_bytes()
    start = data.index(OPENING) + len(OPENING)
    return json.loads(data[start : data.index(CLOSING, start)])


def rewrite(file: Path, document: Any) -> None:
    data = file.read_bytes()
    start = data.index(OPENING) + len(OPENING)
    file.write_bytes(data[:start] + json.dumps(document).encode() + data[data.index(CLOSING, start) :])


def test_exported_evidence_is_extracted_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attempt(tmp_path / "out")
    file = tmp_path / "a.html"
    assert main(["view", str(tmp_path / "out"), "--export", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == 1
    assert proofbox.verify(file).ok
    assert main(["verify", str(file)]) == 0
    assert capsys.readouterr().out.startswith("valid: attempt-1")
    changed = embedded(file)
    files = changed["bundles"][0]["files"]
    files["prompt.txt"] = base64.b64encode(b"hullo\n").decode()
    rewrite(file, changed)
    assert [(each.code, each.path) for each in proofbox.verify(file).findings] == [("digest_mismatch", "prompt.txt")]
    del files["prompt.txt"]
    rewrite(file, changed)
    assert [each.code for each in proofbox.verify(file).findings] == ["missing"]


def test_signed_packet_is_part_of_the_file_and_is_checked(tmp_path: Path) -> None:
    made = attempt(tmp_path / "out")
    ours, other = new_key(tmp_path / "ours"), new_key(tmp_path / "other")
    emit_promotion(made, sign=tmp_path / "ours")
    file = tmp_path / "a.html"
    export_html(made, file)
    assert ours.key_id in file.read_text()
    assert proofbox.verify(file, key=str(tmp_path / "ours.pub")).signed_by == ours.key_id
    wrong = proofbox.verify(file, key=str(tmp_path / "other.pub"))
    assert [each.code for each in wrong.findings] == ["signature_wrong"], other.key_id


def test_key_without_a_packet_is_a_finding(tmp_path: Path) -> None:
    made = attempt(tmp_path / "out")
    new_key(tmp_path / "ours")
    export_html(made, tmp_path / "a.html")
    found = proofbox.verify(tmp_path / "a.html", key=str(tmp_path / "ours.pub"))
    assert [each.code for each in found.findings] == ["signature_absent"]


def test_every_bundle_of_a_file_must_be_signed(tmp_path: Path) -> None:
    made = attempt(tmp_path / "out")
    new_key(tmp_path / "ours")
    emit_promotion(made, sign=tmp_path / "ours")
    file = tmp_path / "a.html"
    export_html(made, file)
    with BundleWriter.create(tmp_path / "forged", run_id="attempt-2") as forged:
        forged.write_bytes("prompt.txt", b"forged\n")
    files = {path.name: base64.b64encode(path.read_bytes()).decode() for path in forged.path.iterdir()}
    document = embedded(file)
    signed, added = document["bundles"], {"name": "attempt-2", "packet": None, "files": files}
    for bundles in ([added, *signed], [*signed, added]):
        rewrite(file, {**document, "bundles": bundles})
        found = proofbox.verify(file, key=str(tmp_path / "ours.pub"))
        assert [(each.code, each.path) for each in found.findings] == [("signature_absent", "attempt-2")]
    assert proofbox.verify(file).ok, "without a key, each bundle is only checked for consistency"


def test_runs_that_a_signed_campaign_pins_need_no_signature(tmp_path: Path) -> None:
    new_key(tmp_path / "ours")
    content = {}
    for name in ("run-1", "run-2"):
        with BundleWriter.create(tmp_path / name, run_id=name) as run:
            run.write_bytes("prompt.txt", name.encode())
        content[name] = {path.name: path.read_bytes() for path in run.path.iterdir()}
    with BundleWriter.create(tmp_path / "out", run_id="campaign-1") as campaign:
        digest = hashlib.sha256(content["run-1"][INDEX]).hexdigest()
        campaign.write_json(
            RUNS, {"schema_version": "proofbox.campaign_runs/1", "runs": [{"path": "x", "index_sha256": digest}]}
        )
    packet = Path(emit_promotion(campaign.path, sign=tmp_path / "ours").path)
    files = {path.name: path.read_bytes() for path in campaign.path.iterdir()}
    signed = EmbeddedBundle("campaign-1", files, packet.read_bytes())
    for run_id, wrong in (("run-1", []), ("run-2", ["run-2"])):
        (tmp_path / "a.html").write_text(embed([signed, EmbeddedBundle(run_id, content[run_id])], []))
        found = proofbox.verify(tmp_path / "a.html", key=str(tmp_path / "ours.pub"))
        assert [each.path for each in found.findings] == wrong


@pytest.mark.parametrize("opening", [OPENING, b"<script type='application/json' ID = 'proofbox-evidence'>"])
def test_second_element_with_evidence_is_refused(tmp_path: Path, opening: bytes) -> None:
    """A browser may show one of them, and the verification check the other."""
    made = attempt(tmp_path / "out")
    file = tmp_path / "a.html"
    export_html(made, file)
    file.write_bytes(file.read_bytes().replace(b"<body", b"<!-- " + opening + b"{}</script> --><body", 1))
    with pytest.raises(BundleCorrupt, match="more than one element"):
        proofbox.verify(file)


def test_verification_states_that_the_page_itself_is_not_checked(tmp_path: Path) -> None:
    made = attempt(tmp_path / "out")
    export_html(made, tmp_path / "a.html")
    assert PAGE_NOTE in proofbox.verify(tmp_path / "a.html").notes


def test_large_files_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = attempt(tmp_path / "out", b"x" * 5000)
    monkeypatch.setattr(exporting, "MAX_FILE", 4000)
    found = export_html(made, tmp_path / "a.html")
    assert [(each.path, each.bytes) for each in found.left_out] == [("prompt.txt", 5000)]
    assert "prompt.txt</code> 5.0 kB" in (tmp_path / "a.html").read_text()
    result = proofbox.verify(tmp_path / "a.html")
    assert [each.code for each in result.findings] == ["missing"], "incomplete evidence is never valid"
    assert any("left out of the file: attempt-1/prompt.txt" in note for note in result.notes)


def test_number_of_attempts_is_bounded_and_the_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BundleWriter.create(tmp_path / "out", run_id="run-1") as run:
        run.write_json("environment.json", {"isolation": "process"})
        for name in ("a.1.e1", "b.1.e1"):
            with run.nested(f"attempts/{name}") as inner:
                inner.write_json("attempt.json", {"attempt_id": name, "states": []})
    monkeypatch.setattr(exporting, "MAX_ATTEMPTS", 1)
    found = export_html(run.path, tmp_path / "run.html")
    assert (found.attempts, [each.path for each in found.left_out]) == (1, ["attempts/b.1.e1/artifact_index.json"])
    assert {each.code for each in proofbox.verify(tmp_path / "run.html").findings} == {"missing"}


def test_only_valid_committed_evidence_is_exported(tmp_path: Path) -> None:
    made = attempt(tmp_path / "out")
    (made / "prompt.txt").write_text("other\n")
    with pytest.raises(BundleCorrupt):
        export_html(made, tmp_path / "a.html")
    open_one = BundleWriter.create(tmp_path / "open", run_id="run-1")
    with pytest.raises(BundleInProgress):
        export_html(open_one.path, tmp_path / "a.html")
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/../../x", "a\\b", ""])
def test_embedded_paths_never_leave_their_directory(tmp_path: Path, name: str) -> None:
    file = tmp_path / "a.html"
    file.write_text(embed([EmbeddedBundle("run-1", {"x": b"", name: b"data"})], []))
    with pytest.raises(BundleCorrupt, match="not allowed"):
        proofbox.verify(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        OPENING.decode(),
        f"{OPENING.decode()}{{}}{CLOSING.decode()}",
        f"{OPENING.decode()}[{CLOSING.decode()}",
    ],
)
def test_file_without_readable_evidence_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.html").write_text(text)
    with pytest.raises((BundleCorrupt, BundleSchemaUnknown)):
        proofbox.verify(tmp_path / "a.html")


@grouped
@in_browser
def test_exported_run_opens_from_disk_and_shows_checked_evidence(
    browser: Any, sample: Sample, tmp_path: Path, axe: Callable[..., list[str]]
) -> None:
    file = tmp_path / "run.html"
    found = export_html(sample.root / "out", file)
    assert (found.attempts, found.left_out) == (3, ())
    assert file.stat().st_size < 1_000_000
    context = browser.new_context()
    seen = watch(context.new_page())
    page = seen.page
    page.goto(file.as_uri())
    page.locator("body[data-ready]").wait_for()
    assert "matches its index" in page.locator("#proof .verdict").inner_text()
    assert "Unchecked summary" in page.locator(".page:not([hidden]) .integrity").inner_text()
    page.get_by_role("link", name="lies.1").click()
    shown = page.locator(".page:not([hidden])")
    assert "3 files" not in shown.locator("[data-integrity] .detail").inner_text()
    assert [
        each.split("\n")[-1].lstrip("✓✗○") for each in shown.locator(".outcome dd:first-of-type").all_inner_texts()
    ] == [
        "unknown",
        "failed",
        "ok",
    ]
    message = shown.locator(".entry.message .pane").inner_text()
    assert "<script>window.pwned=1</script>" in message
    assert r"\u202e" in message
    assert page.evaluate(f"window.{MARKER} === undefined")
    assert axe(page) == []
    assert [each for each in seen.requests if not each.startswith("file://")] == []
    assert seen.problems == []
    context.close()


@grouped
@in_browser
def test_changed_byte_is_detected_in_the_browser(browser: Any, sample: Sample, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    export_html(sample.root / "out", file)
    changed = embedded(file)
    files = changed["bundles"][0]["files"]
    name = "attempts/works.1.e1/events.jsonl"
    data = bytearray(base64.b64decode(files[name]))
    data[data.index(b"all tests pass")] ^= 1
    files[name] = base64.b64encode(bytes(data)).decode()
    rewrite(file, changed)
    page = browser.new_page()
    page.goto(f"{file.as_uri()}#attempt/{sample.run}/attempts/works.1.e1")
    page.locator("body[data-ready]").wait_for()
    assert "does NOT match" in page.locator("#proof").inner_text()
    assert "events.jsonl" in page.locator("#proof .detail").inner_text()
    message = page.locator(".page:not([hidden]) .entry.message .pane").inner_text()
    assert message == "not shown: events.jsonl does not match the embedded index"
    page.close()
    assert not proofbox.verify(file).ok


@grouped
@in_browser
def test_browser_renders_terminals_as_the_server_does(browser: Any) -> None:
    page = browser.new_page()
    script = assets()["evidence.js"].decode()
    functions = script[script.index("  const HIDDEN") : script.index("  const hex")]
    for text in (
        TERMINAL,
        BIDI,
        TEXT,
        "a\x1b[1;31mb\x1b[22;92mc\x1b[38;5;200md\x1b[48;5;3me\x1b[38;2;1;2;3mf\r\ng\x1b[m",
    ):
        shown = page.evaluate(
            "([functions, text]) => new Function('text', 'const SHOWN = 65536;' + functions"
            ' + \'const pre = document.createElement("pre"); show(pre, text, "text"); return pre.innerHTML\')(text)',
            [functions, text],
        )
        expected = str(terminal(text)).replace("&#34;", '"').replace("&#39;", "'")
        assert re.sub("&nbsp;", "\xa0", shown) == expected
    page.close()
