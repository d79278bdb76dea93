"""The runtime `codex_app_server`, as listed in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.gateway.endpoint import ModelAccess
from proofbox.agents.runtimes.codex.binary import Binary, ask_version, check_schema, find_binary
from proofbox.agents.runtimes.codex.settings import CodexSettings
from proofbox.agents.settings import read_settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import AgentError

if TYPE_CHECKING:
    from proofbox.agents.runtimes.codex.session import CodexSession

ID = "codex_app_server"


class CodexAppServer:
    id = ID
    title = "Codex, over its app-server"
    settings: type[msgspec.Struct] = CodexSettings
    capabilities = RuntimeCapabilities(
        supports_thread_start=True,
        supports_turn_steer=True,
        supports_interrupt=True,
        supports_event_stream=True,
        supports_parallel_sessions=True,
        supports_thread_resume=True,
        supports_thread_fork=True,
        supports_token_usage=True,
        supports_rate_limits=True,
    )

    def model_access(self, settings: Mapping[str, Any]) -> ModelAccess:
        return read_settings(CodexSettings, settings, self.id).access()

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        """Check whether the program is installed, its version is supported, and a required key is set."""
        checked = read_settings(CodexSettings, settings, self.id)
        details: dict[str, Any] = {}
        version = ""
        try:
            binary = await run_sync(find_binary, checked.binary)
            details |= {"binary": str(binary.path), "found_by": binary.found_by}
            version = await run_sync(ask_version, binary)
            await run_sync(check_schema, binary, version)
            endpoint = checked.endpoint()
        except AgentError as error:
            return RuntimeProbe.failed(self.id, error, version=version, details=details)
        details |= {"endpoint": endpoint.base_url, "key": endpoint.has_key}
        return RuntimeProbe(strategy=self.id, available=True, version=version, details=details)

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> CodexSession:
        from proofbox.agents.runtimes.codex.session import CodexSession

        checked = read_settings(CodexSettings, options.settings, self.id)
        options.refuse_unsandboxed()
        endpoint = checked.endpoint()
        binary = await run_sync(_usable, checked.binary)
        session = CodexSession(options, checked, binary, endpoint, clock=clock, ids=ids)
        await session.open()
        return session


def _usable(setting: str | None) -> Binary:
    binary = find_binary(setting)
    check_schema(binary, ask_version(binary))
    return binary
