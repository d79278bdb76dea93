"""Tools called by name with JSON: self-contained schemas, validated arguments, bounded answers."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proofbox import Workspace
from proofbox.errors import ArgumentsInvalid, CapabilityDenied, FileAbsent, ToolUnknown
from proofbox.workspace.capabilities.capabilities import Capabilities
from proofbox.workspace.capabilities.grants import parse
from proofbox.workspace.tools.environments.memory import MemoryEnvironment, MemoryTree
from proofbox.workspace.tools.registry import ToolRegistry, create_tool_registry
from proofbox.workspace.tools.toolbox import open_toolbox

NINE = {
    *("read_file", "write_file", "remove_file", "list_directory", "list_files_recursive", "search_text"),
    *("run_command", "edit_file", "apply_patch"),
}


@pytest.fixture
def registry() -> ToolRegistry:
    return create_tool_registry(MemoryEnvironment({"a.py": "import os\n", "b": "x" * 100_000}))


def test_every_tool_has_a_self_contained_schema(registry: ToolRegistry) -> None:
    assert set(registry.tools) == NINE
    for schema in registry.schemas():
        parameters = schema["parameters"]
        jsonschema.Draft202012Validator.check_schema(parameters)
        assert parameters["type"] == "object"
        assert parameters["additionalProperties"] is False
        assert "$ref" not in json.dumps(parameters)
        assert schema["description"]
        for name, each in parameters["properties"].items():
            assert name != "content" or "description" in each


def test_calls_return_typed_results(registry: ToolRegistry) -> None:
    assert registry.call("read_file", {"path": "a.py"}).text() == "import os\n"
    assert registry.call("search_text", '{"pattern": "import", "glob": "*.py"}').text() == "a.py:1:import os"
    assert registry.call("list_directory", "").text() == "a.py\nb"
    with pytest.raises(FileAbsent):
        registry.call("read_file", {"path": "none"})
    with pytest.raises(ToolUnknown):
        registry.call("format_disk", {})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", {}),
        ("read_file", {"path": 1}),
        ("read_file", {"path": "a", "extra": 1}),
        ("read_file", {"path": "a", "first_line": 0}),
        ("read_file", '{"path": "a"'),
        ("read_file", "[]"),
        ("read_file", b"\xff"),
        ("run_command", {"command": []}),
        ("run_command", {"command": "x", "timeout": -1}),
        ("edit_file", {"path": "a", "old": "", "new": "x"}),
        ("search_text", {"pattern": "x", "context": 99}),
    ],
)
def test_invalid_arguments_are_refused_before_the_call(registry: ToolRegistry, tool: str, arguments: Any) -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        registry.call(tool, arguments)
    assert caught.value.fix_hints
    answer = registry.answer(tool, arguments)
    assert not answer.ok
    assert answer.text.startswith("error WORKSPACE_TOOL_ARGUMENTS_INVALID: ")


def test_answers_are_always_bounded(registry: ToolRegistry) -> None:
    for tool, arguments in (("read_file", {"path": "b"}), ("read_file", {"path": "n" * 4000}), ("x" * 9000, {})):
        assert len(registry.answer(tool, arguments, limit=500).text.encode()) <= 500


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(["path", "content", "pattern", "command", "old", "new", "patch", "glob", "depth", "first_line"])


@given(st.sampled_from(sorted(NINE)), st.dictionaries(known | st.text(max_size=5), plain, max_size=5))
def test_any_arguments_get_an_answer(tool: str, arguments: dict[str, Any]) -> None:
    registry = create_tool_registry(MemoryEnvironment({"a": "b"}))
    answer = registry.answer(tool, arguments, limit=2000)
    assert (answer.result is None) != (answer.error is None)
    assert len(answer.text.encode()) <= 2000
    if answer.error is None:
        jsonschema.validate(arguments, registry.tools[tool].schema)
    msgspec.json.encode(answer.error)


def test_os_errors_are_answers(registry: ToolRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(MemoryTree, "write", full)
    registry = create_tool_registry(MemoryEnvironment())
    answer = registry.answer("write_file", {"path": "a", "content": "x"})
    assert answer.error is not None
    assert (answer.error["code"], answer.error["retryable"]) == ("PROOFBOX_IO", True)
    assert "No space left" in answer.text


def test_registry_can_be_limited_to_some_tools() -> None:
    assert set(create_tool_registry(MemoryEnvironment(), only=["read_file"]).tools) == {"read_file"}


@pytest.mark.needs("bubblewrap")
def test_toolbox_checks_records_and_snapshots(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / ".env").write_text("secret")
    Workspace.init(project, track=False).close()
    with open_toolbox(project, provider="bubblewrap") as box:
        first = box.registry.call("snapshot", {"message": "first"})
        box.registry.call("run_command", {"command": ["sh", "-c", "echo x > made; cat .env"]})
        assert (project / "made").exists()
        back = box.registry.call("rollback", {"snapshot": msgspec.to_builtins(first)["id"]})
        assert not (project / "made").exists()
        assert "1 paths" in back.text()
        with pytest.raises(CapabilityDenied):
            box.registry.call("read_file", {"path": ".env"})
        assert "WORKSPACE_CAPABILITY_DENIED" in box.registry.answer("read_file", {"path": ".env"}).text
        kinds = [(each.kind, each.phase) for each in box.workspace.effects.entries()]
        assert kinds == [
            ("run_command", "intent"),
            ("run_command", "outcome"),
            ("rollback", "outcome"),
            ("read_file", "denied"),
            ("read_file", "denied"),
        ]
    (project / "link").symlink_to(".env")
    with open_toolbox(project, capabilities="agent", provider="bubblewrap") as box:
        with pytest.raises(CapabilityDenied):
            box.env.read_file("link")
        [*_, intent, outcome] = box.workspace.effects.entries()
        assert (intent.decision, outcome.decision, outcome.rule) == ("allow", "deny", "fs.read: !**/.env")
        assert "rollback" not in box.registry.tools
        assert "snapshot" in box.registry.tools


@pytest.mark.needs("bubblewrap")
def test_network_connections_of_commands_are_recorded(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    Workspace.init(project, track=False).close()
    script = """
import socket
for host in ("127.0.0.1:{port}", "example.org:443"):
    with socket.create_connection(("127.0.0.1", 3128), 60) as proxy:
        proxy.sendall(f"CONNECT {{host}} HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n".encode())
        print(proxy.recv(100).split()[1].decode())
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rules = Capabilities(parse(f'preset = "sandbox"\n[network]\nallow = ["127.0.0.1:{port}"]'))
        with open_toolbox(project, capabilities=rules, provider="bubblewrap") as box:
            done = box.env.run_command(["python3", "-c", script.format(port=port)])
            assert done.stdout == "200\n403\n", done.stderr
            found = [(e.phase, e.target, e.rule) for e in box.workspace.effects.entries() if e.kind == "network"]
    assert found == [
        ("outcome", f"127.0.0.1:{port}", f"network: 127.0.0.1:{port}"),
        ("denied", "example.org:443", "network: nothing allows it"),
    ]
