"""Tests of a `process` agent with a model but no key, and of `codex exec` compared with codex's app-server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from proofbox.agents.fakemodel import FakeModel
from proofbox.agents.runtimes.codex.binary import find_binary
from proofbox.agents.runtimes.process.runtime import ProcessRuntime
from proofbox.lab.attempt.adhoc.request import AttemptRun
from proofbox.lab.attempt.adhoc.run import run_attempt_async

pytestmark = pytest.mark.needs("bubblewrap")

ASK = """
import json, os, socket, sys, urllib.request
body = json.dumps({"input": [{"role": "user", "content": sys.stdin.read()}]}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/responses"
request = urllib.request.Request(url, body, {"content-type": "application/json", "authorization": "Bearer mine"})
words = urllib.request.urlopen(request, timeout=100).read().decode()
found = [json.loads(line[5:]) for line in words.splitlines() if line.startswith("data:")]
said = [each["item"]["content"][0]["text"] for each in found if each["type"] == "response.output_item.done"]
print(said[0], sys.argv[1], len([line for line in open("/proc/net/dev") if ":" in line]))
"""


def with_model(work: Callable[[FakeModel, str], Awaitable[None]]) -> None:
    async def run() -> None:
        model = FakeModel()
        async with model.listening() as url:
            with anyio.fail_after(250):
                await work(model, url)

    anyio.run(run)


async def attempt(base: Path, settings: dict[str, Any], prompt: str, strategy: str = "process") -> AttemptRun:
    workspace = base / strategy
    workspace.mkdir()
    return await run_attempt_async(
        prompt, workspace, strategies=strategy, provider="bubblewrap", settings=settings, timeout=200
    )


def test_agent_reaches_only_its_model_and_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "house-key-3141592653589793"
    monkeypatch.setenv("HOUSE_MODEL", key)

    async def work(model: FakeModel, url: str) -> None:
        command = ["/usr/bin/python3", "-c", ASK, "{base_url}"]
        flags = {"command": command, "base_url": url, "api_key_env": "HOUSE_MODEL"}
        trial = await attempt(tmp_path, flags, "[[usage input=7 output=3]] [[say hello]]")
        assert trial.status == "completed", trial.error
        words = trial.final_message.split()
        assert words[0] == "hello"
        assert words[1].startswith("http://127.0.0.1:")
        assert words[2] == "1"  # loopback, and no other interface
        sent = {name.lower(): value for name, value in model.seen[-1].headers}
        assert sent["authorization"] == f"Bearer {key}"
        assert trial.usage is not None
        assert (trial.usage.input_tokens, trial.usage.output_tokens) == (7, 3)
        assert trial.session["key"] == "added by the gateway"

    with_model(work)


def test_runtime_is_unavailable_without_its_key() -> None:
    configured = {"command": ["sh"], "base_url": "http://127.0.0.1:1/v1", "api_key_env": "NO_SUCH_VARIABLE"}
    probe = anyio.run(ProcessRuntime().probe, configured)
    assert (probe.available, "NO_SUCH_VARIABLE" in probe.reason) == (False, True)


@pytest.mark.needs("codex")
def test_codex_exec_and_the_app_server_behave_alike(tmp_path: Path) -> None:
    """The same prompt and model lead to the same commands, exit codes and files."""
    binary = find_binary(None)
    assert binary.package is not None
    inside = f"/run/agent/{binary.path.relative_to(binary.package)}"
    provider = 'model_providers.x={name="x",base_url="{base_url}",wire_api="responses",supports_websockets=false}'
    command = [
        *(inside, "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        *("-c", provider, "-c", 'model_provider="x"', "-c", 'model="fake-model"', "-"),
    ]
    prompt = "[[run echo one > a.txt]] [[run cat a.txt; exit 5]] [[say both done]]"

    async def work(model: FakeModel, url: str) -> None:
        del model
        configured: dict[str, dict[str, Any]] = {
            "process": {
                "command": command,
                "base_url": url,
                "output": "codex_exec",
                "mounts": [f"{binary.package}:/run/agent:ro"],
                "on_host": False,
            },
            "codex_app_server": {"base_url": url, "model": "fake-model"},
        }
        trials = [await attempt(tmp_path, flags, prompt, name) for name, flags in configured.items()]
        for trial in trials:
            assert (trial.status, trial.final_message) == ("completed", "both done"), trial.error
        ends = [[(call.exit_code, call.status) for call in trial.tool_calls] for trial in trials]
        assert ends[0] == ends[1] == [(0, "completed"), (5, "failed")]
        assert trials[0].usage == trials[1].usage
        assert trials[0].snapshot_after == trials[1].snapshot_after

    with_model(work)
