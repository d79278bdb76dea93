"""The hash chain: every change is detected, and a new writer continues where a dead one stopped."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import ANY, patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proofbox.core import chain
from proofbox.core.canonical import CanonicalError, canonical_bytes
from proofbox.core.chain import (
    MAX_FINDINGS,
    MAX_LINE_BYTES,
    ChainFollower,
    ChainReport,
    ChainWriter,
    TornTail,
    intact_chain,
    origin,
    verify_chain,
)
from proofbox.core.digest import sha256_hex
from proofbox.errors import CorruptError, UsageError

NAME = "run-1/effects"
PAYLOADS: list[dict[str, Any]] = [{"kind": "exec", "argv": ["ls", "-l"], "n": number, "é": 0.5} for number in range(6)]


def write(path: Path, payloads: list[dict[str, Any]] = PAYLOADS, name: str = NAME) -> str:
    with ChainWriter(path, name) as writer:
        for payload in payloads:
            writer.append(payload)
        return writer.head


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    path = tmp_path_factory.mktemp("chain") / "log"
    head = write(path)
    return path.read_bytes(), head


def verify(data: bytes, head: str | None = None, count: int | None = None) -> ChainReport:
    return verify_chain(io.BytesIO(data), NAME, head, expected_count=count)


def codes(report: ChainReport) -> list[str]:
    return [finding.code for finding in report.findings]


def test_documented_format_can_be_checked_by_hand(good: tuple[bytes, str]) -> None:
    """Check a chain like a third party would, using only json and sha256."""
    data, head = good
    previous = hashlib.sha256(f'{{"format":"proofbox.chain/1","name":"{NAME}"}}'.encode()).hexdigest()
    assert origin(NAME) == previous
    lines = data.split(b"\n")
    assert lines.pop() == b""
    for number, line in enumerate(lines):
        entry = json.loads(line)
        assert (entry.pop("seq"), entry.pop("prev")) == (number, previous)
        assert entry == PAYLOADS[number]
        previous = hashlib.sha256(line).hexdigest()
    assert head == previous


def test_a_good_chain_verifies_by_path_and_by_lines(tmp_path: Path, good: tuple[bytes, str]) -> None:
    data, head = good
    (tmp_path / "log").write_bytes(data)
    expected = ChainReport(ok=True, count=6, head=head, findings=())
    assert verify_chain(tmp_path / "log", NAME, head, expected_count=6) == expected
    assert verify_chain(str(tmp_path / "log"), NAME) == expected
    assert verify(data, head, 6) == expected
    assert verify(b"", origin(NAME), 0) == ChainReport(ok=True, count=0, head=origin(NAME), findings=())


@given(st.data())
def test_any_changed_byte_is_found(good: tuple[bytes, str], data: st.DataObject) -> None:
    chain_bytes, head = good
    at = data.draw(st.integers(0, len(chain_bytes) - 1))
    changed = bytearray(chain_bytes)
    changed[at] ^= data.draw(st.integers(1, 255))
    assert not verify(bytes(changed), head).ok
    if at < chain_bytes.rindex(b"\n", 0, -1):
        assert not verify(bytes(changed)).ok


@given(st.data())
def test_any_rearrangement_of_lines_is_found(good: tuple[bytes, str], data: st.DataObject) -> None:
    lines = good[0].splitlines(keepends=True)
    chosen = data.draw(st.lists(st.sampled_from(lines), max_size=9).filter(lambda chosen: chosen != lines))
    report = verify(b"".join(chosen), good[1])
    assert not report.ok
    assert report.count == len(chosen)
    # Without an anchor, only a whole prefix passes.
    assert verify(b"".join(chosen)).ok == (chosen == lines[: len(chosen)])


@given(st.data())
def test_any_truncation_is_found(good: tuple[bytes, str], data: st.DataObject) -> None:
    cut = good[0][: data.draw(st.integers(0, len(good[0]) - 1))]
    assert not verify(cut, good[1]).ok
    assert "wrong_count" in codes(verify(cut, count=6))
    assert verify(cut).ok == (cut == b"" or cut.endswith(b"\n"))


@given(st.binary() | st.lists(st.sampled_from([b"\n", b"{}", b"[", b'{"seq":0,"prev":""}', b"\0"])).map(b"".join))
def test_garbage_never_raises(data: bytes) -> None:
    assert verify(data).ok == (data == b"")


def test_findings_say_where_and_what(good: tuple[bytes, str]) -> None:
    lines = good[0].splitlines(keepends=True)
    dropped = verify(b"".join(lines[:2] + lines[3:]))
    assert [(finding.line, finding.code) for finding in dropped.findings] == [(3, "wrong_prev"), (3, "wrong_seq")]
    edited = verify(good[0].replace(b'"n":1', b'"n":9'))
    assert [(finding.line, finding.code) for finding in edited.findings] == [(3, "wrong_prev")]
    spaced = verify(good[0].replace(b'"n":1', b'"n": 1'))
    assert [(finding.line, finding.code) for finding in spaced.findings] == [(2, "malformed"), (3, "wrong_prev")]
    torn = verify(good[0] + b'{"half')
    assert [(finding.line, finding.code) for finding in torn.findings] == [(7, "torn_tail")]
    assert torn.head == good[1]
    assert codes(verify(good[0], "0" * 64, 5)) == ["wrong_count", "wrong_head"]


def test_chains_can_not_be_swapped(good: tuple[bytes, str]) -> None:
    report = verify_chain(io.BytesIO(good[0]), "run-2/effects")
    assert [(finding.line, finding.code) for finding in report.findings] == [(1, "wrong_prev")]


def test_a_giant_line_is_skipped_in_bounded_memory(
    tmp_path: Path, good: tuple[bytes, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain, "MAX_LINE_BYTES", 1000)
    giant = b"x" * 300_000
    (tmp_path / "log").write_bytes(good[0] + giant + b"\n")
    report = verify_chain(tmp_path / "log", NAME)
    assert codes(report) == ["line_too_long"]
    assert report.head == hashlib.sha256(giant).hexdigest()
    assert verify(good[0] + giant + b"\n") == report
    (tmp_path / "log").write_bytes(giant)
    assert codes(verify_chain(tmp_path / "log", NAME)) == ["torn_tail"]
    longest = len(max(good[0].split(b"\n"), key=len))
    monkeypatch.setattr(chain, "MAX_LINE_BYTES", longest)
    (tmp_path / "log").write_bytes(good[0])
    assert verify_chain(tmp_path / "log", NAME).ok


def test_findings_are_bounded() -> None:
    report = verify(b"bad\n" * 1000)
    assert len(report.findings) == MAX_FINDINGS + 1
    assert report.findings[-1].code == "more"
    assert report.count == 1000


def test_unreadable_chain_is_a_finding(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "fifo"):
        assert codes(verify_chain(path, NAME)) == ["unreadable"]


def test_a_writer_continues_a_chain(tmp_path: Path, good: tuple[bytes, str]) -> None:
    for payload in PAYLOADS:
        with ChainWriter(tmp_path / "log", NAME) as writer:
            head = writer.append(payload)
            assert writer.repaired is None
    assert (tmp_path / "log").read_bytes() == good[0]
    assert (head, writer.count) == (good[1], 6)


@given(st.data())
def test_torn_line_is_cut_off_and_reported(
    tmp_path_factory: pytest.TempPathFactory, good: tuple[bytes, str], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "torn"
    keep = data.draw(st.integers(0, 6))
    whole = b"".join(good[0].splitlines(keepends=True)[:keep])
    garbage = st.binary(min_size=1, max_size=20).filter(lambda tail: b"\n" not in tail)
    torn = data.draw(garbage | st.just(b'{"a":1') | st.just(b"\0" * 5000 + b"\n") | st.just(b"{}"))
    path.write_bytes(whole + torn)
    with ChainWriter(path, NAME) as writer:
        assert writer.repaired == TornTail(len(whole), len(torn), hashlib.sha256(torn).hexdigest())
        assert writer.count == keep
        for payload in PAYLOADS[keep:]:
            writer.append(payload)
    assert path.read_bytes() == good[0]


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda data: data.replace(b'"n":5', b'"n": 5'), "canonical"),
        (lambda data: data.replace(b'"n":4', b'"n":3'), "does not follow"),
        (lambda data: data.replace(b'"seq":5', b'"seq":6'), "does not follow"),
        (lambda data: data + b"{}\n", "seq and prev"),
        (lambda data: data + b"bad\nbad", "not a chain"),
        (lambda data: b"bad\n" + data, "not a chain"),
    ],
    ids=["spaces", "edit before last", "seq", "no entry", "two bad lines", "first line"],
)
def test_damage_that_no_crash_explains_is_refused_and_not_changed(
    tmp_path: Path, good: tuple[bytes, str], damage: Any, match: str
) -> None:
    path = tmp_path / "log"
    path.write_bytes(damage(good[0]))
    with pytest.raises(CorruptError, match=match):
        ChainWriter(path, NAME)
    assert path.read_bytes() == damage(good[0])


def test_a_chain_under_another_name_is_refused(tmp_path: Path, good: tuple[bytes, str]) -> None:
    (tmp_path / "log").write_bytes(good[0] + b"torn")
    with pytest.raises(CorruptError, match="not the chain"):
        ChainWriter(tmp_path / "log", "another")
    assert (tmp_path / "log").read_bytes() == good[0] + b"torn"


def test_lines_longer_than_a_block_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    payloads = [{"text": "x" * size} for size in (300_000, 10, 200_000, 70_000)]
    for payload in payloads:
        write(path, [payload])
    assert verify_chain(path, NAME, expected_count=4).ok


def test_invalid_payloads_are_refused(tmp_path: Path) -> None:
    with ChainWriter(tmp_path / "log", NAME) as writer:
        refused: list[dict[Any, Any]] = [
            {"seq": 1},
            {"prev": ""},
            {"x": float("nan")},
            {1: 2},
            {"x": "y" * MAX_LINE_BYTES},
        ]
        for payload in refused:
            with pytest.raises(UsageError):
                writer.append(payload)
        assert writer.count == 0
        head = writer.append({"fine": True})
    assert verify_chain(tmp_path / "log", NAME, head, expected_count=1).ok
    with pytest.raises(UsageError, match="closed"):
        writer.append({})
    writer.close()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with ChainWriter(tmp_path / "log", NAME), pytest.raises(UsageError, match="another writer"):
        ChainWriter(tmp_path / "log", NAME)
    ChainWriter(tmp_path / "log", NAME).close()


def test_links_and_other_kinds_of_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(UsageError, match="regular"):
        ChainWriter(tmp_path / "fifo", NAME)
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(OSError, match="link"):
        ChainWriter(tmp_path / "link", NAME)
    with pytest.raises(UsageError, match="sync_every"):
        ChainWriter(tmp_path / "log", NAME, sync_every=0)


def test_threads_share_a_writer(tmp_path: Path) -> None:
    with ChainWriter(tmp_path / "log", NAME) as writer:
        threads = [threading.Thread(target=lambda: [writer.append({}) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify_chain(tmp_path / "log", NAME, writer.head, expected_count=800).ok


def test_the_name_of_a_new_chain_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    for module, name in ((os, "fsync"), (chain, "_datasync")):
        monkeypatch.setattr(module, name, lambda fd: synced.append(os.fstat(fd).st_ino))
    writer = ChainWriter(tmp_path / "log", NAME)
    writer.append({})
    assert synced == []
    writer.flush()
    assert synced == [(tmp_path / "log").stat().st_ino, tmp_path.stat().st_ino]
    writer.append({})
    writer.close()
    assert synced[2:] == [(tmp_path / "log").stat().st_ino], "its name is there for good"


def test_syncs_are_batched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    with ChainWriter(tmp_path / "log", NAME, sync_every=10) as writer:
        monkeypatch.setattr(chain, "_datasync", lambda fd: synced.append(writer.count))
        for _ in range(25):
            writer.append({})
        assert synced == [10, 20]
        writer.flush()
        writer.flush()
        assert synced == [10, 20, 25]
        writer.append({})
    assert synced == [10, 20, 25, 26]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), KeyboardInterrupt()])
def test_partial_write_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    whole_write = os.write

    def half(fd: int, data: bytes) -> int:
        whole_write(fd, data[: len(data) // 2])
        raise error

    with ChainWriter(tmp_path / "log", NAME) as writer:
        writer.append({"n": 0})
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(type(error)):
                writer.append({"n": 1})
        writer.append({"n": 1})
    assert verify_chain(tmp_path / "log", NAME, writer.head, expected_count=2).ok


def test_failed_sync_closes_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "lost")

    writer = ChainWriter(tmp_path / "log", NAME)
    writer.append({})
    monkeypatch.setattr(chain, "_datasync", fail)
    with pytest.raises(OSError, match="lost"):
        writer.flush()
    with pytest.raises(UsageError, match="closed"):
        writer.append({})


# Appends forever in short writes, so that a kill lands inside a line, and prints what append returned.
CHILD = """
import os, sys
from proofbox.core.chain import ChainWriter
whole_write = os.write
os.write = lambda fd, data: whole_write(fd, data[:40])
with ChainWriter(sys.argv[1], sys.argv[2], sync_every=7) as writer:
    print("start", writer.count, flush=True)
    while True:
        print(writer.append({"pid": os.getpid(), "text": "x" * (writer.count % 90)}), flush=True)
