"""The runtime `acp`, as listed in the registry."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from anyio.to_thread import run_sync

from proofbox.agents.contract import RuntimeCapabilities, RuntimeProbe, SessionOptions
from proofbox.agents.gateway.endpoint import ModelAccess
from proofbox.agents.runtimes.acp.settings import AcpSettings
from proofbox.agents.settings import read_settings
from proofbox.core.clock import Clock
from proofbox.core.ids import IdSource
from proofbox.errors import AgentError, StrategyUnavailable

if TYPE_CHECKING:
    from proofbox.agents.runtimes.acp.finding import AgentProgram
    from proofbox.agents.runtimes.acp.session import AcpSession


class AcpRuntime:
    """Threads can be resumed and forked if the agent advertises it; otherwise `CapabilityUnsupported` says so."""

    id = "acp"
    title = "Any agent that speaks the Agent Client Protocol"
    settings: type[msgspec.Struct] = AcpSettings
    capabilities = RuntimeCapabilities(
        supports_interrupt=True,
        supports_event_stream=True,
        supports_parallel_sessions=True,
        supports_thread_resume=True,
        supports_thread_fork=True,
        supports_token_usage=True,
        supports_rate_limits=True,
    )

    def model_access(self, settings: Mapping[str, Any]) -> ModelAccess | None:
        from proofbox.agents.runtimes.acp.profiles import access_of

        return access_of(read_settings(AcpSettings, settings, self.id))

    async def probe(self, settings: Mapping[str, Any]) -> RuntimeProbe:
        """Check whether the agent is installed, and a required model and key are set. The agent is not run."""
        from proofbox.agents.runtimes.acp.profiles import endpoint_of

        checked = read_settings(AcpSettings, settings, self.id)
        details: dict[str, Any] = {}
        version = ""
        try:
            found = await run_sync(_find, checked)
            version = found.version if found is not None else ""
            details["binary"] = str(found.path) if found is not None else checked.command[0]
            endpoint = endpoint_of(checked)
        except AgentError as error:
            return RuntimeProbe.failed(self.id, error, version=version, details=details)
        if endpoint is not None:
            details |= {"endpoint": endpoint.base_url, "key": endpoint.has_key}
        return RuntimeProbe(strategy=self.id, available=True, version=version, details=details)

    async def start_session(
        self, options: SessionOptions, *, clock: Clock | None = None, ids: IdSource | None = None
    ) -> AcpSession:
        from proofbox.agents.runtimes.acp.session import AcpSession

        checked = read_settings(AcpSettings, options.settings, self.id)
        options.refuse_unsandboxed()
        session = AcpSession(self, options, checked, await run_sync(_find, checked), clock=clock, ids=ids)
        await session.open()
        return session


def _find(settings: AcpSettings) -> AgentProgram | None:
    """Find a known agent's program, or check that the program of `command` exists."""
    from proofbox.agents.runtimes.acp.finding import find_agent
    from proofbox.agents.runtimes.acp.profiles import profile_of

    profile = profile_of(settings)
    if profile is not None:
        return find_agent(profile, settings.binary)
    if settings.on_host and shutil.which(settings.command[0]) is None:
        raise StrategyUnavailable(
            f"{settings.command[0]} is not installed on this machine",
            op="probe",
            fix_hints=["install it", "or set on_host = false if the box's image contains it"],
        )
    return None
