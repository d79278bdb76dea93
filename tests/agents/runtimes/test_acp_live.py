"""The real OpenCode in a box, with a fake model. `scripts/soak` runs the whole conformance suite with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from acp_lab import AcpLab, run

from proofbox.agents.contract import ApprovalRule
from proofbox.agents.events import ApprovalDecision, FileChange, Integrity, RateWindows, ToolCall, TurnEnded, Usage

pytestmark = pytest.mark.needs("bubblewrap", "opencode")
KEY = "sk-ant-" + "k7Q" * 12


def test_calls_approvals_usage_close_and_no_key_in_the_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENCODE_TEST_KEY", KEY)

    async def work(lab: AcpLab) -> None:
        rules = (ApprovalRule(answer="decline", command="rm *"), ApprovalRule(answer="accept"))
        home = lab.workspace.parent / "home"
        settings = {"api_key_env": "OPENCODE_TEST_KEY"}
        async with lab.session(settings, approvals=rules, home=home, request_timeout=150.0) as seat:
            place = seat.session._box.inside.guest_project  # type: ignore[attr-defined]
            write = f'[[call write {{"filePath": "{place}/note.txt", "content": "hello"}}]]'
            run_all = "[[run env > env.txt; exit 7]] [[run rm -rf x]] [[limits primary=40]]"
            result = await seat.turn(f"{run_all} {write} [[say done]]")
            assert (result.status, result.final_message) == ("completed", "done")
            calls = [(call.command, call.exit_code, call.status) for call in seat.of(ToolCall)]
            assert calls == [("env > env.txt; exit 7", 7, "failed"), ("rm -rf x", None, "declined")]
            [change] = seat.of(FileChange)
            assert (change.paths, change.status) == ((f"{place}/note.txt",), "completed")
            assert (lab.workspace / "note.txt").read_text() == "hello"
            answers = [(event.subject, event.answer) for event in seat.of(ApprovalDecision)]
            assert answers == [
                ("env > env.txt; exit 7", "accept"),
                ("rm -rf x", "decline"),
                ("note.txt", "accept"),
                ("fs/write_text_file", "refused"),  # it asks, although this is not offered
            ]
            assert {event.source for event in seat.of(Usage)} == {"gateway"}
            assert {event.thread for event in seat.of(Usage)} == {result.thread}
            assert result.usage is not None
            assert (result.usage.input_tokens, result.usage.output_tokens) == (4000, 200)
            assert [each.windows[0].used_percent for each in seat.of(RateWindows, source="gateway")] == [40.0]
            assert not seat.of(Integrity)
            lasting = await seat.session.start_turn(result.thread, "[[run touch runs; sleep 300]] [[say never]]")
            await seat.until((lab.workspace / "runs").exists, seconds=150.0)
        result = await seat.session.wait_turn(lasting)  # closing the session has ended it
        assert (result.status, len(seat.of(TurnEnded, turn=lasting))) == ("interrupted", 1)
        assert "never" not in result.final_message
        assert {dict(request.headers)["x-api-key"] for request in lab.model.seen} == {KEY}
        files = [Path(folder) / name for folder, _, names in os.walk(tmp_path) for name in names]
        assert [path for path in files if path.is_file() and KEY.encode() in path.read_bytes()] == []

    run(tmp_path, work)