"""


def test_killed_at_random_points_no_returned_append_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    rng = random.Random(20260101)  # noqa: S311
    heads: list[str] = []
    for _ in range(8):
        argv = [sys.executable, "-c", CHILD, str(path), NAME]
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            word, started = child.stdout.readline().split()
            assert word == "start"
            assert int(started) >= len(heads)
            heads[len(heads) :] = stored_heads(path)[len(heads) : int(started)]
            for _ in range(rng.randrange(1, 60)):
                heads.append(child.stdout.readline().strip())
            child.kill()
            heads += [line.strip() for line in child.stdout if line.endswith("\n")]
        report = verify_chain(path, NAME)
        assert set(codes(report)) <= {"torn_tail"}
        assert stored_heads(path)[: len(heads)] == heads
    with ChainWriter(path, NAME) as writer:
        writer.append({"the": "end"})
    assert verify_chain(path, NAME, writer.head).ok


def stored_heads(path: Path) -> list[str]:
    return [hashlib.sha256(line).hexdigest() for line in path.read_bytes().split(b"\n")[:-1]]


def test_extending_is_appending_in_one_write(tmp_path: Path, good: tuple[bytes, str]) -> None:
    with ChainWriter(tmp_path / "log", NAME) as writer:
        assert writer.extend(PAYLOADS[:4]) == sha256_hex(good[0].splitlines()[3])
        assert writer.extend([]) == writer.head
        assert writer.extend(PAYLOADS[4:]) == good[1]
        before = writer.count
        with pytest.raises(UsageError):
            writer.extend([{"fine": 1}, {"seq": 9}])
        assert writer.count == before
    assert (tmp_path / "log").read_bytes() == good[0]


HOSTILE = [
    '{"a":1,"prev":"PREV","seq":SEQ}',
    '{"a":1,"a":1,"prev":"PREV","seq":SEQ}',
    '{"a":1.0,"prev":"PREV","seq":SEQ}',
    '{"a":1e5,"prev":"PREV","seq":SEQ}',
    '{"a":0.1234567890123456,"prev":"PREV","seq":SEQ}',
    '{"a":9007199254740993,"prev":"PREV","seq":SEQ}',
    '{"a":100000000000000000000,"prev":"PREV","seq":SEQ}',
    '{"a":NaN,"prev":"PREV","seq":SEQ}',
    '{"a":"\\ud800","prev":"PREV","seq":SEQ}',
    '{"a":"\\u0041","prev":"PREV","seq":SEQ}',
    '{"a":"\ud800","prev":"PREV","seq":SEQ}',
    '{"\U0001f600":1,"\uffff":1,"prev":"PREV","seq":SEQ}',
    '{"\uffff":1,"prev":"PREV","seq":SEQ,"\U0001f600":1}',
    '{"a":' + "[" * 126 + "]" * 126 + ',"prev":"PREV","seq":SEQ}',
    '{"a":' + "[" * 128 + "]" * 128 + ',"prev":"PREV","seq":SEQ}',
    '{"prev":"PREV","seq":true}',
    '{"prev":"PREV","seq":SEQ.0}',
    '{"prev":"PREV","seq":-SEQ}',
    '{"prev":"PREV"}',
    '{"prev":null,"seq":SEQ}',
    '{"seq":SEQ,"prev":"PREV"}',
    ' {"prev":"PREV","seq":SEQ}',
    '{"prev":"PREV","seq":SEQ} ',
    '{"prev":"PREV","seq":SEQ}\r',
    '{"prev":"PREV","seq":SEQ}{}',
    '["PREV",SEQ]',
    "12345678901234567890",
    "",
    "null",
]


@given(st.lists(st.sampled_from(HOSTILE), max_size=4), st.sampled_from(["", "{", " ", "\x00"]))
@example(HOSTILE[:1] * 130, "")
def test_short_chain_is_judged_as_a_whole_as_it_is_line_by_line(templates: list[str], tail: str) -> None:
    head, lines = origin(NAME), list[bytes]()
    for number, template in enumerate(templates):
        line = template.replace("PREV", head).replace("SEQ", str(number)).encode("utf-8", "surrogatepass")
        head = sha256_hex(line)
        lines.append(line + b"\n")
    data = b"".join(lines) + tail.encode()
    anchors = [(head, len(lines)), ("0" * 64, len(lines)), (head, len(lines) + 1), (None, None)]
    expected = [verify(data, *anchor) for anchor in anchors]
    assert [verify_chain(data, NAME, anchor[0], expected_count=anchor[1]) for anchor in anchors] == expected
    assert verify_chain(data, "other") == verify_chain(io.BytesIO(data), "other")
    intact = intact_chain(data, NAME)
    if intact is not None:
        assert expected[0].ok
        assert intact == ([json.loads(line) for line in lines], head)
    with patch("proofbox.core.canonical._PLAIN", None):
        assert intact_chain(data, NAME) is None
        assert [verify_chain(data, NAME, anchor[0], expected_count=anchor[1]) for anchor in anchors] == expected


def follow(data: bytes, *, together: bool) -> tuple[list[dict[str, Any]], int, str, str]:
    """Return the entries of a chain up to the first problem, their number, their head, and the problem."""
    follower, entries, problem = ChainFollower(NAME), list[dict[str, Any]](), ""
    lines = data.splitlines(keepends=True)
    try:
        for entry in follower.follow_lines(lines) if together else map(follower.follow, lines):
            entries.append(entry)
    except CanonicalError as error:
        problem = str(error)
    return entries, follower.count, follower.head, problem


@given(st.lists(st.sampled_from(HOSTILE), max_size=4), st.sampled_from(["", "{", " "]))
@example(HOSTILE[:1] * 3000, "")
@example([*HOSTILE[:1] * 3000, HOSTILE[1]], "")
@example([HOSTILE[0], '{"a":"' + "x" * 70_000 + '","prev":"PREV","seq":SEQ}', HOSTILE[0]], "")
def test_lines_are_followed_together_as_they_are_one_by_one(templates: list[str], tail: str) -> None:
    head, lines = origin(NAME), list[bytes]()
    for number, template in enumerate(templates):
        line = template.replace("PREV", head).replace("SEQ", str(number)).encode("utf-8", "surrogatepass")
        head = sha256_hex(line)
        lines.append(line + b"\n")
    data = b"".join(lines) + tail.encode()
    assert follow(data, together=True) == follow(data, together=False)


def test_long_logs_are_parsed_in_blocks() -> None:
    head, lines = origin(NAME), list[bytes]()
    for number in range(3000):
        lines.append(canonical_bytes({"a": [number], "prev": head, "seq": number}) + b"\n")
        head = sha256_hex(lines[-1][:-1])
    follower = ChainFollower(NAME)
    with patch.object(ChainFollower, "follow", side_effect=AssertionError):
        assert [entry["a"] for entry in follower.follow_lines(lines)] == [[number] for number in range(3000)]
    assert (follower.count, follower.head) == (3000, head)


def test_usual_logs_are_parsed_as_a_whole(good: tuple[bytes, str]) -> None:
    entries = [dict(payload, prev=ANY, seq=number) for number, payload in enumerate(PAYLOADS)]
    assert intact_chain(good[0], NAME) == (entries, good[1])
