"""The runtime `claude_code`, as listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.gateway.endpoint import ModelAccess
from proofbox.agents.runtimes.claude.binary import ask_version, find_claude
from proofbox.agents.runtimes.claude.settings import ClaudeSettings
from proofbox.agents.settings import read_settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import AgentError

if TYPE_CHECKING:
    from proofbox.agents.runtimes.claude.session import ClaudeSession

ID = "claude_code"


class ClaudeCode:
    id = ID
    title = "Claude Code, over stream-json"
    settings: type[msgspec.Struct] = ClaudeSettings
    capabilities = RuntimeCapabilities(
        supports_interrupt=True,
        supports_event_stream=True,
        supports_parallel_sessions=True,
        supports_thread_resume=True,
        supports_thread_fork=True,
        supports_token_usage=True,
        supports_rate_limits=True,
    )

    def model_access(self, settings: Mapping[str, Any]) -> ModelAccess:
        return read_settings(ClaudeSettings, settings, self.id).access()

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        """Check whether the program is installed, its version is supported, and a required key is set."""
        checked = read_settings(ClaudeSettings, settings, self.id)
        details: dict[str, Any] = {}
        version = ""
        try:
            binary = await run_sync(find_claude, checked.binary)
            details |= {"binary": str(binary.path), "found_by": binary.found_by}
            version = await run_sync(ask_version, binary)
            endpoint = checked.endpoint()
        except AgentError as error:
            return RuntimeProbe.failed(self.id, error, version=version, details=details)
        details |= {"endpoint": endpoint.base_url, "key": endpoint.has_key}
        return RuntimeProbe(strategy=self.id, available=True, version=version, details=details)

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> ClaudeSession:
        from proofbox.agents.runtimes.claude.session import ClaudeSession

        checked = read_settings(ClaudeSettings, options.settings, self.id)
        options.refuse_unsandboxed()
        checked.endpoint()
        binary = await run_sync(find_claude, checked.binary)
        version = await run_sync(ask_version, binary)
        session = ClaudeSession(self, options, checked, binary, version, clock=clock, ids=ids)
        await session.open()
        return session
