"""The commands that show evidence: `view`, `suite run --view`, `report --html`, `campaign report --html`."""

from __future__ import annotations

import http.client
import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from suites import HEAD, mission, say, write
from viewer_fixtures import CHECK

import proofbox
from proofbox.cli import main
from proofbox.cli.commands.evidence import view


def test_browser_gets_the_token_in_a_private_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    view.open_browser("http://127.0.0.1:1/?token=secret")
    file = Path(unquote(urlsplit(opened[0]).path))
    assert "secret" not in opened[0], "arguments of processes are public"
    assert "token=secret" in file.read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    file.unlink()


def test_export_needs_the_suffix_by_which_verify_knows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path), "--export", str(tmp_path / "out.htm")]) == 2
    assert "does not end with .html" in capsys.readouterr().err


@pytest.mark.needs("bubblewrap")
def test_run_is_shown_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def look(url: str) -> None:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        connection.request("GET", f"/?{parts.query}")
        seen.append(connection.getresponse().status)
        connection.close()

    monkeypatch.setattr(view, "open_browser", look)
    (tmp_path / "suite.toml").write_text(
        HEAD + mission("works", write("answer.txt", "42\n"), say("done"), verify=CHECK)
    )
    out, page = tmp_path / "out", tmp_path / "run.html"
    words = ["suite", "run", str(tmp_path / "suite.toml"), "--out", str(out), "--provider", "bubblewrap", "--view"]
    assert main([*words, "--strategies", "scripted"]) == 0
    assert seen == [303]
    told = capsys.readouterr().err
    assert re.search(r"showing .*: http://127\.0\.0\.1:\d+/\?token=", told)
    assert "show it again: proofbox view" in told
    assert main(["report", str(out), "--html", str(page)]) == 0
    assert proofbox.verify(page).ok
