"""Redaction: known secrets in every encoding, unknown ones by pattern, with any division into chunks."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import re
import string
import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.core.canonical import MAX_DEPTH
from proofbox.core.redaction.redactor import Redactor
from proofbox.core.redaction.spellings import MIN_SECRET, spellings
from proofbox.core.redaction.stream import StreamRedactor
from proofbox.core.text import gap

LETTERS = string.ascii_letters + string.digits
SECRET = 'hunter2/"é+ \\key'
MULTILINE = "first line of it\nsecond line\r\nthird"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEow+/==\nabc\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.s5TvOJ-a_xyz"

KNOWN = Redactor([SECRET, MULTILINE, "abcdefgh", "abcdefghijkl"])
PLAIN = Redactor()

secrets = st.text(st.characters(exclude_categories=["Cs"]), min_size=MIN_SECRET, max_size=30).filter(
    lambda text: len(text.strip(" \t\r\n").encode()) >= MIN_SECRET and text.strip(" \t\r\n") not in "[redacted]"
)


def escapes(secret: str, form: str, kept: str) -> str:
    """As JSON that escapes every UTF-16 code unit except those of some characters."""
    units = secret.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code) in kept else form.format(code) for code in codes)


@given(secrets, st.text(), st.text())
def test_known_secret_is_redacted_in_every_encoding(secret: str, before: str, after: str) -> None:
    redactor = Redactor([secret], patterns=())
    secret = secret.strip(" \t\r\n")
    spelled = [
        secret,
        quote(secret, safe=""),
        quote(secret),
        quote_plus(secret),
        re.sub("%..", lambda escape: escape[0].lower(), quote(secret)),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        json.dumps(json.dumps(secret))[1:-1],
        secret.encode().hex(),
        secret.encode().hex().upper(),
        "".join(f"%{byte:02X}" for byte in secret.encode()),
        "".join(f"%{byte:02x}" for byte in secret.encode()),
        *(escapes(secret, form, keep) for form in ("\\u{:04x}", "\\u{:04X}", "\\\\u{:04x}") for keep in ("", LETTERS)),
        base64.b64encode(secret.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="),
    ]
    for spelling in spelled:
        assert spelling not in redactor.redact(f"<{spelling}>")
        assert spelling.encode() not in redactor.redact(f"<{spelling}>".encode())
        assert redactor.contains_secret(f"{before}{spelling}{after}".encode())


@given(st.binary(max_size=9), st.binary(max_size=9))
def test_a_secret_inside_something_base64_is_found_at_any_alignment(before: bytes, after: bytes) -> None:
    secret = b"correct-horse-battery"
    redactor = Redactor([secret], patterns=())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(before + secret + after)
        assert redactor.contains_secret(encoded)
        assert b"[redacted]" in redactor.redact(encoded)


@given(st.text(), st.binary())
def test_text_without_secrets_is_left_alone(text: str, data: bytes) -> None:
    redactor = Redactor(["never-in-random-text"], patterns=())
    assert redactor.redact(text) == text
    assert redactor.redact(data) == data
    assert not redactor.contains_secret(data)


def test_the_longest_secret_wins() -> None:
    assert KNOWN.redact("xabcdefghijklx") == "x[redacted]x"
    assert KNOWN.redact("xabcdefghx") == "x[redacted]x"


def test_overlapping_secrets_are_both_redacted() -> None:
    assert KNOWN.redact(f"<abcdefg{SECRET}>") == "<[redacted]>"
    assert Redactor(["abcabcab"], patterns=()).redact("abcabcabcab!abcabcab") == "[redacted]![redacted]"


def test_short_values_and_line_ends_are_ignored() -> None:
    redactor = Redactor(["", "true", "12345", " \n ", "with-newline\n"], patterns=())
    assert redactor.redact("true 12345 with-newline") == "true 12345 [redacted]"


def test_bytes_that_are_not_text() -> None:
    redactor = Redactor([b"\xff\xfe\x00secret"])
    assert redactor.redact(b"a\xff\xfe\x00secretb") == b"a[redacted]b"
    assert redactor.redact("a\udcff\udcfe\x00secretb") == "a[redacted]b"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("key sk-abcdefghijklmnopqrstuvwx.", "key [redacted:api_key]."),
        ("sk-proj-Ab1_cd-Ef23456789", "[redacted:api_key]"),
        ("sk-ant-api03-AbCdEf_123-456", "[redacted:api_key]"),
        ("ghp_" + "a1B2" * 9, "[redacted:github]"),
        ("gho_" + "a1B2" * 9, "[redacted:github]"),
        ("github_pat_" + "a1B2_" * 9, "[redacted:github]"),
        ("id=AKIAIOSFODNN7EXAMPLE;", "id=[redacted:aws];"),
        ("xoxb-123456789012-abcdef", "[redacted:slack]"),
        ("Authorization: Bearer abc.def-123/x==", "Authorization: [redacted:authorization]"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: [redacted:authorization]"),
        ('{"Authorization": "token deadbeef"}', '{"Authorization": "[redacted:authorization]"}'),
        ("use Bearer a1b2c3d4e5f6g7 here", "use Bearer [redacted:bearer] here"),
        (f"x\n{PEM}\ny", "x\n[redacted:private_key]\ny"),
        (json.dumps({"key": PEM}), '{"key": "[redacted:private_key]"}'),
        ("-----BEGIN PRIVATE KEY-----\nMIIEow", "[redacted:private_key]"),
        (f"cookie={JWT};", "cookie=[redacted:jwt];"),
        ("password=hunter22&x=1", "password=[redacted:assignment]&x=1"),
        ('"api_key": "0123456789"', '"api_key": "[redacted:assignment]"'),
        ('\\"apiKey\\":\\"0123456789\\"', '\\"apiKey\\":\\"[redacted:assignment]\\"'),
        ("DB_PASSWORD='longenough'", "DB_PASSWORD='[redacted:assignment]'"),
        ("GITHUB_TOKEN=abcdef123", "GITHUB_TOKEN=[redacted:assignment]"),
        ("https://user:p@ss@host/x", "https://[redacted:userinfo]@host/x"),
        ("https://0123456789abcdef0@host", "https://[redacted:userinfo]@host"),
    ],
)
def test_values_that_look_secret_are_redacted(text: str, redacted: str) -> None:
    assert PLAIN.redact(text) == redacted
    assert PLAIN.redact(text.encode()) == redacted.encode()
    assert PLAIN.redact(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "task-runner-with-a-very-long-name-indeed",
        "Bearer authentication is described below",
        "password=get_password()",
        'api_key=os.environ["OPENAI_API_KEY"]',
        "password=$DB_PASSWORD",
        "ssh://git@github.com/a/b",
        "http://localhost:8080/path?user=a@b.example",
        "max_tokens: 100000",
        "the secret: be kind",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "AKIA is a prefix",
        "def token(self) -> str: ...",
    ],
)
def test_ordinary_text_is_not_redacted(text: str) -> None:
    assert PLAIN.redact(text) == text


def test_known_values_take_precedence_over_patterns() -> None:
    redactor = Redactor(["sk-ant-api03-AbCdEf_123-456"])
    assert redactor.redact("Authorization: Bearer sk-ant-api03-AbCdEf_123-456") == "Authorization: Bearer [redacted]"
    assert redactor.redact(f"{PEM[:60]}sk-ant-api03-AbCdEf_123-456{PEM[60:]}") == "[redacted:private_key]"


@pytest.mark.parametrize(
    "unit",
    ["eyJ", "eyJ.", "sk-", "a", " ", "authorization ", "password", "password=", "://", "://a:", "bearer ",
     "-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY", "xoxb-", "gho_", "AKIA", "secret_",
     "=", "\\\"", "A"],
)  # fmt: skip
def test_no_text_makes_redaction_slow(unit: str) -> None:
    """A quadratic expression takes minutes on these; a linear one milliseconds."""
    for lead in ("", "password", "authorization", "://", "-----BEGIN PRIVATE KEY-----", "eyJ", "bearer "):
        text = lead + unit * (200_000 // len(unit))
        started = time.process_time()
        PLAIN.redact(text)
        assert time.process_time() - started < 2


def test_json_values_and_names() -> None:
    value = {
        "argv": ["curl", "-H", "Authorization: Bearer abcdef123456"],
        SECRET: 1,
        "nested": ({"x": SECRET, "n": 1.5, "none": None, "ok": True},),
        "password": "short but known by name",
        "clientSecret": "0123456789",
        "password_hint": "visible",
        "api_key": 5,
    }
    assert KNOWN.redact_json(value) == {
        "argv": ["curl", "-H", "Authorization: [redacted:authorization]"],
        "[redacted]": 1,
        "nested": [{"x": "[redacted]", "n": 1.5, "none": None, "ok": True}],
        "password": "[redacted:assignment]",
        "clientSecret": "[redacted:assignment]",
        "password_hint": "visible",
        "api_key": 5,
    }


@given(st.lists(st.dictionaries(st.text(max_size=80) | st.sampled_from(["password", SECRET, "name"]), st.text())))
def test_cached_member_names_do_not_change_the_result(values: list[dict[str, str]]) -> None:
    used = Redactor([SECRET])
    for each in values * 2:
        assert used.redact_json(each) == Redactor([SECRET]).redact_json(each)


def test_cache_of_member_names_is_bounded() -> None:
    redactor = Redactor([SECRET])
    redactor.redact_json({f"name-{number}": number for number in range(5000)} | {"x" * 1000: 1})
    assert len(redactor._plain) <= 1024
    assert max(map(len, redactor._plain)) <= 64


def test_colliding_redacted_names_stay_distinct() -> None:
    value = {"abcdefgh": 1, "abcdefghijkl": 2, "[redacted]": 3}
    assert sorted(KNOWN.redact_json(value).values()) == [1, 2, 3]
    assert not any("abc" in name for name in KNOWN.redact_json(value))


def test_json_too_deep_is_dropped_rather_than_passed() -> None:
    deep: Any = SECRET
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    assert "hunter2" not in json.dumps(KNOWN.redact_json(deep))


def test_secrets_come_from_the_environment_by_name() -> None:
    env = {
        "OPENAI_API_KEY": "value-one",
        "github_token": "value-two",
        "DB_PASSWORD": "value-three",
        "AWS_CREDENTIALS": "value-four",
        "SECRETS": "value-five",
        "HOME": "/home/someone",
        "KEYBOARD": "us-international",
        "TOKENIZERS_PARALLELISM": "enabled",
        "MAX_TOKENS": "100000",
        "SSL_KEY_FILE": "/etc/ssl/key.pem",
        "CUSTOM": "value-six",
    }
    redactor = Redactor.from_environment(env, ["CUSTOM"])
    shown = redactor.redact(" ".join(env.values()))
    assert shown.count("[redacted]") == 6
    assert "value" not in shown
    for kept in ("/home/someone", "us-international", "enabled", "100000", "/etc/ssl/key.pem"):
        assert kept in shown


def test_redactor_never_reveals_its_secrets() -> None:
    assert "hunter2" not in repr(KNOWN) + str(KNOWN) + repr(StreamRedactor(KNOWN))
    with pytest.raises(TypeError):
        pickle.dumps(KNOWN)


pieces = st.lists(
    st.sampled_from(
        [SECRET, MULTILINE, MULTILINE[:20], PEM, PEM[:40], JWT, "abcdefghijkl", "abcdefg", "password=", "hunter22",
         "\n", "\r", " ", "Authorization: Bearer ", "sk-proj-0123456789abcdef", "-----BEGIN ", "PRIVATE KEY-----\n",
         '"', "é", "https://user:pass@host", "plain text", "<", MULTILINE[:17] + "no"]
    ),
    max_size=12,
)  # fmt: skip


@given(pieces, st.lists(st.integers(0, 400), max_size=12))
def test_stream_is_redacted_like_the_whole_text(parts: list[str], cuts: list[int]) -> None:
    data = "".join(parts).encode()
    stream = StreamRedactor(KNOWN)
    edges = [0, *sorted(cuts), len(data)]
    given_out = b"".join(stream.feed(data[start:end]) for start, end in itertools.pairwise(edges))
    assert given_out + stream.finish() == KNOWN.redact(data)
    assert stream.finish() == b""


@given(st.data())
def test_a_secret_on_any_border_of_a_long_line_is_found(data: st.DataObject) -> None:
    """Lines longer than the hold-back are returned in parts, and no part shows a piece of a secret."""
    filler = data.draw(st.sampled_from([b"x", b"a", b"abcdefg", b"eyJ", b" "]))
    lead = filler * (
        data.draw(st.integers(StreamRedactor.HOLD_BACK - 5000, StreamRedactor.HOLD_BACK + 200)) // len(filler)
    )
    chunk = data.draw(st.integers(1000, 70_000))
    secret = SECRET.encode()
    stream = StreamRedactor(KNOWN)
    whole = lead + secret + filler * 70_000 + secret
    shown = b"".join(stream.feed(whole[at : at + chunk]) for at in range(0, len(whole), chunk)) + stream.finish()
    assert b"hunter2" not in shown
    assert b"\\key" not in shown


def test_no_part_of_a_long_line_ends_inside_a_secret() -> None:
    """The line is cut 16 KiB before its end, even in the middle of the secret."""
    secret = SECRET.encode()
    for after in range((1 << 14) - 6 - len(secret), (1 << 14) + 4):
        stream = StreamRedactor(KNOWN)
        given_out = stream.feed(b"x" * (1 << 16) + secret + b"y" * after)
        assert given_out
        assert given_out + stream.finish() == b"x" * (1 << 16) + b"[redacted]" + b"y" * after


@pytest.mark.parametrize("block", [PEM, MULTILINE])
def test_multi_line_secret_is_held_back_until_it_is_complete(block: str) -> None:
    stream = StreamRedactor(KNOWN)
    lines = block.encode().splitlines(keepends=True)
    assert [stream.feed(line) for line in lines] == [b""] * len(lines)
    assert b"[redacted" in stream.feed(b"\nnext\n")


def test_lines_are_returned_at_once_and_hold_back_is_bounded() -> None:
    stream = StreamRedactor(KNOWN)
    assert stream.feed(b"one\ntw") == b"one\n"
    assert stream.feed(b"o\r50%\r") == b"two\r50%\r"
    assert stream.feed(b"first line of it\n") == b""
    assert stream.feed(b"other\n") == b"first line of it\nother\n"
    held = given_out = 0
    for _ in range(200):
        given_out += len(stream.feed(b"y" * 1000))
        held += 1000
        assert held - given_out <= StreamRedactor.HOLD_BACK
    endless = StreamRedactor(KNOWN)
    endless.feed(b"-----BEGIN PRIVATE KEY-----\n")
    assert any(endless.feed(b"MIIEow+/==\n" * 100) for _ in range(200))
    repeating = StreamRedactor(Redactor(["aaaaaa"]))
    assert any(repeating.feed(b"a" * 10_000) for _ in range(20))


def test_line_part_does_not_end_inside_a_pattern_lookahead() -> None:
    """A password in a URL is recognized by the `@` after it, which may come in the next part."""
    for after in range((1 << 14) - 12, (1 << 14) + 12):
        stream = StreamRedactor(PLAIN)
        shown = stream.feed(b"x" * (1 << 16) + b" https://user:open-sesame@host" + b"y" * after) + stream.finish()
        assert b"sesame" not in shown


# No spelling of such a secret has a dot in it, so that dots mark what does not belong to the secret.
dotless = st.text("ABCXYZ /+%é", min_size=MIN_SECRET, max_size=60).filter(lambda text: len(text.strip()) >= MIN_SECRET)


@st.composite
def cut_somewhere(draw: st.DrawFn) -> tuple[Redactor, str, int]:
    """Dots with encoded secrets, one of them near the limit or near the edge of the preview's window."""
    secret = draw(dotless)
    spelled = [form.decode() for form in sorted(spellings(secret.encode()))]
    limit = draw(st.integers(0, 300))
    edge = draw(st.sampled_from([0, limit, limit + (1 << 14), limit + (2 << 14)]))
    many = draw(st.integers(0, 30))  # they shrink to their markers, so text beyond the limit comes into view
    lead = "." * max(0, edge - draw(st.integers(0, 90)) - many * len(spelled[0]))
    rest = "." * draw(st.sampled_from([0, 1, 50, 40_000]))
    return Redactor([secret]), spelled[0] * many + lead + draw(st.sampled_from(spelled)) + rest, limit


