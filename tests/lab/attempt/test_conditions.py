"""Conditions of `expect` checked in one real run against what the agent said, called and left."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import pytest
from suites import HEAD, attempts, command, conduct, document, mission, plan, say, write

pytestmark = [pytest.mark.needs("bubblewrap"), pytest.mark.xdist_group("conditions")]

LARGE = 17 << 20
LEAVES = (
    "mkdir dir; echo text >real; echo x >dir/x; ln -s dir link; ln -s nowhere dangling; mkfifo pipe; "
    f"truncate -s {LARGE} large; printf needle >>large; : >empty; truncate -s 9437181 across; printf needle >>across"
)
DIGEST = hashlib.sha256(bytes(LARGE) + b"needle").hexdigest()
ANSWER = '{"status":"success","answer":"fortytwo"}'


class Case(NamedTuple):
    expect: dict[str, Any]
    verified: str
    found: str = ""
    """The value that an unmet condition reports."""


def file(verified: str, found: str = "", **condition: Any) -> Case:
    return Case({"file": [condition]}, verified, found)


FILES = {
    "large-digest": file("passed", path="large", sha256=DIGEST),
    "large-other-digest": file("failed", DIGEST, path="large", sha256="0" * 64),
    "large-contains": file("passed", path="large", contains="needle"),
    "large-lacks": file("failed", f"{LARGE + 6} bytes without", path="large", contains="noodle"),
    "empty": file("passed", path="empty", contains=""),
    "empty-lacks": file("failed", "0 bytes without", path="empty", contains="x"),
    "across": file("passed", path="across", contains="needle"),
    "there": file("passed", path="./real"),
    "text": file("passed", path=".//./real", contains="text"),
    "not-there": file("passed", path="nothing", exists=False),
    "not-below-a-file": file("passed", path="real/x", exists=False),
    "absent": file("failed", "nothing", path="nothing"),
    "has-real": file("failed", "a file", path="./real", exists=False),
    "directory": file("passed", path="dir/"),
    "has-directory": file("failed", "a directory", path="dir", exists=False),
    "directory-text": file("failed", "a directory", path="dir", contains="x"),
    "link": file("passed", path="link"),
    "has-link": file("failed", "a link", path="link", exists=False),
    "link-digest": file("failed", "a link", path="link", sha256="0" * 64),
    "dangling": file("passed", path="dangling"),
    "has-dangling": file("failed", "a link", path="dangling", exists=False),
    "through-a-link": file("failed", "link is a link", path="link/x"),
    "not-through-a-link": file("failed", "link is a link", path="link/x", exists=False),
    "pipe": file("passed", path="pipe"),
    "has-pipe": file("failed", "not a file", path="pipe", exists=False),
    "pipe-text": file("failed", "not a file", path="pipe", contains="x"),
}
SAID = {
    "nothing-asked": Case({"observed": True}, "none"),
    "no-members": Case({"result_json": {}}, "none"),
    "words": Case({"result": "fortytwo"}, "passed"),
    "members": Case({"result_json": {"answer": "fortytwo"}}, "passed"),
    "said-nothing": Case({"result": "."}, "failed", "no message"),
    "other-words": Case({"result": "fiftytwo"}, "failed", ANSWER),
}
CALLED = {
    "tool": Case({"commands": ["^write_file .*note"]}, "passed"),
    "no-tool": Case({"no_commands": ["write_file"]}, "failed", 'write_file {"path":"note"'),
    "command-line": Case({"commands": ["^echo hi$"]}, "passed"),
    "exit-code": Case({"commands": [{"match": "^echo hi$", "exit_code": 0}]}, "passed"),
    "other-exit-code": Case({"commands": [{"match": "^echo hi$", "exit_code": 1}]}, "failed", "0"),
    "no-exit-code": Case({"commands": [{"match": "^write_file", "exit_code": 0}]}, "failed", "unknown"),
    "any-exit-code": Case({"commands": [{"match": "^write_file"}]}, "passed"),
    "missing-program": Case({"observed": True, "commands": ["^no-such-program"]}, "failed", "3 other calls"),
    "failed-tool": Case({"observed": True, "commands": ["^read_file"]}, "passed"),
    "refused-path": Case({"observed": True, "commands": ["^write_file .*outside"]}, "failed", "3 other calls"),
}
CALLS = (
    write("note", "x"),
    command("echo hi"),
    {"tool": "run_command", "args": {"command": ["no-such-program"]}},
    {"tool": "read_file", "args": {"path": "nothing-here"}},
    write("../outside", "x"),
    say("done"),
)


class Ran(NamedTuple):
    verified: dict[str, str]
    unmet: dict[str, list[dict[str, str]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    base = tmp_path_factory.mktemp("conditions")
    steps = {
        **dict.fromkeys(FILES, (command(LEAVES), say("done"))),
        **dict.fromkeys(SAID, (say(ANSWER),)),
        "said-nothing": (),
        **dict.fromkeys(CALLED, CALLS),
    }
    cases = FILES | SAID | CALLED
    suite = HEAD + "".join(mission(id, *steps[id], expect=case.expect) for id, case in cases.items())
    made = plan(suite, base / "out", base)
    conduct(made, base / "out")
    reported = {each.mission: each for each in attempts(made, base / "out").values()}
    return Ran(
        {id: each.result.verified for id, each in reported.items() if each.result is not None},
        {
            id: document(base / "out", made, each, "attempt.json")["verification"]["unmet"]
            for id, each in reported.items()
        },
    )


@pytest.mark.parametrize(("id", "case"), (FILES | SAID | CALLED).items(), ids=FILES | SAID | CALLED)
def test_condition_is_met_or_reports_what_was_found(ran: Ran, id: str, case: Case) -> None:
    assert ran.verified[id] == case.verified, ran.unmet[id]
    assert [case.found in each["found"] for each in ran.unmet[id]] == [True] * (case.verified == "failed")
