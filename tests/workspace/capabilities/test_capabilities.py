"""Capabilities handle hostile paths, URLs and commands exactly; everything that no rule allows is denied."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox.errors import CapabilitiesInvalid, CapabilityDenied, ProofboxError
from proofbox.workspace.capabilities.capabilities import Capabilities, CapabilityGuard
from proofbox.workspace.capabilities.grants import PRESETS, Files, Grants, load, parse
from proofbox.workspace.capabilities.network import NetworkEndpoint, endpoint_of
from proofbox.workspace.search.globs import Glob
from proofbox.workspace.tools.environments.files import FileTools
from proofbox.workspace.tools.environments.handles import DirectoryTree
from proofbox.workspace.tools.environments.memory import MemoryEnvironment

names = st.sampled_from(["a", "b", "ab", "A", ".a", "a.", "a*", "é", "e\u0301", "..a", "a\\b", "secret", "sub"])
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
pieces = st.sampled_from(
    ["a", "b", "*", "?", "**", "a*", "*b", "*a*", "?b", ".*", "{a,b}", "{a,b}c", r"\*", "secret", "é"]
)
globs = st.lists(pieces, min_size=1, max_size=4).map("/".join)


def oracle_matches(pattern: str, path: str) -> bool:
    """The oracle: match recursively, with every expansion of the pattern, regardless of time."""
    if "{" in pattern:
        head, _, rest = pattern.partition("{")
        inside, _, tail = rest.partition("}")
        return any(oracle_matches(head + choice + tail, path) for choice in inside.split(","))

    def name(p: str, n: str) -> bool:
        if not p:
            return not n
        if p[0] == "*":
            return any(name(p[1:], n[k:]) for k in range(len(n) + 1))
        if p[0] == "\\":
            return n[:1] == p[1:2] and name(p[2:], n[1:])
        return bool(n) and (p[0] in ("?", n[0])) and name(p[1:], n[1:])

    def match(ps: list[str], ns: list[str]) -> bool:
        if not ps:
            return not ns
        if ps[0] == "**":
            return any(match(ps[1:], ns[k:]) for k in range(len(ns) + 1))
        return bool(ns) and name(ps[0], ns[0]) and match(ps[1:], ns[1:])

    return match(pattern.split("/"), path.split("/"))


@given(globs, paths)
def test_globs_match_like_the_oracle(pattern: str, path: str) -> None:
    glob = Glob(pattern)
    assert glob.matches(path) == oracle_matches(pattern, path)
    if glob.matches(path):
        above = path.split("/")[:-1]
        assert glob.may_match_below("/".join(above))
    if glob.covers(path):
        assert glob.matches(f"{path}/any/thing")


@pytest.mark.parametrize(
    ("pattern", "path", "due"),
    [
        ("*", "a/b", False),
        ("*", ".hidden", True),
        ("src/*", "src/a/b", False),
        ("src/**", "src", True),
        ("src/**", "srcx/a", False),
        ("**/x", "x", True),
        ("**/x", "a/b/x", True),
        ("**/x", "a/bx", False),
        ("a/**/b", "a/b", True),
        ("README", "readme", False),
        ("a?", "a/", False),
        ("secret", "secret.", False),
        ("é", "e\u0301", False),
    ],
)
def test_globs_by_example(pattern: str, path: str, due: bool) -> None:
    assert Glob(pattern).matches(path) is due


def test_hostile_glob_matches_in_bounded_time() -> None:
    glob = Glob("*a" * 100 + "*")
    assert not glob.matches("a" * 99 + "b" * 150)
    assert Glob("/".join(["**", "a"] * 100)).matches("/".join("a" * 400))


@pytest.mark.parametrize(
    "pattern", ["", "a//b", "/a", "a/", "../a", "a/./b", "a**", "[ab]", "{a", "a}", "{a,{b}}", "a\\", "\0"]
)
def test_invalid_globs_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Glob(pattern)
    with pytest.raises(CapabilitiesInvalid):
        Capabilities(Grants(fs=Files(read=(pattern,))))


@given(st.lists(globs, max_size=3), st.lists(globs, max_size=3), paths)
def test_default_is_deny_and_deny_takes_precedence(allow: list[str], deny: list[str], path: str) -> None:
    rules = tuple(allow) + tuple(f"!{each}" for each in deny)
    shuffled = tuple(reversed(rules))
    denied = any(
        oracle_matches(each, "/".join(path.split("/")[:n])) for each in deny for n in range(1, path.count("/") + 2)
    )
    due = any(oracle_matches(each, path) for each in allow) and not denied
    for given_rules in (rules, shuffled):
        capabilities = Capabilities(Grants(fs=Files(read=given_rules)))
        assert capabilities.file("read", path).allowed is due
        assert not capabilities.file("write", path).allowed
        assert not capabilities.file("delete", path).allowed
        if due:
            assert capabilities.visible(path)


hostile_steps = st.sampled_from(
    ["secret", "public", "..", ".", "", "Secret", "secret.", "secret/", "link", "up", "self", "f", "//", "se\u200bcret"]
)


@given(steps=st.lists(hostile_steps, max_size=6), absolute=st.booleans())
def test_no_spelling_of_a_path_bypasses_a_deny(
    steps: list[str], absolute: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.getbasetemp() / "hostile-paths"
    if not root.exists():
        for name in ("secret", "public"):
            (root / name).mkdir(parents=True)
            (root / name / "f").write_text(f"{name}-content")
        (root / "public/link").symlink_to("../secret")
        (root / "public/up").symlink_to("..")
        (root / "public/self").symlink_to("../public")
        (root / "link").symlink_to("secret/f")
    capabilities = Capabilities(Grants(fs=Files(read=("**",), write=("public/**",), deny=("secret",))))
    tree = DirectoryTree(root, CapabilityGuard(capabilities))
    env = FileTools(tree)
    path = "/".join(steps)
    if absolute:
        path = f"{root}/{path}"
    try:
        assert "secret-content" not in env.read_file(path or ".").content
    except ProofboxError:
        pass
    try:
        assert "secret-content" not in str(env.search_text("content", path or ".").matches)
    except ProofboxError:
        pass
    try:
        written = env.write_file(path or ".", "public-content")
        assert written.path.startswith("public/")
        if written.path != "public/f":
            env.remove_file(written.path)
    except ProofboxError:
        pass
    tree.close()
    assert (root / "secret/f").read_text() == "secret-content"
    assert os.listdir(root / "secret") == ["f"]


# Network

ALLOWED = Capabilities(
    parse('[network]\nallow = ["example.org", "*.wide.org:8443", "10.0.0.1:80", "bücher.example", "!bad.wide.org"]')
)


@pytest.mark.parametrize(
    ("url", "due"),
    [
        ("https://example.org/", True),
        ("http://example.org", True),
        ("https://EXAMPLE.org./x?y#z", True),
        ("https://example.org:443/", True),
        ("https://example.org:8443/", False),
        ("https://user:pw@example.org/", True),
        ("https://example.org@evil.org/", False),
        ("https://example.org:443@evil.org/", False),
        ("https://evil.org\\@example.org/", False),
        ("https://evil.org#@example.org/", False),
        ("https://evil.org?@example.org/", False),
        ("https://evil.org/@example.org/", False),
        ("https://a@b@example.org/", False),
        ("https://example.org%00.evil.org/", False),
        ("https://example.org\t.evil.org/", False),
        ("https://example.org.evil.org/", False),
        ("https://notexample.org/", False),
        ("https://sub.example.org/", False),
        ("https://a.wide.org:8443/", True),
        ("https://a.wide.org/", False),
        ("https://wide.org:8443/", False),
        ("https://bad.wide.org:8443/", False),
        ("https://BAD.wide.org.:8443/", False),
        ("https://bücher.example/", True),
        ("https://xn--bcher-kva.example/", True),
        ("https://bücher。example/", True),
        ("http://10.0.0.1/", True),
        ("http://[::ffff:10.0.0.1]/", True),
        ("http://167772161/", False),
        ("http://0x0a000001/", False),
        ("http://10.1/", False),
        ("http://010.0.0.1/", False),
        ("http://10.0.0.1:080/", True),
        ("http://example.org:0443/", True),
        ("http://example.org:/", False),
        ("http://example.org:99999/", False),
        ("http://exаmple.org/", False),
        ("//example.org/", False),
        ("example.org", False),
        ("gopher://example.org/", False),
        ("file:///etc/passwd", False),
        ("https:example.org", False),
        ("", False),
    ],
)
def test_urls_by_example(url: str, due: bool) -> None:
    assert ALLOWED.url(url).allowed is due, ALLOWED.url(url)


fragments = st.sampled_from(
    [
        "https",
        "http",
        "://",
        ":",
        "/",
        "@",
        "example.org",
        "evil.org",
        "#",
        "?",
        "\\",
        "%40",
        ".",
        "443",
        "8443",
        "[",
        "]",
        "é",
        " ",
    ]
)


@given(st.one_of(st.lists(fragments, max_size=8).map("".join), st.text(max_size=40)))
def test_standard_library_agrees_on_the_host_of_allowed_urls(url: str) -> None:
    from urllib.parse import urlsplit

    decision = ALLOWED.url(url)
    found = endpoint_of(url)
    if decision.allowed:
        assert isinstance(found, NetworkEndpoint)
        read = urlsplit(url)
        host = (read.hostname or "").rstrip(".")
        assert host.encode("idna").decode() in (found.host, f"::ffff:{found.host}")
        assert (read.port or {"https": 443, "http": 80, "wss": 443, "ws": 80}.get(read.scheme)) == found.port


def test_hosts_and_ports_follow_the_rules() -> None:
    everything_but = Capabilities(parse('[network]\nallow = ["*", "!10.0.0.1", "!*.evil.org", "!one.org:25"]'))
    assert everything_but.host("any.org", 9999).allowed
    for host, port in (
        ("10.0.0.1", 9999),
        ("::ffff:10.0.0.1", 1),
        ("a.evil.org", 7),
        ("A.EVIL.ORG.", 7),
        ("one.org", 25),
    ):
        assert not everything_but.host(host, port).allowed, host
    assert everything_but.host("evil.org", 443).allowed
    assert everything_but.host("one.org", 26).allowed
    assert not Capabilities(Grants()).host("example.org", 443).allowed
    assert not everything_but.host("", 443).allowed
    assert not everything_but.host("a b", 443).allowed


# Commands and variables


@pytest.mark.parametrize(
    ("argv", "due"),
    [
        (["git", "status"], True),
        (["git"], True),
        (["git", "push", "origin"], False),
        (["git", "push"], False),
        (["gitx", "status"], False),
        (["/usr/bin/git", "status"], False),
        (["GIT", "status"], False),
        (["pytest", "-q"], True),
        (["pytest", "-q", "more"], False),
        (["python", "a/b.py"], True),
        (["python", "a/b.py "], False),
        (["sh", "-c", "git status"], False),
        (["make a"], False),
        ([""], False),
    ],
)
def test_commands_follow_the_rules(argv: list[str], due: bool) -> None:
    rules = parse('[commands]\nallow = ["git **", "!git push **", "pytest -q", "python *.py", "\'make a\' x"]')
    decision = Capabilities(rules).command(argv)
    assert decision.allowed is due
    assert decision.advisory


def test_variables_and_flags_follow_the_rules() -> None:
    capabilities = Capabilities(parse('snapshot = true\n[env]\nread = ["LC_*"]\nwrite = ["*", "!LD_*"]'))
    assert capabilities.env_read.of("LC_ALL").allowed
    assert not capabilities.env_read.of("lc_all").allowed
    assert not capabilities.env_write.of("LD_PRELOAD").allowed
    assert capabilities.flag("snapshot").allowed
    assert not capabilities.flag("rollback").allowed
    assert capabilities.flag("clock").advisory


# Files and presets


@pytest.mark.parametrize(
    "text",
    [
        "presett = 'sandbox'",
        "[fs]\nraed = ['**']",
        "[fs]\nread = '**'",
        "preset = 'none'",
        "snapshot = 1",
        "[",
        "[network]\ndeny = []",
    ],
)
def test_malformed_files_are_refused(text: str) -> None:
    with pytest.raises(CapabilitiesInvalid):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ['[network]\nallow=["http://x"]', '[network]\nallow=["a b"]', '[commands]\nallow=[""]', '[commands]\nallow=["\'"]'],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(CapabilitiesInvalid):
        Capabilities(parse(text))


def test_file_can_extend_a_preset(tmp_path: Path) -> None:
    (tmp_path / "caps.toml").write_text(
        'preset = "agent"\nrollback = true\nsnapshot = false\n[fs]\ndeny = ["private"]\n'
    )
    capabilities = Capabilities.load(tmp_path / "caps.toml")
    assert capabilities.flag("rollback").allowed
    assert not capabilities.flag("snapshot").allowed
    assert capabilities.file("write", "x/private").allowed
    assert not capabilities.file("write", "private/x").allowed
    assert not capabilities.file("read", "a/.env").allowed
    with pytest.raises(CapabilitiesInvalid, match="neither a preset nor a readable file"):
        load("no-such-preset")


def test_presets_grant_the_documented_capabilities() -> None:
    def may(name: str) -> tuple[bool, ...]:
        each = Capabilities(PRESETS[name])
        return (
            each.file("read", "a").allowed,
            each.file("write", "a").allowed,
            each.command(["x"]).allowed,
            each.host("example.org", 443).allowed,
            each.flag("rollback").allowed,
        )

    assert may("minimal") == (True, False, False, False, False)
    assert may("sandbox") == (True, True, True, False, True)
    assert may("developer") == (True, True, True, False, True)
    assert may("agent") == (True, True, True, False, False)
    assert may("unrestricted") == (True, True, True, True, True)
    assert not Capabilities(Grants()).file("read", "a").allowed
    for name, access in itertools.product(("minimal", "sandbox", "developer", "agent"), ("read",)):
        assert not Capabilities(PRESETS[name]).file(access, "deep/.env").allowed  # type: ignore[arg-type]


def test_guard_protects_files_in_memory() -> None:
    guard = CapabilityGuard(Capabilities(parse('[fs]\nread=["src/*.py"]\nwrite=["out/**"]')))
    env = MemoryEnvironment({}, guard)
    env.write_file("out/a", "x")
    with pytest.raises(CapabilityDenied) as caught:
        env.read_file("out/a")
    assert caught.value.details["rule"] == "fs.read: nothing allows it"
    with pytest.raises(CapabilityDenied):
        env.write_file("src/a.py", "x")
    assert [entry.path for entry in env.list_directory().entries] == ["out"]