MARKS = re.compile(r"\[?r?e?d?a?c?t?e?d?\]?")


@given(cut_somewhere())
def test_a_preview_shows_no_part_of_a_secret(case: tuple[Redactor, str, int]) -> None:
    redactor, text, limit = case
    for data in (text, text.encode()):
        shown, cut = redactor.preview(data, limit)
        assert set(MARKS.sub("", shown)) <= {"."}
        assert len(shown.encode()) <= limit
        assert cut or shown == redactor.redact(text)
        shown, cut = redactor.preview_end(data, limit)
        assert set(MARKS.sub("", shown)) <= {"."}
        assert len(shown.encode()) <= limit
        assert cut or shown == redactor.redact(text)


@given(dotless, st.integers(1, 60), st.booleans())
def test_partial_secret_in_truncated_text_is_redacted(secret: str, part: int, at_end: bool) -> None:
    """Agents' events may be truncated. A piece that is too short for a secret may stay: it could be anything."""
    redactor, secret = Redactor([secret]), secret.strip()
    text = "." * 300 + secret[:part] if at_end else secret[-part:] + "." * 300
    left = redactor.redact_json([text])[0]
    shown = MARKS.sub("", left).replace(".", "")
    assert len(shown) < MIN_SECRET
    assert redactor.preview(text, 1000)[0] == left
    whole = text + gap(7) + "." * 300 if at_end else "." * 300 + gap(7) + text
    assert redactor.redact(whole, cut=True).replace(gap(7) + "." * 300, "").replace("." * 300 + gap(7), "") == left


def test_beginning_of_a_secret_in_a_short_text_is_not_redacted() -> None:
    redactor = Redactor(["/home/someone/project/key.json"])
    assert redactor.redact_json({"cwd": "/home/someone/project"}) == {"cwd": "/home/someone/project"}


def test_preview_of_long_text_reads_only_a_window() -> None:
    """Text beyond the window is not read: searching it for secrets would take time."""
    huge = "x" * (64 << 20)
    began = time.process_time()
    for _ in range(20):
        KNOWN.preview(huge, 2048)
        KNOWN.preview_end(huge, 2048)
    assert time.process_time() - began < 2
