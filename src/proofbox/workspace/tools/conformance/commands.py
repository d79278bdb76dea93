"""Commands return results even if they fail, and see the same files as the tools."""

from __future__ import annotations

from proofbox.errors import CommandsUnavailable, ProofboxError
from proofbox.sandbox.conformance.check import NotApplicable, expect
from proofbox.workspace.tools.conformance.fixture import ToolFixture, check, refused, same
from proofbox.workspace.tools.contract import OUTPUT_LIMIT, ToolEnvironment


def _shell(fixture: ToolFixture) -> ToolEnvironment:
    try:
        fixture.env.run_command("true")
    except CommandsUnavailable as error:
        raise NotApplicable(error.message) from None
    return fixture.env


@check
def every_end_of_a_command_is_a_result(fixture: ToolFixture) -> None:
    env = _shell(fixture)
    done = env.run_command("echo out; echo err >&2; exit 7")
    same((done.exit_code, done.stdout, done.stderr, done.timed_out), (7, "out\n", "err\n", False))
    same(env.run_command(["printf", "%s", "a b"]).stdout, "a b")
    same(env.run_command("cat", stdin="given").stdout, "given")
    same(env.run_command("echo $V", env={"V": "1"}).stdout, "1\n")
    late = env.run_command("sleep 60", timeout=0.3)
    same((late.timed_out, late.exit_code), (True, 124))
    much = env.run_command(f"head -c {2 * OUTPUT_LIMIT} /dev/zero")
    expect(much.truncated and len(much.stdout) <= 1.2 * OUTPUT_LIMIT, "output is bounded")
    expect(len(much.text(500).encode()) <= 500, "the text for the model is bounded")
    refused(ProofboxError, env.run_command, ["no-such-program-here"])


@check
def commands_and_tools_see_the_same_files(fixture: ToolFixture) -> None:
    env = _shell(fixture)
    env.write_file("sub/f", "from the tool")
    same(env.run_command("cat f && echo more > made", cwd="sub").stdout, "from the tool")
    same(env.read_file("sub/made").content, "more\n")
    env.write_file("run", "#!/bin/sh\necho ran\n", executable=True)
    same(env.run_command(["./run"]).stdout, "ran\n")
    env.edit_file("run", "ran", "again")
    same(env.run_command(["./run"]).stdout, "again\n")
    env.write_file("sub/made", "replaced")
    same(env.run_command("echo x >> sub/made; cat sub/made").stdout, "replacedx\n")
    refused(ProofboxError, env.run_command, "pwd", cwd="..")
